"""Choose the objects of a dataset among those of many photos, and put the file together."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equiscale.build.canvas import empty_images
from equiscale.build.options import check_num_instances
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.build.photos import Cutouts, Cutting, Photo, PhotoObject, PhotoTask, cut_photo
from equiscale.core.errors import TooFewInstancesError
from equiscale.core.spec import CANVAS, Split
from equiscale.data.schema import StirArrays

_LOGGER = logging.getLogger(__name__)

Slots = Mapping[tuple[int, int, int], PhotoObject]
"""The object of each (split, class, instance)."""


@dataclass(frozen=True)
class Choice:
    """The objects of a dataset."""

    class_names: tuple[str, ...]
    num_instances: int
    slots: Slots


def build_from_photos(
    choose: Callable[[frozenset[Photo]], Choice],
    metadata: Mapping[str, str],
    cutting: Cutting,
    workers: int = 1,
    progress: Progress = no_progress,
    known_bad: frozenset[Photo] = frozenset(),
) -> StirArrays:
    """Cut out the chosen objects, decoding every photo once.

    Args:
        choose: Chooses the objects without those of the given (damaged) photos.
        metadata: What the file says about itself.
        cutting: How they are cut out.
        workers: Number of processes; the result does not depend on it.
        progress: Called as `progress(done, total)`, counting photos.
        known_bad: Damaged photos that were skipped before.
    """
    bad = known_bad
    _report_skipped(bad)
    finished: dict[PhotoObject, Cutouts] = {}
    while True:
        choice = choose(bad)
        missing = [item for item in choice.slots.values() if item not in finished]
        if not missing:
            break
        tasks = _group_by_photo(missing, cutting)
        results = map_in_order(cut_photo, tasks, workers, progress)
        damaged = set()
        for task, cutouts in zip(tasks, results, strict=True):
            if cutouts is None:
                damaged.add(task.photo)
            else:
                finished.update(zip(task.objects, cutouts, strict=True))
        _report_skipped(damaged)
        bad |= damaged
    return _assemble(choice, finished, metadata, cutting.channels)


def deal_largest(
    objects: Iterable[PhotoObject],
    size_of: Callable[[PhotoObject], float],
    num_instances: int,
    source: Path,
) -> Choice:
    """Deal each class's largest objects round-robin to train, valid and test.

    A class takes part if it has three times `num_instances` objects and the smallest of those is
    no smaller than the canvas, so that objects are only ever scaled down.
    """
    check_num_instances(num_instances)
    classes: dict[str, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        classes[item.label].append(item)
    needed = len(Split) * num_instances
    slots: dict[tuple[int, int, int], PhotoObject] = {}
    names: list[str] = []
    for name in sorted(classes):
        largest = sorted(classes[name], key=size_of, reverse=True)[:needed]
        if len(largest) == needed and size_of(largest[-1]) >= CANVAS:
            for rank, item in enumerate(largest):
                slots[rank % len(Split), len(names), rank // len(Split)] = item
            names.append(name)
    if not names:
        found = ", ".join(f"{name}: {len(classes[name])}" for name in sorted(classes)) or "none"
        raise TooFewInstancesError(
            source, f"usable objects per class: {found}", f"{needed} of a class, in three splits"
        )
    return Choice(tuple(names), num_instances, slots)


def _report_skipped(photos: Collection[Photo]) -> None:
    if photos:
        names = ", ".join(map(str, sorted(photos)))
        _LOGGER.warning("skipped %d damaged: %s", len(photos), names)


def _group_by_photo(objects: Iterable[PhotoObject], cutting: Cutting) -> list[PhotoTask]:
    groups: dict[Photo, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        groups[item.photo].append(item)
    return [PhotoTask(photo, tuple(group), cutting) for photo, group in groups.items()]


def _assemble(
    choice: Choice,
    finished: dict[PhotoObject, Cutouts],
    metadata: Mapping[str, str],
    channels: int,
) -> StirArrays:
    images = empty_images(len(choice.class_names), choice.num_instances, channels)
    positions = np.empty((*images.shape[:4], 2), np.int64)
    for (split, label, instance), item in choice.slots.items():
        cutouts = finished.pop(item)  # freed while the array fills
        images[split, :, label, instance] = cutouts.images
        positions[split, :, label, instance] = cutouts.positions
    return StirArrays.assemble(images, positions, choice.class_names, metadata)

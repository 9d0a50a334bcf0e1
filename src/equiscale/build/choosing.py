"""Choose the objects of a dataset among those of many photos, and put the file together."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equiscale.build.canvas import empty_images
from equiscale.build.options import check_num_instances
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.build.photos import Cutting, Photo, PhotoObject, PhotoTask, cut_photo
from equiscale.core.errors import TooFewInstancesError
from equiscale.core.spec import Split
from equiscale.data.schema import Images, Integers, StirArrays

_LOGGER = logging.getLogger(__name__)

Slots = Mapping[tuple[int, int, int], PhotoObject]
"""The object of each (split, class, instance)."""

Track = list[PhotoObject]
"""Objects that show the same thing."""


@dataclass(frozen=True)
class Choice:
    """The objects of a dataset."""

    class_names: tuple[str, ...]
    num_instances: int
    slots: Slots


def build_from_photos(
    objects: Sequence[PhotoObject],
    choose: Callable[[list[PhotoObject]], Choice],
    metadata: Mapping[str, str],
    cutting: Cutting,
    workers: int = 1,
    progress: Progress = no_progress,
    known_bad: frozenset[Photo] = frozenset(),
) -> StirArrays:
    """Cut out the chosen objects, decoding every photo once.

    Args:
        objects: What can be chosen.
        choose: Chooses among the objects whose photos are not damaged.
        metadata: What the file says about itself.
        cutting: How they are cut out.
        workers: Number of processes.
        progress: Called as `progress(done, total)`, counting photos.
        known_bad: Damaged photos that were skipped before.
    """
    bad = known_bad
    _report_skipped(bad)
    choice = choose([item for item in objects if item.photo not in bad])
    images, positions = _allocate(choice, cutting)
    filled: dict[tuple[int, int, int], PhotoObject] = {}
    while missing := {key: item for key, item in choice.slots.items() if filled.get(key) != item}:
        places = {item: key for key, item in missing.items()}
        tasks = _group_by_photo(places, cutting)
        damaged = set()
        results = map_in_order(cut_photo, tasks, workers, progress)
        for task, cutouts in zip(tasks, results, strict=True):
            if cutouts is None:
                damaged.add(task.photo)
                continue
            for item, found in zip(task.objects, cutouts, strict=True):
                split, label, instance = places[item]
                images[split, :, label, instance] = found.images
                positions[split, :, label, instance] = found.positions
                filled[places[item]] = item
        if damaged:  # objects may move to other places: those are cut out again
            _report_skipped(damaged)
            bad |= damaged
            choice = choose([item for item in objects if item.photo not in bad])
            if images.shape[2:4] != (len(choice.class_names), choice.num_instances):
                images, positions = _allocate(choice, cutting)
                filled.clear()
    return StirArrays.assemble(
        images, positions, choice.class_names, metadata, cutting.layout.sizes
    )


def _allocate(choice: Choice, cutting: Cutting) -> tuple[Images, Integers]:
    classes, instances = len(choice.class_names), choice.num_instances
    images = empty_images(classes, instances, cutting.channels, cutting.layout)
    return images, np.empty((*images.shape[:4], 2), np.int64)


def shorter_side(item: PhotoObject) -> float:
    """Return the shorter side of an object's box."""
    return min(item.box.width, item.box.height)


def deal_largest(
    objects: Iterable[PhotoObject],
    size_of: Callable[[PhotoObject], float],
    num_instances: int,
    least: int,
    source: Path,
) -> Choice:
    """Deal each class's largest objects round-robin to train, valid and test.

    A class takes part if it has three times `num_instances` objects of at least `least` pixels:
    the largest object size, so that objects are only ever scaled down.
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
        if len(largest) == needed and size_of(largest[-1]) >= least:
            for rank, item in enumerate(largest):
                slots[rank % len(Split), len(names), rank // len(Split)] = item
            names.append(name)
    if not names:
        found = ", ".join(f"{name}: {len(classes[name])}" for name in sorted(classes)) or "none"
        raise TooFewInstancesError(
            source, f"usable objects per class: {found}", f"{needed} of a class, in three splits"
        )
    return Choice(tuple(names), num_instances, slots)


def deal_tracks(
    training: Iterable[PhotoObject],
    test: Iterable[PhotoObject],
    track_of: Callable[[PhotoObject], str],
    size_of: Callable[[PhotoObject], float],
    class_names: tuple[str, ...],
    num_instances: int,
    source: Path,
) -> Choice:
    """Choose objects of which some show the same thing, so that no such track is in two splits.

    The training objects are for train and valid. Each split takes the largest object of every
    track of a class, then the second largest of every track, and so on.

    Args:
        training: What train and valid are chosen from.
        test: What test is chosen from.
        track_of: Tells objects of a class that show the same thing.
        size_of: Tells how large an object is.
        class_names: The classes. Each must have enough objects.
        num_instances: Objects per class and split.
        source: Named if there are too few.
    """
    check_num_instances(num_instances)
    tracks = [_group_tracks(objects, track_of, size_of) for objects in (training, test)]
    slots: dict[tuple[int, int, int], PhotoObject] = {}
    missing: list[str] = []
    for label, name in enumerate(class_names):
        parts = (*_halve_tracks(tracks[0][name], num_instances), tracks[1][name])
        chosen = [spread_tracks(part, size_of)[:num_instances] for part in parts]
        if any(len(objects) < num_instances for objects in chosen):
            missing.append(f"{name}: {'+'.join(str(len(objects)) for objects in chosen)}")
        for split, objects in enumerate(chosen):
            slots |= {(split, label, instance): item for instance, item in enumerate(objects)}
    if missing:
        raise TooFewInstancesError(
            source,
            f"usable objects in train+valid+test: {', '.join(missing)}",
            f"{num_instances} of every class in every split, and no track in two splits",
        )
    return Choice(class_names, num_instances, slots)


def _group_tracks(
    objects: Iterable[PhotoObject],
    track_of: Callable[[PhotoObject], str],
    size_of: Callable[[PhotoObject], float],
) -> defaultdict[str, list[Track]]:
    """Return the tracks of each class in order; the largest object of a track comes first."""
    tracks: dict[tuple[str, str], Track] = defaultdict(list)
    for item in objects:
        tracks[item.label, track_of(item)].append(item)
    classes: defaultdict[str, list[Track]] = defaultdict(list)
    for label, track in sorted(tracks):
        found = sorted(tracks[label, track], key=lambda item: (-size_of(item), item.key))
        classes[label].append(found)
    return classes


def _halve_tracks(tracks: Iterable[Track], num_instances: int) -> tuple[list[Track], list[Track]]:
    """Deal whole tracks to train and valid, the longest first.

    A track goes to the split with fewer objects until both have enough. From then on, it goes to
    the split with fewer tracks.
    """
    train: list[Track] = []
    valid: list[Track] = []
    for track in sorted(tracks, key=len, reverse=True):
        poorer = min(
            train, valid, key=lambda part: (min(sum(map(len, part)), num_instances), len(part))
        )
        poorer.append(track)
    return train, valid


def spread_tracks(
    tracks: Iterable[Track], size_of: Callable[[PhotoObject], float]
) -> list[PhotoObject]:
    """Return the first object of every track by size, then the second of every track, and so on."""
    ranked = [(rank, item) for track in tracks for rank, item in enumerate(track)]
    ranked.sort(key=lambda pair: (pair[0], -size_of(pair[1]), pair[1].key))
    return [item for _, item in ranked]


def _report_skipped(photos: Collection[Photo]) -> None:
    if photos:
        names = ", ".join(map(str, sorted(photos)))
        _LOGGER.warning("skipped %d damaged: %s", len(photos), names)


def _group_by_photo(objects: Iterable[PhotoObject], cutting: Cutting) -> list[PhotoTask]:
    groups: dict[Photo, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        groups[item.photo].append(item)
    return [PhotoTask(photo, tuple(group), cutting) for photo, group in groups.items()]

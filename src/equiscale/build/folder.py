"""A dataset from a user's own pictures."""

from __future__ import annotations

import datetime
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equiscale.build.annotations import read_annotations
from equiscale.build.choosing import Choice, build_from_photos
from equiscale.build.options import Background, SourceFormat, check_num_instances
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import Cutting, Photo, PhotoObject
from equiscale.core.errors import OptionError, TooFewInstancesError
from equiscale.core.files import file_hash
from equiscale.core.registry import unknown_name_message
from equiscale.core.seeding import numpy_generator
from equiscale.core.spec import CANVAS, Split
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays

_LOGGER = logging.getLogger(__name__)
_Part = defaultdict[str, list[PhotoObject]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class FolderOptions:
    """What a user decides about a dataset of their own.

    Attributes:
        name: How it is called.
        layout: How the pictures are annotated.
        classes: Only these classes, in this order; empty means all.
        num_instances: Objects per class and split; None means as many as every class has.
        background: What is shown beyond a picture's border.
        grey: One channel instead of three.
        allow_upscaling: Admit objects smaller than the canvas.
        skip_bad: Leave out damaged pictures and boxes outside their picture, and say so.
        license: Terms of the pictures, for the file's metadata.
        seed: Decides positions and splits.
    """

    name: str
    layout: SourceFormat = SourceFormat.AUTO
    classes: tuple[str, ...] = ()
    num_instances: int | None = None
    background: Background = Background.EDGE
    grey: bool = False
    allow_upscaling: bool = False
    skip_bad: bool = False
    license: str = "not stated"
    seed: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(f"name {self.name!r}: use letters, digits, '-', '_' and '.'")
        if self.name in CARDS:
            raise OptionError(f"name {self.name!r} is that of a known dataset; choose another")
        if self.num_instances is not None:
            check_num_instances(self.num_instances)


def build_folder(
    source: Path, options: FolderOptions, workers: int = 1, progress: Progress = no_progress
) -> StirArrays:
    """Build a dataset from pictures in class folders, or with COCO or YOLO boxes.

    Every object is shown at all object sizes (the longer side of its box), over its own
    surroundings where the picture has them. No picture is in two splits, not even as a copy.

    Args:
        source: Directory of the pictures.
        options: What the user decided.
        workers: Number of processes; the result does not depend on it.
        progress: Called as `progress(done, total)`, counting pictures.
    """
    annotations = read_annotations(source, options.layout, options.skip_bad)
    names = _chosen_classes(annotations.class_names, options.classes)
    objects = [item for item in annotations.objects if item.label in names]
    if not options.allow_upscaling:
        objects = _large_enough(objects)
    squares = [replace(item, box=item.box.square_hull()) for item in objects]
    originals = _find_originals(squares)

    def choose(bad: frozenset[Photo]) -> Choice:
        usable = [item for item in squares if item.photo not in bad]
        return deal_photos(usable, originals, names, options, source)

    cutting = Cutting(
        seed=str(options.seed),
        background=options.background,
        upright=annotations.upright,
        skip_bad=options.skip_bad,
        channels=1 if options.grey else 3,
    )
    return build_from_photos(
        choose, _metadata(options, names), cutting, workers, progress, annotations.damaged
    )


def deal_photos(
    objects: Sequence[PhotoObject],
    originals: dict[Photo, str],
    names: Sequence[str],
    options: FolderOptions,
    source: Path,
) -> Choice:
    """Choose as many objects of every class in every split, and no picture for two splits."""
    parts = _spread(objects, originals, str(options.seed))
    fewest = min(len(part[name]) for part in parts for name in names)
    count = options.num_instances or fewest
    if not 1 <= count <= fewest:
        raise _too_few(source, parts, names, max(count, 1))
    slots = {
        (split, label, instance): part[name][instance]
        for split, part in enumerate(parts)
        for label, name in enumerate(names)
        for instance in range(count)
    }
    return Choice(tuple(names), count, slots)


def _spread(objects: Sequence[PhotoObject], originals: dict[Photo, str], seed: str) -> list[_Part]:
    """Deal whole pictures to the splits, so that every class is spread evenly.

    The pictures of the rarest class come first; each goes to the split that has the fewest
    objects of its rarest class so far.
    """
    totals = Counter(item.label for item in objects)
    groups: dict[str, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        groups[originals[item.photo]].append(item)
    rarest = {key: min((totals[item.label], item.label) for item in groups[key]) for key in groups}
    order = sorted(groups)
    numpy_generator(seed, "splits").shuffle(order)
    order.sort(key=rarest.__getitem__)
    parts: list[_Part] = [defaultdict(list) for _ in Split]
    for key in order:
        counts = [len(part[rarest[key][1]]) for part in parts]
        for item in groups[key]:
            parts[counts.index(min(counts))][item.label].append(item)
    return parts


def _too_few(
    source: Path, parts: Sequence[_Part], names: Sequence[str], needed: int
) -> TooFewInstancesError:
    """Say how many usable objects of each class every split got."""
    counts = (f"{name}: " + "+".join(str(len(part[name])) for part in parts) for name in names)
    return TooFewInstancesError(
        source,
        f"usable objects per class in train+valid+test: {', '.join(counts)}",
        f"{needed} of every class in every split, and no picture in two",
        "--classes a,b leaves out the other classes, --instances asks for fewer",
    )


def _chosen_classes(found: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    for name in wanted:
        if name not in found:
            raise OptionError(unknown_name_message("class", name, found))
    return tuple(dict.fromkeys(wanted or found))


def _large_enough(objects: Iterable[PhotoObject]) -> list[PhotoObject]:
    """Leave out objects that would have to be scaled up, and say how many of each class."""
    large, refused = [], Counter[str]()
    for item in objects:
        if max(item.box.width, item.box.height) >= CANVAS:
            large.append(item)
        else:
            refused[item.label] += 1
    if refused:
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(refused.items()))
        _LOGGER.warning(
            "refused %d objects smaller than %d pixels (%s); --allow-upscaling admits them",
            refused.total(),
            CANVAS,
            counts,
        )
    return large


def _find_originals(objects: Iterable[PhotoObject]) -> dict[Photo, str]:
    """Return the content hash of every photo: copies of one picture share it."""
    photos = dict.fromkeys(item.photo for item in objects)
    return {photo: file_hash(photo.path) for photo in photos}


def _metadata(options: FolderOptions, names: Sequence[str]) -> dict[str, str]:
    return {
        "title": options.name,
        "description": f"{len(names)} classes of a user's pictures, made by the STIR recipe",
        "author": "built with equiscale",
        "license": options.license,
        "version": "1.0.0",
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
    }

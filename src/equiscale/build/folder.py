"""A dataset from a user's own pictures."""

from __future__ import annotations

import datetime
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equiscale.build.annotations import find_backgrounds, read_annotations
from equiscale.build.choosing import Choice, build_from_photos, spread_tracks
from equiscale.build.options import Background, SourceFormat, check_num_instances
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import Cutting, Photo, PhotoObject
from equiscale.core.errors import OptionError, SourceError, TooFewInstancesError
from equiscale.core.files import file_hash
from equiscale.core.registry import check_name
from equiscale.core.seeding import numpy_generator
from equiscale.core.spec import STIR_LAYOUT, Layout, Split
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
        source_format: How the pictures are annotated.
        classes: Only these classes, in this order; empty means all.
        num_instances: Objects per class and split; None means as many as every class has.
        layout: Canvas and object sizes.
        background: What is shown beyond a picture's border.
        cutouts: Cut objects out along their transparency; implied by the next two.
        masks: Directory of masks, each with the name of its picture.
        backgrounds: Directory of pictures to put cut-outs on; None means black.
        group_by: Names the group of a picture, which is never split: the number of a folder level
            below the source, from 1, or a regular expression that is searched in the picture's
            path. Its first capture group counts, if it has one.
        grey: One channel instead of three.
        allow_upscaling: Admit objects smaller than the largest object size.
        skip_bad: Leave out damaged pictures and boxes outside their picture, and say so.
        license: Terms of the pictures, for the file's metadata.
        seed: Decides positions and splits.
    """

    name: str
    source_format: SourceFormat = SourceFormat.AUTO
    classes: tuple[str, ...] = ()
    num_instances: int | None = None
    layout: Layout = STIR_LAYOUT
    background: Background = Background.EDGE
    cutouts: bool = False
    masks: Path | None = None
    backgrounds: Path | None = None
    group_by: str = ""
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
        try:
            re.compile(self.group_by)
        except re.error as error:
            raise OptionError(f"group by {self.group_by!r}: {error}") from error

    @property
    def from_cutouts(self) -> bool:
        """Whether objects are cut out along their outlines."""
        return self.cutouts or self.masks is not None or self.backgrounds is not None


def build_folder(
    source: Path, options: FolderOptions, workers: int = 1, progress: Progress = no_progress
) -> StirArrays:
    """Build a dataset from pictures in class folders, or with COCO or YOLO boxes.

    Every object is shown at all object sizes (the longer side of its box), over its own
    surroundings where the picture has them, or cut out over other pictures. No picture and no
    group of pictures is in two splits, not even as a copy.

    Args:
        source: Directory of the pictures.
        options: What the user decided.
        workers: Number of processes; the result does not depend on it.
        progress: Called as `progress(done, total)`, counting pictures.
    """
    annotations = read_annotations(
        source, options.source_format, options.skip_bad, options.from_cutouts, options.masks
    )
    names = _chosen_classes(annotations.class_names, options.classes, source)
    objects = [item for item in annotations.objects if item.label in names]
    if not options.allow_upscaling:
        objects = _large_enough(objects, max(options.layout.sizes))
    squares = [replace(item, box=item.box.square_hull()) for item in objects]
    groups = find_groups(source, squares, options.group_by)

    def choose(usable: list[PhotoObject]) -> Choice:
        return deal_photos(usable, groups, names, options, source)

    cutting = Cutting(
        seed=str(options.seed),
        layout=options.layout,
        background=options.background,
        upright=annotations.upright,
        skip_bad=options.skip_bad,
        channels=1 if options.grey else 3,
        cutouts=options.from_cutouts,
        backgrounds=find_backgrounds(options.backgrounds) if options.backgrounds else (),
    )
    metadata = _metadata(options, names)
    return build_from_photos(
        squares, choose, metadata, cutting, workers, progress, annotations.damaged
    )


def deal_photos(
    objects: Sequence[PhotoObject],
    groups: Mapping[Photo, str],
    names: Sequence[str],
    options: FolderOptions,
    source: Path,
) -> Choice:
    """Choose as many objects of every class in every split, and no group for two splits."""
    parts = _deal_groups(objects, groups, str(options.seed))
    if options.group_by:
        parts = [_alternate(part, groups) for part in parts]
    fewest = min(len(part[name]) for part in parts for name in names)
    count = options.num_instances or fewest
    if not 1 <= count <= fewest:
        counts = (f"{name}: " + "+".join(str(len(part[name])) for part in parts) for name in names)
        raise TooFewInstancesError(
            source,
            f"usable objects per class in train+valid+test: {', '.join(counts)}",
            f"{max(count, 1)} of every class in every split, and no picture in two",
            "--classes a,b leaves out the other classes, --instances asks for fewer",
        )
    slots = {
        (split, label, instance): part[name][instance]
        for split, part in enumerate(parts)
        for label, name in enumerate(names)
        for instance in range(count)
    }
    return Choice(tuple(names), count, slots)


def _deal_groups(
    objects: Sequence[PhotoObject], groups: Mapping[Photo, str], seed: str
) -> list[_Part]:
    """Deal whole groups to the splits, so that every class is spread evenly.

    The groups of the rarest class come first; each goes to the split that has the fewest objects
    of its rarest class so far.
    """
    totals = Counter(item.label for item in objects)
    members: dict[str, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        members[groups[item.photo]].append(item)
    rarest = {key: min((totals[o.label], o.label) for o in found) for key, found in members.items()}
    order = sorted(members)
    numpy_generator(seed, "splits").shuffle(order)
    order.sort(key=rarest.__getitem__)
    parts: list[_Part] = [defaultdict(list) for _ in Split]
    for key in order:
        counts = [len(part[rarest[key][1]]) for part in parts]
        for item in members[key]:
            parts[counts.index(min(counts))][item.label].append(item)
    return parts


def _alternate(part: _Part, groups: Mapping[Photo, str]) -> _Part:
    """Put the largest object of every group first, then the second largest of every group, …."""
    ordered: _Part = defaultdict(list)
    for name, objects in part.items():
        tracks: dict[str, list[PhotoObject]] = defaultdict(list)
        for item in sorted(objects, key=lambda item: (-item.box.width, item.key)):
            tracks[groups[item.photo]].append(item)
        ordered[name] = spread_tracks(tracks.values(), lambda item: item.box.width)
    return ordered


def _chosen_classes(found: Sequence[str], wanted: Sequence[str], source: Path) -> tuple[str, ...]:
    for name in wanted:
        check_name("class", name, found)
    chosen = tuple(dict.fromkeys(wanted or found))
    if len(chosen) == 1:
        raise SourceError(source, f"one class, {chosen[0]!r}", "at least two")
    return chosen


def _large_enough(objects: Sequence[PhotoObject], least: int) -> list[PhotoObject]:
    """Leave out objects that would have to be scaled up, and say how many of each class."""
    small = {item for item in objects if max(item.box.width, item.box.height) < least}
    refused = Counter(item.label for item in small)
    if refused:
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(refused.items()))
        text = "refused %d objects smaller than %d pixels (%s); --allow-upscaling admits them"
        _LOGGER.warning(text, refused.total(), least, counts)
    return [item for item in objects if item not in small]


def find_groups(source: Path, objects: Iterable[PhotoObject], group_by: str) -> dict[Photo, str]:
    """Return the group of every photo: copies of one picture are in one, named groups too."""
    photos = dict.fromkeys(item.photo for item in objects)
    groups = {photo: file_hash(photo.path) for photo in photos}
    if not group_by:
        return groups
    names = {photo: _group_name(photo.path.relative_to(source), group_by) for photo in photos}
    leaders: dict[str, str] = {}  # the group that another one was joined to
    for photo, content in groups.items():
        one, other = _leader(leaders, content), _leader(leaders, f"group {names[photo]}")
        if one != other:
            leaders[one] = other
    return {photo: _leader(leaders, content) for photo, content in groups.items()}


def _leader(leaders: Mapping[str, str], name: str) -> str:
    while name in leaders:
        name = leaders[name]
    return name


def _group_name(place: Path, group_by: str) -> str:
    if group_by.isdecimal():
        folders = place.parts[:-1]
        if not 1 <= int(group_by) <= len(folders):
            raise OptionError(f"group by folder level {group_by}: {place} has {len(folders)}")
        return "/".join(folders[: int(group_by)])
    found = re.search(group_by, place.as_posix())
    if found is None:
        raise OptionError(f"group by {group_by!r}: not found in {place.as_posix()!r}")
    return found[1] if found.re.groups else found[0]


def _metadata(options: FolderOptions, names: Sequence[str]) -> dict[str, str]:
    return {
        "title": options.name,
        "description": f"{len(names)} classes of a user's pictures, made by the STIR recipe",
        "author": "built with equiscale",
        "license": options.license,
        "version": "1.0.0",
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
    }

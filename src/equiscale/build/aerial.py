"""The aerial dataset, from DOTA version 1.5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from equiscale.build.choosing import Choice, build_from_photos, deal_largest
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import BadPictureError, Box, Cutting, Photo, PhotoObject, read_header
from equiscale.build.sources import find_files, index_pictures, open_archive
from equiscale.core.errors import SourceError
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays

_SOURCE_LINE = "imagesource:"
_WANTED_SOURCE = "GoogleEarth"
_MAX_ANGLE = 3.0
_MIN_SURROUNDINGS = 4


@dataclass(frozen=True)
class _Picture:
    photo: Photo
    width: int
    height: int
    colour: bool


def build_aerial(
    source: Path,
    num_instances: int | None = None,
    skip_bad: bool = False,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the dataset from the downloaded archives, which are read in place.

    Args:
        source: Holds `DOTA-v1.5_train.zip`, `DOTA-v1.5_val.zip` and the images' `part*.zip`,
            in any folders.
        num_instances: Objects per class and split; None means the published 25.
        skip_bad: Leave out damaged photos, and say so.
        workers: Number of processes; the result does not depend on it.
        progress: Called as `progress(done, total)`, counting photos.
    """
    card = CARDS["aerial"]
    count = card.num_instances if num_instances is None else num_instances
    labels = [
        find_files(source, f"DOTA-v1.5_{part}.zip", "the labels of train and val")[0]
        for part in ("train", "val")
    ]
    archives = find_files(source, "part*.zip", "the archives of the images")
    objects = list(_read_objects(labels, index_pictures(archives, ".png"), skip_bad))

    def choose(bad: frozenset[Photo]) -> Choice:
        usable = (item for item in objects if item.photo not in bad)
        return deal_largest(usable, _longer_side, count, source)

    cutting = Cutting(seed="aerial", skip_bad=skip_bad)
    return build_from_photos(choose, card.metadata(), cutting, workers, progress)


def _read_objects(
    archives: list[Path], photos: dict[str, Photo], skip_bad: bool
) -> Iterator[PhotoObject]:
    """Yield the upright objects that lie well inside colour images of Google Earth."""
    for path in archives:
        with open_archive(path) as archive:
            for member in archive.namelist():
                name = PurePosixPath(member)
                if name.suffix == ".txt":
                    yield from _read_labels(Photo(path, member), name.stem, photos, skip_bad)


def _read_labels(
    labels: Photo, name: str, photos: dict[str, Photo], skip_bad: bool
) -> Iterator[PhotoObject]:
    lines = _read_lines(labels)
    if not lines or lines[0] != _SOURCE_LINE + _WANTED_SOURCE:
        return
    if name not in photos:
        raise SourceError(labels, f"no {name}.png in the archives", "the image of each label file")
    picture = _measure(photos[name], skip_bad)
    if picture is None or not picture.colour:
        return
    for number, line in enumerate(lines):
        if line and ":" not in line:
            item = _parse_line(labels, line, f"{name}/{number}", picture)
            if item is not None:
                yield item


def _read_lines(labels: Photo) -> list[str]:
    try:
        with labels.open() as file:
            return [line.strip() for line in file.read().decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise SourceError(labels, f"no text ({error.reason})", "ASCII lines") from error


def _measure(photo: Photo, skip_bad: bool) -> _Picture | None:
    """Read size and colour from a picture's header, without decoding it."""
    try:
        width, height, mode = read_header(photo)
    except BadPictureError:
        if skip_bad:
            return None
        raise
    return _Picture(photo, width, height, colour=mode == "RGB")


def _parse_line(labels: Photo, line: str, key: str, picture: _Picture) -> PhotoObject | None:
    """Return the object of a line `x1 y1 … x4 y4 label difficult`, or None if it is unsuitable."""
    words = line.split()
    try:
        numbers = [int(float(word)) for word in words[:8]]
        label = words[8]
    except (ValueError, IndexError, OverflowError) as error:
        raise SourceError(labels, f"the line {line!r}", "x1 y1 … x4 y4 label difficult") from error
    xs, ys = numbers[0::2], numbers[1::2]
    angle = math.degrees(math.atan2(ys[1] - ys[0], xs[1] - xs[0]))
    box = Box(min(xs), min(ys), max(xs), max(ys))
    if abs(angle) >= _MAX_ANGLE or not _lies_well_inside(box, picture):
        return None
    return PhotoObject(picture.photo, box, label, key)


def _lies_well_inside(box: Box, picture: _Picture) -> bool:
    side = max(box.width, box.height)
    inside = box.left >= 0 and box.top >= 0
    inside &= box.right <= picture.width and box.bottom <= picture.height
    return inside and side > 0 and min(picture.width, picture.height) // side > _MIN_SURROUNDINGS


def _longer_side(item: PhotoObject) -> float:
    return max(item.box.width, item.box.height)

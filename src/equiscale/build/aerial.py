"""The aerial dataset, from DOTA version 1.5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from equiscale.build.choosing import Choice, build_from_photos, deal_largest
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import BadPictureError, Box, Cutting, Photo, PhotoObject, read_header
from equiscale.build.sources import find_files, index_members, read_text
from equiscale.core.errors import SourceError
from equiscale.core.spec import STIR_LAYOUT, Layout
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
from equiscale.data.schema import StirArrays

_SOURCE_LINE = "imagesource:"
_WANTED_SOURCE = "GoogleEarth"
_MAX_ANGLE = 3.0
_MIN_SURROUNDINGS = 4


@register_dataset(
    "aerial",
    title="Scaled and Translated Image Recognition (STIR): aerial objects",
    description="Objects in aerial photos, only ever scaled down.",
    num_classes=9,
    num_instances=25,
    channels=3,
    license="CC BY-NC-SA 4.0; photos: DOTA v1.5, Google Earth, for academic use only",
    source="https://captain-whu.github.io/DOTA, version 1.5, zips in place",
    citation=STIR_CITATION,
    date="2022-08-31",
    published=True,
)
def build_aerial(
    source: Path,
    num_instances: int | None = None,
    skip_bad: bool = False,
    layout: Layout = STIR_LAYOUT,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the dataset from the downloaded archives, which are read in place.

    `source` holds `DOTA-v1.5_train.zip`, `DOTA-v1.5_val.zip` and the images' `part*.zip`, in any
    folders. The other arguments are those of every builder, see `equiscale.build`.
    """
    card = CARDS["aerial"]
    count = card.num_instances if num_instances is None else num_instances
    labels = [
        find_files(source, f"DOTA-v1.5_{part}.zip", "the labels of train and val")[0]
        for part in ("train", "val")
    ]
    archives = find_files(source, "part*.zip", "the archives of the images")
    objects, bad = _read_objects(labels, index_members(archives, ".png"), skip_bad)

    def choose(usable: list[PhotoObject]) -> Choice:
        return deal_largest(usable, _longer_side, count, max(layout.sizes), source)

    cutting = Cutting(seed="aerial", layout=layout, skip_bad=skip_bad)
    return build_from_photos(objects, choose, card.metadata(), cutting, workers, progress, bad)


def _read_objects(
    archives: list[Path], photos: dict[str, Photo], skip_bad: bool
) -> tuple[list[PhotoObject], frozenset[Photo]]:
    """Return the suitable objects, and the damaged images that were skipped."""
    objects: list[PhotoObject] = []
    bad: set[Photo] = set()
    for labels in index_members(archives, ".txt").values():
        name = PurePosixPath(labels.member).stem
        if name not in photos:
            raise SourceError(labels, f"no {name}.png in the archives", "the image of each file")
        try:
            objects += _read_labels(labels, photos[name])
        except BadPictureError:
            if not skip_bad:
                raise
            bad.add(photos[name])
    return objects, frozenset(bad)


def _read_labels(labels: Photo, photo: Photo) -> Iterator[PhotoObject]:
    """Yield the upright objects that lie well inside a colour image of Google Earth."""
    lines = [line.strip() for line in read_text(labels).splitlines()]
    if not lines or lines[0] != _SOURCE_LINE + _WANTED_SOURCE:
        return
    width, height, mode = read_header(photo)
    if mode != "RGB":
        return
    for number, line in enumerate(lines):
        if line and ":" not in line:
            label, box, angle = _parse_line(labels, line)
            if abs(angle) < _MAX_ANGLE and _lies_well_inside(box, width, height):
                yield PhotoObject(photo, box, label, f"{labels.member}/{number}")


def _parse_line(labels: Photo, line: str) -> tuple[str, Box, float]:
    """Return label, box and angle of a line `x1 y1 … x4 y4 label difficult`."""
    words = line.split()
    try:
        numbers = [int(float(word)) for word in words[:8]]
        label = words[8]
    except (ValueError, IndexError, OverflowError) as error:
        raise SourceError(labels, f"the line {line!r}", "x1 y1 … x4 y4 label difficult") from error
    xs, ys = numbers[0::2], numbers[1::2]
    angle = math.degrees(math.atan2(ys[1] - ys[0], xs[1] - xs[0]))
    return label, Box(min(xs), min(ys), max(xs), max(ys)), angle


def _lies_well_inside(box: Box, width: int, height: int) -> bool:
    """Tell whether an image holds the whole box and is several times larger."""
    side = max(box.width, box.height)
    inside = box.left >= 0 and box.top >= 0 and box.right <= width and box.bottom <= height
    return inside and side > 0 and min(width, height) // side > _MIN_SURROUNDINGS


def _longer_side(item: PhotoObject) -> float:
    return max(item.box.width, item.box.height)

"""The traffic-sign dataset, from the Mapillary Traffic Sign Dataset, version 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from equiscale.build.choosing import Choice, build_from_photos, deal_largest, shorter_side
from equiscale.build.parallel import Progress, no_progress
from equiscale.build.photos import Box, Cutting, Photo, PhotoObject
from equiscale.build.sources import (
    checked_directory,
    find_files,
    index_members,
    read_json,
    read_text,
)
from equiscale.core.errors import SourceError
from equiscale.core.spec import STIR_LAYOUT, Layout
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
from equiscale.data.schema import StirArrays

_ANNOTATIONS = "mtsd_v2_fully_annotated"
_PARTS = ("train", "val")
_ARCHIVES = ("*train.0.zip", "*train.1.zip", "*train.2.zip", "*val.zip")
_CATCH_ALL = "other-sign"
_MAX_SIDE_DIFFERENCE = 5


@register_dataset(
    "trafficsign",
    title="Scaled and Translated Image Recognition (STIR): traffic signs",
    description="Traffic signs in street photos, only ever scaled down.",
    num_classes=16,
    num_instances=25,
    channels=3,
    license="CC BY-NC-SA 4.0; photos: Mapillary Traffic Sign Dataset",
    source="https://www.mapillary.com/dataset/trafficsign, version 2, fully annotated part, zips "
    "in place",
    citation=STIR_CITATION,
    date="2022-05-24",
    published=True,
)
def build_traffic_sign(
    source: Path,
    num_instances: int | None = None,
    skip_bad: bool = False,
    layout: Layout = STIR_LAYOUT,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the dataset from the downloaded archives, which are read in place.

    `source` holds `mtsd_v2_fully_annotated/` (unpacked) and the four image archives. The other
    arguments are those of every builder, see `equiscale.build`.
    """
    card = CARDS["trafficsign"]
    count = card.num_instances if num_instances is None else num_instances
    archives = [
        path
        for pattern in _ARCHIVES
        for path in find_files(source, pattern, "the image archives train.0, train.1, train.2, val")
    ]
    signs = list(_read_signs(source, index_members(archives, ".jpg")))

    def choose(usable: list[PhotoObject]) -> Choice:
        return deal_largest(usable, shorter_side, count, max(layout.sizes), source)

    cutting = Cutting(seed="trafficsign", layout=layout, stretch=True, skip_bad=skip_bad)
    return build_from_photos(signs, choose, card.metadata(), cutting, workers, progress)


def _read_signs(source: Path, pictures: dict[str, Photo]) -> Iterator[PhotoObject]:
    """Yield the clean, nearly square signs of the annotated photos."""
    root = source / _ANNOTATIONS
    if not root.is_dir():
        root = source
    for part in _PARTS:
        for name in read_text(checked_directory(root / "splits") / f"{part}.txt").split():
            path = root / "annotations" / f"{name}.json"
            for sign in _read_annotation(path, pictures):
                if abs(sign.box.width - sign.box.height) < _MAX_SIDE_DIFFERENCE:
                    yield sign


def _read_annotation(path: Path, pictures: dict[str, Photo]) -> list[PhotoObject]:
    """Return the signs of one photo, without the catch-all class and those with a flag."""
    try:
        found = [
            (entry["label"], entry["key"], _parse_box(entry["bbox"]))
            for entry in read_json(path)["objects"]
            if not any(entry["properties"].values()) and entry["label"] != _CATCH_ALL
        ]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise SourceError(
            path, f"a broken annotation ({error})", "objects with key, label, bbox and properties"
        ) from error
    if found and path.stem not in pictures:
        raise SourceError(path, f"no {path.stem}.jpg in the archives", "its photo")
    return [
        PhotoObject(pictures[path.stem], box, label, f"{path.stem}/{key}")
        for label, key, box in found
    ]


def _parse_box(bbox: dict[str, float]) -> Box:
    first, last = ((bbox[f"x{end}"], bbox[f"y{end}"]) for end in ("min", "max"))
    return Box(*map(math.floor, first), *map(math.ceil, last))

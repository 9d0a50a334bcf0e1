"""Find the objects in a user's pictures: one folder per class, COCO boxes or YOLO boxes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equiscale.build.extras import import_extra
from equiscale.build.options import SourceFormat
from equiscale.build.photos import BadPictureError, Box, BoxError, Photo, PhotoObject, read_sides
from equiscale.build.sources import checked_directory, find_files, read_json, read_text
from equiscale.core.errors import SourceError

_LOGGER = logging.getLogger(__name__)
_PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_ROUNDING = 1.0  # pixels by which a box may leave its picture
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names")


@dataclass(frozen=True)
class Annotations:
    """The objects of a source, and all its classes in order.

    Attributes:
        class_names: The classes.
        objects: The objects.
        upright: Whether boxes are meant on pictures turned as their EXIF data says.
    """

    class_names: tuple[str, ...]
    objects: tuple[PhotoObject, ...]
    upright: bool


@dataclass(frozen=True)
class _Mark:
    """An annotation as it was written: a box in pixels or in fractions, or the whole picture."""

    picture: Path
    label: str
    key: str
    origin: Path
    box: Box | None = None
    in_fractions: bool = False


def read_annotations(
    source: Path, layout: SourceFormat = SourceFormat.AUTO, skip_bad: bool = False
) -> Annotations:
    """Find all objects of a source.

    Args:
        source: Directory of the pictures.
        layout: How they are annotated; by default this is found out.
        skip_bad: Leave out damaged pictures and boxes outside their picture, and say so.
    """
    checked_directory(source)
    if layout is SourceFormat.AUTO:
        layout = _detect(source)
    readers = {
        SourceFormat.FOLDERS: _read_folders,
        SourceFormat.COCO: _read_coco,
        SourceFormat.YOLO: _read_yolo,
    }
    class_names, marks = readers[layout](source)
    upright = layout is not SourceFormat.COCO
    objects = _locate_all(marks, upright, skip_bad)
    if not objects:
        raise SourceError(source, "no objects", "one sub-folder of pictures per class, or boxes")
    return Annotations(tuple(class_names), tuple(objects), upright)


def _detect(source: Path) -> SourceFormat:
    if _coco_files(source):
        return SourceFormat.COCO
    if (source / "labels").is_dir() and (source / "images").is_dir():
        return SourceFormat.YOLO
    return SourceFormat.FOLDERS


def _pictures_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _PICTURES)


def _read_folders(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each picture is an object of the class that its folder names."""
    folders = sorted(path for path in source.iterdir() if path.is_dir() and path.name[0] != ".")
    marks = [
        _Mark(path, folder.name, path.relative_to(source).as_posix(), path)
        for folder in folders
        for path in _pictures_below(folder)
    ]
    return [folder.name for folder in folders], marks


def _coco_files(source: Path) -> list[Path]:
    return sorted([*source.glob("*.json"), *(source / "annotations").glob("*.json")])


def _read_coco(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each annotation that is not a crowd is an object."""
    files = _coco_files(source)
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise SourceError(source, f"the JSON files {found}", "one file with all the boxes")
    content = read_json(files[0])
    try:
        classes = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        pictures = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
        marks = [
            _Mark(
                picture=_find_picture(source, pictures[entry["image_id"]], files[0]),
                label=classes[entry["category_id"]],
                key=f"annotation {entry['id']}",
                origin=files[0],
                box=_coco_box(entry["bbox"]),
            )
            for entry in content["annotations"]
            if not entry.get("iscrowd")
        ]
        names = [classes[key] for key in sorted(classes)]
    except SourceError:
        raise
    except _MALFORMED as error:
        raise SourceError(
            files[0], f"broken COCO data ({error!r})", "images, annotations and categories"
        ) from error
    return names, marks


def _find_picture(source: Path, name: str, origin: Path) -> Path:
    for place in (source / name, source / "images" / name, origin.parent / name):
        if place.is_file():
            return place
    raise SourceError(origin, f"no picture {name}", f"it in {source} or {source / 'images'}")


def _coco_box(numbers: list[float]) -> Box:
    left, top, width, height = map(float, numbers)
    return Box(left, top, left + width, top + height)


def _read_yolo(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each line of `labels/…/NAME.txt` is an object of the picture `images/…/NAME`."""
    names = _yolo_classes(source)
    pictures = {
        path.relative_to(source / "images").with_suffix(""): path
        for path in _pictures_below(checked_directory(source / "images"))
    }
    marks = []
    for path in find_files(source / "labels", "*.txt", "one text file per picture"):
        if path.name != "classes.txt":
            stem = path.relative_to(source / "labels").with_suffix("")
            if stem not in pictures:
                raise SourceError(path, f"no picture {stem} in {source / 'images'}", "one")
            marks += _yolo_marks(path, pictures[stem], names)
    return names, marks


def _yolo_classes(source: Path) -> list[str]:
    """Read the class names from `data.yaml` or a text file with one per line."""
    for path in sorted([*source.glob("*.yaml"), *source.glob("*.yml")]):
        yaml: Any = import_extra("yaml", "pyyaml")
        try:
            names = yaml.safe_load(read_text(path))["names"]
            ordered = [names[key] for key in sorted(names)] if isinstance(names, dict) else names
            return [str(name) for name in ordered]
        except (yaml.YAMLError, *_MALFORMED) as error:
            raise SourceError(path, f"no class names ({error})", "a list `names`") from error
    for name in _CLASS_FILES:
        if (source / name).is_file():
            return [line.strip() for line in read_text(source / name).splitlines() if line.strip()]
    raise SourceError(source, "no class names", "data.yaml or classes.txt")


def _yolo_marks(path: Path, picture: Path, names: list[str]) -> list[_Mark]:
    marks = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if words:
            try:
                label = dict(enumerate(names))[int(words[0])]
                box = _yolo_box([float(word) for word in words[1:]])
            except (ValueError, KeyError) as error:
                expected = f"a class 0…{len(names) - 1}, then x y width height as fractions"
                raise SourceError(path, f"{line!r} in line {number}", expected) from error
            key = f"{picture.name}, line {number}"
            marks.append(_Mark(picture, label, key, path, box, in_fractions=True))
    return marks


def _yolo_box(numbers: list[float]) -> Box:
    """Return the box of `x y width height` (centre first), or around a polygon's points."""
    if len(numbers) == 4:
        x, y, width, height = numbers
        return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(f"{len(numbers)} numbers")
    return Box(min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))


def _locate_all(marks: list[_Mark], upright: bool, skip_bad: bool) -> list[PhotoObject]:
    """Turn annotations into boxes in the pixels of their pictures, reading each header once."""
    sides: dict[Path, tuple[int, int]] = {}
    objects, skipped = [], []
    for mark in marks:
        try:
            if mark.picture not in sides:
                sides[mark.picture] = read_sides(Photo(mark.picture), upright)
            box = _pixel_box(mark, *sides[mark.picture])
        except (BadPictureError, BoxError) as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
        else:
            objects.append(PhotoObject(Photo(mark.picture), box, mark.label, mark.key))
    if skipped:
        _LOGGER.warning("skipped %d: %s", len(skipped), "; ".join(skipped))
    return objects


def _pixel_box(mark: _Mark, width: int, height: int) -> Box:
    """Return the box in pixels, moved inside the picture where only rounding put it outside."""
    if mark.box is None:
        return Box(0, 0, width, height)
    fx, fy = (width, height) if mark.in_fractions else (1, 1)
    given = mark.box
    box = Box(given.left * fx, given.top * fy, given.right * fx, given.bottom * fy)
    inside = Box(
        max(box.left, 0.0), max(box.top, 0.0), min(box.right, width), min(box.bottom, height)
    )
    moved = max(
        abs(getattr(box, side) - getattr(inside, side))
        for side in ("left", "top", "right", "bottom")
    )
    if not (moved <= _ROUNDING and inside.width >= 1 and inside.height >= 1):
        found = (
            f"{mark.key}: box from ({box.left:g}, {box.top:g}) to ({box.right:g}, {box.bottom:g})"
        )
        raise BoxError(mark.origin, found, f"a box inside {mark.picture.name}, {width}×{height}")
    return inside

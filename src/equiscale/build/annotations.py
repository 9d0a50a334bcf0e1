"""Find the objects in a user's pictures: one folder per class, COCO boxes or YOLO boxes."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from equiscale.build.extras import import_extra
from equiscale.build.options import SourceFormat
from equiscale.build.photos import (
    BadPictureError,
    Box,
    BoxError,
    Photo,
    PhotoObject,
    find_outline,
    read_sides,
)
from equiscale.build.sources import checked_directory, find_files, read_json, read_text
from equiscale.core.errors import OptionError, SourceError

_LOGGER = logging.getLogger(__name__)
_PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_ROUNDING = 1.0  # pixels by which a box may leave its picture
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
_FORMAT_ADVICE = "if it is no COCO file, say --format folders or --format yolo"
_CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names")


@dataclass(frozen=True)
class Annotations:
    """The objects of a source, and all its classes in order.

    Attributes:
        class_names: The classes.
        objects: The objects.
        upright: Whether boxes are meant on pictures turned as their EXIF data says.
        damaged: The pictures that were left out.
    """

    class_names: tuple[str, ...]
    objects: tuple[PhotoObject, ...]
    upright: bool
    damaged: frozenset[Photo] = frozenset()


@dataclass(frozen=True)
class _Mark:
    """An annotation as it was written: a box in pixels or in fractions, or the whole picture."""

    picture: Path
    label: str
    place: str
    origin: Path
    box: Box | None = None
    in_fractions: bool = False
    mask: Path | None = None

    @property
    def photo(self) -> Photo:
        return Photo(self.picture, mask=self.mask)


def read_annotations(
    source: Path,
    source_format: SourceFormat = SourceFormat.AUTO,
    skip_bad: bool = False,
    cutouts: bool = False,
    masks: Path | None = None,
    labelled: bool = True,
) -> Annotations:
    """Find all objects of a source.

    Args:
        source: Directory of the pictures.
        source_format: How they are annotated; by default this is detected.
        skip_bad: Leave out damaged pictures and boxes outside their picture, and say so.
        cutouts: Objects are what is not transparent; needs one folder per class.
        masks: Directory of masks: each has the name of its picture.
        labelled: Whether folders name classes; otherwise every picture below the source is an
            object of the class "".
    """
    checked_directory(source)
    if source_format is SourceFormat.AUTO:
        source_format = detect_format(source)
    if cutouts and source_format is not SourceFormat.FOLDERS:
        raise OptionError(f"cut-outs need one folder per class, not {source_format.value} boxes")
    readers = {
        SourceFormat.FOLDERS: _read_folders if labelled else _read_unlabelled,
        SourceFormat.COCO: _read_coco,
        SourceFormat.YOLO: _read_yolo,
    }
    class_names, marks = readers[source_format](source)
    upright = source_format is not SourceFormat.COCO
    if not marks:
        raise SourceError(source, "no objects", "one sub-folder of pictures per class, or boxes")
    if masks is not None:
        marks = _with_masks(source, marks, masks)
    objects, damaged = _locate_all(source, marks, upright, skip_bad, cutouts)
    return Annotations(tuple(class_names), tuple(objects), upright, damaged)


def detect_format(source: Path) -> SourceFormat:
    """Return how the pictures of a source are annotated."""
    if _coco_files(source):
        return SourceFormat.COCO
    if (source / "labels").is_dir() and (source / "images").is_dir():
        return SourceFormat.YOLO
    return SourceFormat.FOLDERS


def pictures_below(folder: Path) -> list[Path]:
    """Return the pictures in a folder and all below it, sorted."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in _PICTURES)
    return sorted(path for path in found if path.is_file())


def find_backgrounds(directory: Path) -> tuple[Photo, ...]:
    """Return the pictures of a directory to put objects on; there must be one."""
    found = tuple(Photo(path) for path in pictures_below(checked_directory(directory)))
    if not found:
        raise SourceError(directory, "no pictures", "at least one background")
    return found


def _read_folders(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each picture is an object of the class that its folder names."""
    folders = sorted(path for path in source.iterdir() if path.is_dir() and path.name[0] != ".")
    marks = [
        _Mark(path, folder.name, "whole picture", path)
        for folder in folders
        for path in pictures_below(folder)
    ]
    return [folder.name for folder in folders], marks


def _read_unlabelled(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each picture is an object, wherever it is."""
    return [""], [_Mark(path, "", "whole picture", path) for path in pictures_below(source)]


def _with_masks(source: Path, marks: list[_Mark], masks: Path) -> list[_Mark]:
    """Find the mask of each picture: at its place below `masks`, or by its name alone."""
    paths = pictures_below(checked_directory(masks))
    found = {path.stem: path for path in paths}
    found |= {path.relative_to(masks).with_suffix("").as_posix(): path for path in paths}
    masked = []
    for mark in marks:
        place = mark.picture.relative_to(source).with_suffix("").as_posix()
        mask = found.get(place) or found.get(mark.picture.stem)
        if mask is None:
            raise SourceError(masks, f"no mask of {place}", "a picture of the same name")
        masked.append(replace(mark, mask=mask))
    return masked


def _coco_files(source: Path) -> list[Path]:
    return sorted([*source.glob("*.json"), *(source / "annotations").glob("*.json")])


def _read_coco(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each annotation that is not a crowd is an object."""
    files = _coco_files(source)
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        expected = "one file with all the boxes"
        raise SourceError(source, f"the JSON files {found}", expected, _FORMAT_ADVICE)
    content, entry, marks = read_json(files[0]), None, []
    try:
        classes = _coco_table(content["categories"], "name", files[0])
        pictures = _coco_table(content["images"], "file_name", files[0])
        for entry in content["annotations"]:
            if not entry.get("iscrowd"):
                mark = _Mark(
                    picture=_find_picture(source, pictures[entry["image_id"]], files[0]),
                    label=classes[entry["category_id"]],
                    place=f"annotation {entry['id']}",
                    origin=files[0],
                    box=_coco_box(entry["bbox"]),
                )
                marks.append(mark)
        names = _checked_names([classes[key] for key in sorted(classes)], files[0])
    except SourceError:
        raise
    except _MALFORMED as error:
        place = "" if entry is None else f" in annotation {str(entry)[:200]}"
        found, expected = f"broken COCO data ({error!r}{place})", "images, annotations, categories"
        raise SourceError(files[0], found, expected, _FORMAT_ADVICE) from error
    return names, marks


def _coco_table(entries: Sequence[Any], field: str, origin: Path) -> dict[Any, str]:
    """Return a field of COCO's entries by their ids."""
    _refuse_repeated((entry["id"] for entry in entries), "id", origin)
    return {entry["id"]: str(entry[field]) for entry in entries}


def _find_picture(source: Path, name: str, origin: Path) -> Path:
    """Return a picture inside the source; a name or link that leads out of it is an error."""
    for folder in (source, source / "images", origin.parent):
        place = source / os.path.relpath(folder / name, source)
        if _is_inside(place, source):
            return place
    raise SourceError(origin, f"no picture {name[:200]}", f"it in {source} or {source / 'images'}")


def _is_inside(path: Path, source: Path) -> bool:
    try:
        return path.is_file() and path.resolve().is_relative_to(source.resolve())
    except OSError:  # a name that no file can have
        return False


def _coco_box(numbers: list[float]) -> Box:
    left, top, width, height = map(float, numbers)
    return Box(left, top, left + width, top + height)


def _read_yolo(source: Path) -> tuple[list[str], list[_Mark]]:
    """Each line of `labels/…/NAME.txt` is an object of the picture `images/…/NAME`."""
    names = _yolo_classes(source)
    pictures = {
        path.relative_to(source / "images").with_suffix(""): path
        for path in pictures_below(checked_directory(source / "images"))
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
        return _checked_names(_yaml_names(path), path)
    for path in (source / name for name in _CLASS_FILES):
        if path.is_file():
            lines = (line.strip() for line in read_text(path).splitlines())
            return _checked_names([line for line in lines if line], path)
    raise SourceError(source, "no class names", "data.yaml or classes.txt")


def _yaml_names(path: Path) -> list[str]:
    """Return `names`, a list or a name for each number from 0, all of them as written."""
    yaml: Any = import_extra("yaml", "pyyaml")
    expected = "a list `names`, or numbers from 0 with a name each"
    try:
        names = yaml.load(read_text(path), Loader=yaml.BaseLoader)["names"]  # knows only texts
        if isinstance(names, dict):
            names = [names[str(number)] for number in range(len(names))]
    except (yaml.YAMLError, *_MALFORMED) as error:
        reason = " ".join(str(error).split())
        raise SourceError(path, f"no class names ({reason})", expected) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SourceError(path, f"the class names {names!r}", expected)
    return names


def _checked_names(names: list[str], origin: Path) -> list[str]:
    _refuse_repeated(names, "class name", origin)
    return names


def _refuse_repeated(values: Iterable[object], what: str, origin: Path) -> None:
    repeated = [str(value) for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise SourceError(origin, f"the {what} {', '.join(repeated)} repeatedly", "each once")


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
            marks.append(_Mark(picture, label, f"line {number}", path, box, in_fractions=True))
    return marks


def _yolo_box(numbers: list[float]) -> Box:
    """Return the box of `x y width height` (centre first), or around a polygon's points."""
    if len(numbers) == 4:
        x, y, width, height = numbers
        return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(f"{len(numbers)} numbers")
    return Box(min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))


def _locate_all(
    source: Path, marks: list[_Mark], upright: bool, skip_bad: bool, cutouts: bool
) -> tuple[list[PhotoObject], frozenset[Photo]]:
    """Turn annotations into boxes in the pixels of their pictures; also return damaged pictures.

    The key of an object is where its picture is, and its number there.
    """
    areas: dict[Photo, Box | None] = {}  # None is damaged
    for photo in dict.fromkeys(mark.photo for mark in marks):
        try:
            measure = find_outline if cutouts else _whole_picture
            areas[photo] = measure(photo, upright)
        except BadPictureError:
            if not skip_bad:
                raise
            areas[photo] = None
    objects, outside, seen = [], [], Counter[Path]()
    for mark in marks:
        seen[mark.picture] += 1
        key = f"{mark.picture.relative_to(source).as_posix()}/{seen[mark.picture]}"
        area = areas[mark.photo]
        try:
            if area is not None:
                box = _pixel_box(mark, area)
                objects.append(PhotoObject(mark.photo, box, mark.label, key))
        except BoxError as error:
            if not skip_bad:
                raise
            outside.append(str(error))
    if outside:
        _LOGGER.warning("skipped %d outside their picture: %s", len(outside), "; ".join(outside))
    return objects, frozenset(photo for photo, area in areas.items() if area is None)


def _whole_picture(photo: Photo, upright: bool) -> Box:
    return Box(0, 0, *read_sides(photo, upright))


def _pixel_box(mark: _Mark, area: Box) -> Box:
    """Return the box in pixels, moved inside the picture where only rounding put it outside."""
    if mark.box is None:
        return area
    width, height = int(area.width), int(area.height)
    fx, fy = (width, height) if mark.in_fractions else (1, 1)
    given = mark.box
    box = Box(given.left * fx, given.top * fy, given.right * fx, given.bottom * fy)
    inside = Box(
        max(box.left, 0.0), max(box.top, 0.0), min(box.right, width), min(box.bottom, height)
    )
    moved = max(abs(a - b) for a, b in zip(astuple(box), astuple(inside), strict=True))
    if not (moved <= _ROUNDING and inside.width >= 1 and inside.height >= 1):
        found = (
            f"{mark.place}: box from ({box.left:g}, {box.top:g}) to ({box.right:g}, {box.bottom:g})"
        )
        raise BoxError(mark.origin, found, f"a box inside {mark.picture.name}, {width}×{height}")
    return inside

"""Where and how objects are shown, against the definition of object size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equiscale.build.options import Background
from equiscale.build.photos import Box, PhotoObject, decode, resample
from equiscale.core.errors import OptionError, SourceError
from equiscale.probing.pictures import (
    Pictures,
    Pixels,
    Renderer,
    Rendering,
    check_background,
    read_pictures,
)

CANVAS = 64


def show(
    pictures: Pictures, background: str, sizes: tuple[int, ...] = (16, 32, 64), places: int = 2
) -> list[Pixels]:
    rendering = Rendering(CANVAS, sizes, places, background)
    shown = Renderer(pictures, rendering).render(pictures.objects[0])
    assert shown is not None
    return shown


def with_box(pictures: Pictures, box: Box) -> Pictures:
    item = pictures.objects[0]
    objects = (PhotoObject(item.photo, box, "", item.key),)
    return Pictures(pictures.source, (), objects, upright=True)


@pytest.fixture
def cutout(tmp_path: Path) -> Pictures:
    """A red ellipse, 60 by 30 pixels, in a transparent picture."""
    pixels = np.zeros((100, 100, 4), np.uint8)
    y, x = np.mgrid[0:100, 0:100] + 0.5
    pixels[((x - 50) / 30) ** 2 + ((y - 40) / 15) ** 2 < 1] = (255, 0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "ellipse.png")
    return read_pictures(tmp_path, cutouts=True)


def find_red(image: Pixels) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of what is more red than grey."""
    rows, columns = np.nonzero(image[..., 0].astype(int) - image[..., 1] > 90)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_the_longer_side_of_an_object_is_its_size_at_every_place(cutout: Pictures) -> None:
    shown = show(cutout, "plain", places=8)
    assert [images.shape for images in shown] == [(8, 64, 64, 3), (8, 64, 64, 3), (1, 64, 64, 3)]
    for size, images in zip((16, 32, 64), shown, strict=True):
        boxes = [find_red(image) for image in images]
        for left, top, right, bottom in boxes:
            assert right - left == pytest.approx(size, abs=1)
            assert bottom - top == pytest.approx(size / 2, abs=1)
        assert len(set(boxes)) == (1 if size == 64 else 8)
    assert (shown[0][0][0, 0] == 127).all()
    assert check_background(None, cutout) == "plain"


def test_what_is_shown_does_not_depend_on_the_other_sizes_and_places(cutout: Pictures) -> None:
    first = show(cutout, "plain", (16, 32, 64), places=2)
    again = show(cutout, "plain", (32, 48, 64), places=3)
    assert (first[1] == again[0][:2]).all()
    assert (first[2] == again[2]).all()


@pytest.mark.parametrize("size", [16, 40])
def test_surroundings_are_those_of_the_picture(gradient: Path, size: int) -> None:
    pictures = with_box(read_pictures(gradient), Box(180.0, 100.0, 240.0, 160.0))
    (image,) = show(pictures, "own", (size, 64), places=1)[0]
    zoom = size / 60
    corner = image[0, 0, :2] * np.array([399, 299]) / 255  # colours tell the place
    x, y = corner - 0.5 / zoom + 0.5
    left, top = round((180 - x) * zoom), round((100 - y) * zoom)
    x, y = 180 - left / zoom, 100 - top / zoom
    window = Box(x, y, x + CANVAS / zoom, y + CANVAS / zoom)
    photo = decode(pictures.objects[0].photo)
    expected = np.asarray(resample(photo, window, CANVAS, Background.EDGE))
    assert np.abs(expected.astype(int) - image).max() <= 2
    assert 0 <= left <= CANVAS - size
    assert 0 <= top <= CANVAS - size


def test_beyond_the_picture_its_edge_is_repeated_without_much_memory(gradient: Path) -> None:
    pictures = read_pictures(gradient)
    for background in ("own", "edge"):
        (image,) = show(pictures, background, (8, 64), places=1)[0]
        assert (image[0] == image[1]).all() or (image[-1] == image[-2]).all()
        assert len(np.unique(image[..., 0])) > 4
    full = show(pictures, "own")[2][0]
    assert (full[0] == full[7]).all()  # 400×300: eight pixels above and below
    assert (full[8] != full[9]).any()


def test_backgrounds_come_from_a_folder_and_stay_with_their_place(
    cutout: Pictures, tmp_path: Path
) -> None:
    folder = tmp_path / "behind"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (90, 70), (0, 0, 50 * number)).save(folder / f"{number}.png")
    small, large, _ = show(cutout, str(folder), places=6)
    corners = {tuple(image[0, 0]) for image in small}
    assert len(corners) > 1
    assert [tuple(i[0, 0]) for i in small] == [tuple(i[0, 0]) for i in large]


def test_full_size_beyond_the_canvas_shows_the_central_part(gradient: Path) -> None:
    rendering = Rendering(CANVAS, (32, 128), 1, "own")
    pictures = read_pictures(gradient)
    shown = Renderer(pictures, rendering).render(pictures.objects[0])
    assert shown is not None
    middle = np.asarray(decode(pictures.objects[0].photo).crop((100, 50, 300, 250)))
    expected = np.asarray(Image.fromarray(middle).resize((64, 64), Image.Resampling.LANCZOS))
    assert np.abs(shown[1][0].astype(int) - expected).mean() < 1


def test_pictures_are_found_by_class_or_without_labels(squares: Path) -> None:
    labelled = read_pictures(squares, limit=6)
    assert labelled.class_names == ("blue", "green", "red")
    assert sorted(labelled.labels) == [0, 0, 1, 1, 2, 2]  # evenly from all classes
    flat = read_pictures(squares / "red")
    assert (flat.class_names, flat.labels, len(flat.objects)) == ((), [], 4)
    assert len(read_pictures(squares, labelled=False).objects) == 12


def test_boxes_of_coco_are_objects(gradient: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes((gradient / "photo.png").read_bytes())
    content = {
        "images": [{"id": 1, "file_name": "photo.png"}],
        "categories": [{"id": 1, "name": "left"}, {"id": 2, "name": "right"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": c, "bbox": [x, 50, side, side]}
            for n, c, x, side in ((1, 1, 10, 80), (2, 2, 300, 90), (3, 2, 200, 20))
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    pictures = read_pictures(tmp_path)
    assert pictures.class_names == ("left", "right")
    assert (len(pictures.objects), pictures.too_small) == (2, 1)
    assert check_background(None, pictures) == "own"
    assert check_background(None, read_pictures(gradient)) == "blur"


def test_bad_sources_are_refused(squares: Path, cutout: Pictures, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no objects"):
        read_pictures(tmp_path / "empty")
    with pytest.raises(SourceError, match="nothing, expected a directory"):
        read_pictures(tmp_path / "absent")
    with pytest.raises(OptionError, match="unknown format 'voc'"):
        read_pictures(squares, "voc")
    only = tmp_path / "only"
    (only / "red").mkdir(parents=True)
    Image.new("RGB", (50, 50)).save(only / "red" / "0.png")
    with pytest.raises(SourceError, match="one class, 'red', expected at least two"):
        read_pictures(only)
    assert read_pictures(squares, limit=1).shown_classes == ["blue"]
    with pytest.raises(SourceError, match=r"no objects \(0 too small, 12 damaged\)"):
        read_pictures(squares, cutouts=True, skip_bad=True)
    with pytest.raises(OptionError, match="'sky': expected own, edge, blur, plain, or a directory"):
        check_background("sky", read_pictures(squares))
    with pytest.raises(OptionError, match="cut-outs have no surroundings"):
        check_background("own", cutout)
    with pytest.raises(SourceError, match="no pictures"):
        check_background(tmp_path / "empty", cutout)

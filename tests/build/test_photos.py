from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from equiscale.build.options import Background
from equiscale.build.photos import (
    BadPictureError,
    Box,
    Cutting,
    Photo,
    PhotoObject,
    cut_object,
    decode,
    draw_offset,
    read_sides,
    resample,
)
from equiscale.core.spec import OBJECT_SIZES


def make_object(box: Box) -> PhotoObject:
    return PhotoObject(Photo(Path("photo.jpg")), box, "thing", "photo/0")


def test_object_is_where_its_position_says(photo: Image.Image) -> None:
    """In a linear gradient a pixel's colour tells where in the photo it was."""
    box = Box(150, 100, 228, 178)
    cutouts = cut_object(photo, make_object(box), Cutting(seed="a"))
    for image, (left, top), size in zip(
        cutouts.images, cutouts.positions, OBJECT_SIZES, strict=True
    ):
        red, green, _ = image.astype(float).transpose(2, 0, 1)
        zoom = size / 78
        x = 150 + (np.arange(64) + 0.5 - left) / zoom - 0.5
        y = 100 + (np.arange(64) + 0.5 - top) / zoom - 0.5
        assert np.abs(red[32] - x * 255 / 399).max() < 2
        assert np.abs(green[:, 32] - y * 255 / 299).max() < 2


@given(
    start=st.floats(0, 500),
    length=st.floats(64, 300),
    rest=st.floats(0, 500),
    size=st.sampled_from(OBJECT_SIZES),
    seed=st.integers(0, 99),
)
def test_object_stays_on_the_canvas_and_the_canvas_in_the_photo(
    start: float, length: float, rest: float, size: int, seed: int
) -> None:
    side = int(start + length + rest) + 1
    zoom = size / length
    offset = draw_offset(start, start + length, zoom, side, 64, np.random.default_rng(seed))
    assert 0 <= offset <= 64 - size
    if side * zoom >= 66:  # there is a whole pixel of room, so rounding cannot forbid it
        assert start - offset / zoom >= -1e-3
        assert start + (64 - offset) / zoom <= side + 1e-3


def test_resampling_a_part_equals_resampling_the_whole_and_is_antialiased() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8))
    whole = noise.resize((128, 128), Image.Resampling.LANCZOS)
    part = resample(noise, Box(40, 60, 168, 188), 64, Background.EDGE)
    expected = np.asarray(whole)[30:94, 20:84].astype(int)
    assert np.abs(np.asarray(part).astype(int) - expected).max() <= 1
    stripes = Image.fromarray(np.indices((640, 640)).sum(axis=0).astype(np.uint8) % 2 * 255)
    shown = resample(stripes.convert("RGB"), Box(0, 0, 640, 640), 64, Background.EDGE)
    assert np.ptp(np.asarray(shown)[8:-8, 8:-8].astype(int)) <= 2  # a checkerboard becomes grey


@pytest.mark.parametrize(("background", "value"), [(Background.EDGE, 200), (Background.PLAIN, 0)])
def test_beyond_the_border(background: Background, value: int) -> None:
    white = Image.new("RGB", (100, 100), (200, 200, 200))
    shown = np.asarray(resample(white, Box(-100, -100, 156, 156), 64, background))
    assert (shown[:20, :20] == value).all()
    assert (shown[32:44, 32:44] == 200).all()
    assert (shown[-8:, -8:] == value).all()


def test_large_photos_are_extended_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    small, large = Image.fromarray(pixels), Image.new("RGB", (2000, 1500))
    window = Box(-700.3, -1100.9, 900.2, 499.6)
    for background in Background:
        at_once = np.asarray(resample(small, window, 64, background))
        monkeypatch.setattr("equiscale.build.photos._PIXELS_AT_ONCE", 0)
        assert np.array_equal(np.asarray(resample(small, window, 64, background)), at_once)
        monkeypatch.undo()
    tracemalloc.start()
    resample(large, Box(-7000, -7000, 9000, 9000), 224, Background.EDGE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6  # the extended photo has more than 768 MB


def test_transparency_palette_and_grey_become_rgb(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA", "L", "P", "1", "CMYK"):
        path = tmp_path / f"{mode}.tif"
        Image.new(mode, (5, 4)).save(path)
        assert (decode(Photo(path)).mode, decode(Photo(path)).size) == ("RGB", (5, 4))
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert not np.asarray(decode(Photo(tmp_path / "clear.png"))).any()


def test_exif_orientation_is_followed_on_request(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(path, exif=exif)
    assert decode(Photo(path), upright=True).size == (20, 40) == read_sides(Photo(path), True)
    assert decode(Photo(path)).size == (40, 20) == read_sides(Photo(path), False)


def test_damaged_pictures_are_named(tmp_path: Path, photo: Image.Image) -> None:
    path = tmp_path / "cut.jpg"
    photo.save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(BadPictureError, match=r"cut\.jpg: found a damaged picture"):
        decode(Photo(path))
    path.write_bytes(b"no picture")
    with pytest.raises(BadPictureError):
        decode(Photo(path))
    Image.new("I;16", (5, 5)).save(tmp_path / "deep.png")
    with pytest.raises(BadPictureError, match="8 bits per channel"):
        decode(Photo(tmp_path / "deep.png"))
    Image.new("1", (13_000, 13_000)).save(tmp_path / "large.png")  # as RGB, a gigabyte
    with pytest.raises(BadPictureError, match="169000000 pixels"):
        decode(Photo(tmp_path / "large.png"))

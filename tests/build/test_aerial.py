from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equiscale.build.aerial import build_aerial
from equiscale.build.photos import BadPictureError
from equiscale.core.errors import SourceError, TooFewInstancesError
from equiscale.data.schema import StirArrays

COLOURS = {"plane": (220, 220, 220), "ship": (150, 60, 20)}


def line(left: int, top: int, width: int, height: int, label: str, lean: int = 0) -> str:
    right, bottom = left + width, top + height
    corners = (left, top, right, top + lean, right, bottom, left, bottom)
    return " ".join(f"{number}.0" for number in corners) + f" {label} 0"


def png(objects: list[tuple[int, int, int, int, str]], mode: str) -> bytes:
    image = Image.new("RGB", (400, 360), (20, 60, 120))
    for left, top, width, height, label in objects:
        image.paste(COLOURS[label], (left, top, left + width, top + height))
    file = io.BytesIO()
    image.convert(mode).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images with a plane and a ship each, among others that must be left out."""
    root = tmp_path_factory.mktemp("dota")
    for part, count in (("train", 3), ("val", 1)):
        (root / part).mkdir()
        for number in range(1, count + 1):
            zipfile.ZipFile(root / part / f"part{number}.zip", "w").close()
    labels = {
        part: zipfile.ZipFile(root / part / f"DOTA-v1.5_{part}.zip", "w")
        for part in ("train", "val")
    }
    for index in range(9):
        part = "train" if index < 6 else "val"
        name = f"P{index:04d}"
        objects = [(40, 60, 70 - index, 66, "plane"), (200, 150, 40, 71 - index // 2, "ship")]
        lines = ["imagesource:GoogleEarth" if index != 7 else "imagesource:GF", "gsd:0.1"]
        lines += [line(*item) for item in objects]
        lines += [
            line(100, 100, 71, 71, "plane", lean=9),  # rotated
            line(0, 0, 90, 90, "plane"),  # too large for its image
            line(380, 0, 70, 70, "plane"),  # leaves its image
        ]
        labels[part].writestr(f"{name}.txt", "\n".join(lines) + "\n")
        archive = root / part / f"part{index % 3 + 1 if part == 'train' else 1}.zip"
        with zipfile.ZipFile(archive, "a") as images:
            images.writestr(f"images/{name}.png", png(objects, "L" if index == 8 else "RGB"))
    for file in labels.values():
        file.close()
    return root


@pytest.fixture(scope="module")
def aerial(intact: Path) -> StirArrays:
    return build_aerial(intact, num_instances=2)


def test_the_longer_side_is_the_object_size(aerial: StirArrays) -> None:
    for split, row, label, instance in np.ndindex(3, 48, 2, 2):
        image = aerial.images[split, row, label, instance].astype(int)
        colour = COLOURS[aerial.class_names[label]]
        rows, columns = np.nonzero(np.abs(image - colour).max(axis=-1) < 60)
        left, top = aerial.positions[split, row, label, instance]
        assert abs(columns.min() - left) <= 1
        assert abs(rows.min() - top) <= 1
        assert abs(max(np.ptp(rows), np.ptp(columns)) + 1 - (64 - row)) <= 2


def test_only_suitable_objects_count(source: Path) -> None:
    with pytest.raises(TooFewInstancesError, match="plane: 7, ship: 7, expected 9 of a class"):
        build_aerial(source, num_instances=3)


def rewrite(archive: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(archive) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(archive, "w") as file:
        for name, old in members.items():
            file.writestr(name, content if name == member else old)


@pytest.mark.parametrize("length", [10, 120])  # no header; a header but no data
def test_damaged_image_is_named_or_skipped(
    source: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    archive = source / "train" / "part1.zip"
    with zipfile.ZipFile(archive) as file:
        content = file.read("images/P0000.png")
    rewrite(archive, "images/P0000.png", content[:length])
    with pytest.raises(BadPictureError, match=r"part1\.zip:images/P0000\.png"):
        build_aerial(source, num_instances=2)
    assert build_aerial(source, num_instances=1, skip_bad=True).num_classes == 2
    assert "skipped 1 damaged" in caplog.text
    assert "P0000.png" in caplog.text


@pytest.mark.parametrize("bad", ["a b c d e f g h plane 0", "1 2 3 4 5 6 7 8"])
def test_broken_label_line_is_quoted(source: Path, bad: str) -> None:
    text = f"imagesource:GoogleEarth\ngsd:0.1\n{bad}\n".encode()
    rewrite(source / "val" / "DOTA-v1.5_val.zip", "P0006.txt", text)
    with pytest.raises(SourceError, match=rf"P0006\.txt: found the line '{bad}'"):
        build_aerial(source, num_instances=2)


def test_other_archives_of_the_download_do_not_matter(source: Path, aerial: StirArrays) -> None:
    """The release also has upright boxes of the same names, and test images without labels."""
    labels = source / "train" / "DOTA-v1.5_train_hbb.zip"
    with zipfile.ZipFile(labels, "w") as archive:
        archive.writestr(
            "P0000.txt", "imagesource:GoogleEarth\ngsd:0.1\n" + line(9, 9, 70, 70, "plane")
        )
    (source / "test").mkdir()
    with zipfile.ZipFile(source / "test" / "part1.zip", "w") as archive:
        archive.writestr("images/P0099.png", png([], "RGB"))
    assert build_aerial(source, num_instances=2).content_hash == aerial.content_hash

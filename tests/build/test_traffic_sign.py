from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.build.conftest import assert_filled

from equiscale.build import photos
from equiscale.build.choosing import deal_largest
from equiscale.build.traffic_sign import build_traffic_sign
from equiscale.core.errors import SourceError, TooFewInstancesError
from equiscale.data.schema import StirArrays

SIDES = range(90, 66, -4)  # six sizes of sign, so two instances per class and split
CLASSES = {"regulatory--stop--g1": (200, 0, 0), "warning--children--g1": (0, 0, 200)}
ARCHIVES = ("train.0.zip", "train.1.zip", "train.2.zip", "val.zip")


def sign(key: str, label: str, box: tuple[float, ...], **flags: bool) -> dict[str, Any]:
    names = ("xmin", "ymin", "xmax", "ymax")
    properties = {"occluded": False, "ambiguous": False, **flags}
    bbox = dict(zip(names, box, strict=True))
    return {"key": key, "label": label, "bbox": bbox, "properties": properties}


def jpeg(squares: list[tuple[int, int, int, tuple[int, int, int]]]) -> bytes:
    """A green photo, 500×400, with coloured squares (left, top, side, colour)."""
    image = Image.new("RGB", (500, 400), (0, 150, 0))
    for left, top, side, colour in squares:
        image.paste(colour, (left, top, left + side, top + side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve good signs on six photos of four archives, among others that must be left out."""
    source = tmp_path_factory.mktemp("mapillary")
    root = source / "mtsd_v2_fully_annotated"
    (root / "splits").mkdir(parents=True)
    (root / "annotations").mkdir()
    names: list[str] = []
    archives = [zipfile.ZipFile(source / name, "w") for name in ARCHIVES]
    for index, side in enumerate(SIDES):
        objects, squares = [], []
        for number, (label, colour) in enumerate(CLASSES.items()):
            left, top = 60 + 200 * number, 150
            squares.append((left, top, side, colour))
            box = (left + 0.4, top + 0.4, left + side - 0.4, top + side - 0.4)
            objects.append(sign(f"k{number}", label, box))
        objects.append(sign("k7", "other-sign", (0, 0, 300, 300)))
        objects.append(sign("k8", "regulatory--stop--g1", (0, 0, 300, 300), occluded=True))
        objects.append(sign("k9", "regulatory--stop--g1", (0, 0, 300, 200)))
        name = f"photo{index}"
        names.append(name)
        (root / "annotations" / f"{name}.json").write_text(json.dumps({"objects": objects}))
        archives[index % 4].writestr(f"images/{name}.jpg", jpeg(squares))
    for archive in archives:
        archive.close()
    (root / "splits" / "train.txt").write_text("\n".join(names[:4]) + "\n")
    (root / "splits" / "val.txt").write_text("\n".join(names[4:]) + "\n")
    return source


@pytest.fixture(scope="module")
def signs(intact: Path) -> StirArrays:
    return build_traffic_sign(intact, num_instances=2)


def test_clean_square_signs_fill_their_boxes(signs: StirArrays) -> None:
    assert signs.class_names == tuple(sorted(CLASSES))
    assert signs.num_instances == 2
    assert_filled(signs, [CLASSES[name] for name in signs.class_names])


def test_largest_are_dealt_round_robin() -> None:
    """The largest goes to train, the second to valid, the third to test, and so on."""
    signs = [
        photos.PhotoObject(
            photos.Photo(Path("a.jpg")), photos.Box(0, 0, side, side), "stop", f"{side}"
        )
        for side in (70, 95, 66, 90, 82, 86, 100)
    ]
    choice = deal_largest(signs, lambda sign: sign.box.width, 2, 64, Path("source"))
    dealt = [[choice.slots[split, 0, i].box.width for i in range(2)] for split in range(3)]
    assert dealt == [[100, 86], [95, 82], [90, 70]]


def test_sign_across_the_border_of_a_panorama_is_left_out(source: Path, signs: StirArrays) -> None:
    """Its box starts right of where it ends; the archives have their official names."""
    for name in ARCHIVES:
        (source / name).rename(source / f"mtsd_v2_fully_annotated_images.{name}")
    path = next(source.rglob("photo0.json"))
    annotation = json.loads(path.read_text())
    across = sign("k10", "regulatory--stop--g1", (400.0, 0.0, 100.0, 300.0))
    annotation["objects"].append(across)
    path.write_text(json.dumps({**annotation, "width": 500, "height": 400, "ispano": True}))
    assert build_traffic_sign(source, 2).content_hash == signs.content_hash


def test_too_few_signs_are_counted(source: Path) -> None:
    with pytest.raises(TooFewInstancesError, match=r"regulatory--stop--g1: 6, warning.*: 6, exp"):
        build_traffic_sign(source, num_instances=3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "val.zip").unlink(), "no \\*val.zip"),
        (lambda root: (root / "val.zip").write_bytes(b"PK"), "a damaged archive"),
        (lambda root: shutil.rmtree(next(root.glob("mtsd*")) / "splits"), "expected a directory"),
        (lambda root: next(root.rglob("photo3.json")).write_text("{"), "broken JSON"),
        (lambda root: next(root.rglob("photo3.json")).write_text("[]"), "broken annotation"),
        (lambda root: next(root.rglob("photo3.json")).unlink(), "nothing readable"),
        (
            lambda root: shutil.copy(root / "val.zip", root / "train.1.zip"),
            r"no photo1\.jpg in the archives",
        ),
    ],
)
def test_broken_sources_are_named(source: Path, spoil: Any, message: str) -> None:
    spoil(source)
    with pytest.raises(SourceError, match=message):
        build_traffic_sign(source, num_instances=1)

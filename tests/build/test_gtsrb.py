from __future__ import annotations

import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.build.conftest import assert_filled

from equiscale.build import photos
from equiscale.build.choosing import Choice, deal_tracks
from equiscale.build.gtsrb import build_gtsrb
from equiscale.build.photos import Box, Photo, PhotoObject
from equiscale.core.errors import SourceError, TooFewInstancesError
from equiscale.core.spec import OBJECT_SIZES
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays
from study.gtsrb_part import copy_part

IDS = (1, 2, 4, 5, 9, 11, 12, 13, 14, 18, 23, 25, 26, 28, 35, 38)
NAMES = dict(zip(IDS, CARDS["gtsrb"].class_names, strict=True))
UNWANTED = 3
TRAINING = {  # width and height of the signs, by track and frame
    "00000_00010": (96, 90),
    "00000_00020": (80, 80),
    "00000_00029": (70, 70),
    "00001_00000": (86, 86),
    "00002_00000": (66, 66),
    "00002_00029": (75, 75),
    "00003_00000": (68, 68),
    "00004_00000": (63, 63),  # too small
    "00005_00000": (120, 95),  # too far from a square
}
TEST = ((72, 72), (88, 88), (64, 64), (79, 79), (63, 70))
HEADER = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"
MARGIN = 8
GREY = (90, 90, 90)
CHOSEN = (  # the frames in train and valid, with three signs per class
    ("00000_00010", "00003_00000", "00000_00020"),
    ("00001_00000", "00002_00029", "00002_00000"),
)


def colour(class_id: int) -> tuple[int, int, int]:
    return 255 - 5 * class_id, 6 * class_id, 255 if class_id % 2 else 0


def write_sign(path: Path, class_id: int, width: int, height: int) -> str:
    """Write a photo of a sign, and return its row of the table."""
    image = Image.new("RGB", (width + 2 * MARGIN, height + 2 * MARGIN), GREY)
    image.paste(colour(class_id), (MARGIN, MARGIN, MARGIN + width, MARGIN + height))
    image.save(path)
    corners = (MARGIN, MARGIN, MARGIN + width, MARGIN + height, class_id)
    return ";".join(map(str, (path.name, *image.size, *corners)))


def write_table(path: Path, rows: list[str]) -> None:
    path.write_text("\r\n".join([HEADER, *rows]) + "\r\n", encoding="utf-8", newline="")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmark as its archives unpack, with the labels of the test photos beside them."""
    source = tmp_path_factory.mktemp("gtsrb")
    for class_id in (*NAMES, UNWANTED):
        folder = source / "Final_Training" / "Images" / f"{class_id:05}"
        folder.mkdir(parents=True)
        rows = [
            write_sign(folder / f"{frame}.ppm", class_id, *sides)
            for frame, sides in TRAINING.items()
        ]
        write_table(folder / f"GT-{class_id:05}.csv", rows)
    folder = source / "Final_Test" / "Images"
    folder.mkdir(parents=True)
    signs = [(class_id, sides) for sides in TEST for class_id in (*NAMES, UNWANTED)]
    rows = [
        write_sign(folder / f"{number:05}.ppm", class_id, *sides)
        for number, (class_id, sides) in enumerate(signs)
    ]
    write_table(folder / "GT-final_test.csv", rows)
    return source


@pytest.fixture
def zipped(intact: Path, tmp_path: Path) -> Path:
    """The three archives as they are downloaded; the one of the test photos has no classes."""
    directory = tmp_path / "zipped"
    directory.mkdir()
    images = intact / "Final_Test" / "Images"
    with zipfile.ZipFile(directory / "GTSRB_Final_Training_Images.zip", "w") as archive:
        archive.writestr("GTSRB/Readme-Images.txt", "about")
        for path in sorted((intact / "Final_Training").rglob("*.*")):
            archive.write(path, f"GTSRB/{path.relative_to(intact).as_posix()}")
    with zipfile.ZipFile(directory / "GTSRB_Final_Test_Images.zip", "w") as archive:
        rows = (images / "GT-final_test.csv").read_text().splitlines()
        unlabelled = "\r\n".join(row.rpartition(";")[0] for row in rows)
        archive.writestr("GTSRB/Final_Test/Images/GT-final_test.test.csv", unlabelled)
        for path in sorted(images.glob("*.ppm")):
            archive.write(path, f"GTSRB/Final_Test/Images/{path.name}")
    with zipfile.ZipFile(directory / "GTSRB_Final_Test_GT.zip", "w") as archive:
        archive.write(images / "GT-final_test.csv", "GT-final_test.csv")
    return directory


def test_a_part_has_the_listed_photos_and_their_rows(intact: Path, tmp_path: Path) -> None:
    listed = [path.relative_to(intact).as_posix() for path in sorted(intact.rglob("*.ppm"))]
    wanted = [photo for photo in listed if f"/{UNWANTED:05}/" not in photo]
    copy_part(intact, tmp_path / "part", wanted[1:])
    found = (tmp_path / "part").rglob("*.ppm")
    assert sorted(path.relative_to(tmp_path / "part").as_posix() for path in found) == wanted[1:]
    table = "Final_Test/Images/GT-final_test.csv"
    before, after = ((root / table).read_text().split() for root in (intact, tmp_path / "part"))
    assert [row for row in before if not row.startswith(Path(wanted[0]).name)] == after


@pytest.fixture(scope="module")
def signs(intact: Path) -> StirArrays:
    return build_gtsrb(intact, num_instances=1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[PhotoObject]:
    """The signs that builds of this test choose; they are not really cut out."""
    found: list[PhotoObject] = []

    def cut(image: Any, item: PhotoObject, cutting: photos.Cutting) -> photos.Cutouts:
        assert image.size == (item.box.width + 2 * MARGIN, item.box.height + 2 * MARGIN)
        assert cutting.stretch
        found.append(item)
        rows = len(OBJECT_SIZES)
        images = np.full((rows, 64, 64, 3), mark(item.key), np.uint8)
        return photos.Cutouts(images, np.zeros((rows, 2), np.int64))

    monkeypatch.setattr(photos, "cut_object", cut)
    return found


def mark(key: str) -> int:
    """Return the grey that stands for a photo."""
    return zlib.crc32(key.encode()) % 251


def test_signs_of_the_classes_fill_their_boxes(signs: StirArrays) -> None:
    assert [NAMES[number] for number in (1, 13, 14, 38)] == [
        *("speed-limit-30", "yield", "stop", "keep-right")
    ]
    assert signs.class_names == tuple(NAMES.values())
    assert_filled(signs, [colour(number) for number in NAMES])


def test_archives_folders_and_workers_do_not_change_the_result(
    zipped: Path, source: Path, tmp_path: Path, signs: StirArrays
) -> None:
    assert build_gtsrb(zipped, 1, workers=2).content_hash == signs.content_hash
    source.rename(tmp_path / "GTSRB")
    next(tmp_path.glob("GTSRB/*/*/GT-final_test.csv")).rename(tmp_path / "GT-final_test.csv")
    assert build_gtsrb(tmp_path, 1).content_hash == signs.content_hash


def test_tracks_are_dealt_whole_and_the_largest_test_photos_chosen(
    source: Path, chosen: list[PhotoObject]
) -> None:
    """The longest track goes to train, the next two to valid, then train has fewer tracks."""
    arrays = build_gtsrb(source, num_instances=3)
    for label, name in enumerate(arrays.class_names):
        keys = {Path(item.key).stem: item.key for item in chosen if item.label == name}
        test = [f"{place * (len(NAMES) + 1) + label:05}" for place in (1, 3, 0)]
        for split, expected in enumerate((*CHOSEN, test)):
            marks = [mark(keys[frame]) for frame in expected]
            assert arrays.images[split, 0, label, :, 0, 0, 0].tolist() == marks


@pytest.mark.parametrize(
    ("sides", "counts"),
    [
        ((63, 64), r"4\+3\+4"),
        ((86, 100), r"4\+4\+4"),
        ((100, 85), r"4\+3\+4"),  # 15 % is too much
    ],
)
def test_which_boxes_are_suitable(
    source: Path, sides: tuple[int, int], counts: str, chosen: list[PhotoObject]
) -> None:
    folder = source / "Final_Training" / "Images" / "00001"
    row = write_sign(folder / "00009_00000.ppm", 1, *sides)
    with (folder / "GT-00001.csv").open("a") as table:
        table.write(row + "\n")
    with pytest.raises(TooFewInstancesError, match=rf"test: speed-limit-30: {counts}, speed-.*-50"):
        build_gtsrb(source, num_instances=5)
    assert chosen == []


def item(track: int, frame: int, size: int) -> PhotoObject:
    key = f"{track:05}_{frame:05}"
    return PhotoObject(Photo(Path(f"{key}.ppm")), Box(0, 0, size, size), "sign", key)


def deal(training: list[PhotoObject], count: int) -> Choice:
    test = [item(100 + number, 0, 64) for number in range(count)]
    return deal_tracks(
        training,
        test,
        lambda sign: sign.key[:5],
        lambda sign: sign.box.width,
        ("sign",),
        count,
        Path("source"),
    )


def tracks_of(choice: Choice, split: int) -> Counter[str]:
    return Counter(sign.key[:5] for place, sign in choice.slots.items() if place[0] == split)


@pytest.mark.parametrize("seed", range(2))
def test_no_track_is_in_two_splits_and_signs_spread_evenly(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 7, size=16)
    training = [
        item(track, frame, int(generator.integers(64, 200)))
        for track, length in enumerate(lengths)
        for frame in range(length)
    ]
    count = 20
    choice = deal(training, count)
    parts = [tracks_of(choice, split) for split in (0, 1)]
    assert not parts[0].keys() & parts[1].keys()
    assert len(parts[0] | parts[1]) == len(lengths)  # every track is used
    for part in parts:
        assert part.total() == count
        most = max(part.values())
        for track, used in part.items():
            assert used >= min(most - 1, lengths[int(track)])


def edit(name: str, before: str, after: str) -> Callable[[Path], None]:
    """Replace a text in a table."""

    def spoil(root: Path) -> None:
        path = next(root.rglob(name))
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "found nothing, expected a directory"),
        (
            lambda root: next(root.rglob("GT-final_test.csv")).unlink(),
            r"no GT-final_test\.csv, expected the classes .* GTSRB_Final_Test_GT\.zip",
        ),
        (
            edit("GT-final_test.csv", ";ClassId", ""),
            r"GT-final_test\.csv: found a broken row \(KeyError\('ClassId'\)\)",
        ),
        (edit("GT-00038.csv", ";98;", ";wide;"), r"GT-00038\.csv: .*'wide'"),
        (edit("GT-00038.csv", ";8;8;104;98;", ";8;17;104;107;"), r"00000_00010.* inside 112×106"),
        (
            lambda root: next((root / "Final_Test").rglob("00017.ppm")).unlink(),
            r"GT-final_test\.csv: found no Final_Test/Images/00017\.ppm",
        ),
    ],
)
def test_broken_sources_are_named(source: Path, spoil: Any, message: str) -> None:
    spoil(source)
    with pytest.raises(SourceError, match=message):
        build_gtsrb(source, num_instances=1)

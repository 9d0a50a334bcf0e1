from __future__ import annotations

import json
import logging
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equiscale.build.annotations import read_annotations
from equiscale.build.folder import FolderOptions, build_folder, deal_photos, find_groups
from equiscale.build.options import SourceFormat
from equiscale.build.photos import BadPictureError, BoxError, Photo
from equiscale.core.errors import OptionError, SourceError, TooFewInstancesError
from equiscale.core.spec import Layout
from equiscale.data.dataset import load_dataset
from equiscale.data.schema import StirArrays, write_arrays

COLOURS = {"apple": (200, 30, 30), "pear": (60, 180, 40)}
OPTIONS = FolderOptions(name="fruit")


def picture(colour: tuple[int, int, int], size: tuple[int, int], number: int) -> Image.Image:
    """A picture of one colour, told apart from others by one of its pixels."""
    image = Image.new("RGB", size, colour)
    image.putpixel((50 % size[0], 40), (number, 0, 0))
    return image


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Seven apples and six pears, one folder each, among files that are no pictures."""
    for name, count in (("apple", 7), ("pear", 6)):
        (tmp_path / name).mkdir()
        for number in range(count):
            picture(COLOURS[name], (100, 80), number).save(tmp_path / name / f"{number}.png")
    (tmp_path / "apple" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_class_folders_become_a_dataset_that_loads(folders: Path, tmp_path: Path) -> None:
    arrays = build_folder(folders, OPTIONS)
    assert arrays.class_names == ("apple", "pear")
    assert arrays.images.shape == (3, 48, 2, 2, 64, 64, 3)
    write_arrays(tmp_path / "fruit.npz", arrays)
    dataset = load_dataset("fruit", root=tmp_path)
    assert dataset.select("test", [20]).images.shape == (4, 3, 64, 64)
    assert dataset.arrays.metadata["title"] == "fruit"


def test_result_depends_on_the_seed_and_not_on_the_workers(folders: Path) -> None:
    one = replace(OPTIONS, num_instances=1)
    first = build_folder(folders, one)
    assert build_folder(folders, one, workers=2).content_hash == first.content_hash
    assert build_folder(folders, replace(one, name="other")).content_hash == first.content_hash
    assert build_folder(folders, replace(one, seed=1)).content_hash != first.content_hash
    other = build_folder(folders, replace(one, layout=Layout.of(90, (80, 40))))
    assert (other.images.shape, other.sizes) == ((3, 2, 2, 1, 90, 90, 3), (80, 40))


def test_copies_of_one_picture_stay_in_one_split(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / name).mkdir()
    for number in range(8):
        noise = Image.fromarray(generator.integers(0, 256, (64, 64, 3), np.uint8))
        for copy in range(3):
            noise.save(tmp_path / "ab"[number % 2] / f"{number}-{copy}.png")
    arrays = build_folder(tmp_path, OPTIONS)
    assert arrays.num_instances == 3  # the copies of one picture
    splits = [{image.tobytes() for image in part[0, 0]} for part in arrays.images]
    assert [len(found) for found in splits] == [1, 1, 1]
    assert len(set().union(*splits)) == 3


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Nine photos with an apple and a pear each; boxes in a COCO file."""
    (tmp_path / "images").mkdir()
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 7, "name": "pear"}, {"id": 3, "name": "apple"}],
    }
    for number in range(9):
        photo = Image.new("RGB", (400, 300), (20, 20, 120))
        photo.putpixel((0, 0), (number, 0, 0))
        for category, name, left in ((3, "apple", 40), (7, "pear", 250)):
            width = 70 + number
            photo.paste(COLOURS[name], (left, 100, left + width, 190))
            annotation = {
                "id": len(content["annotations"]),
                "image_id": number,
                "category_id": category,
                "bbox": [left, 100, width, 90],
                "iscrowd": 0,
            }
            content["annotations"].append(annotation)
        content["images"].append({"id": number, "file_name": f"{number}.png"})
        photo.save(tmp_path / "images" / f"{number}.png")
    crowd = {"id": 99, "image_id": 0, "category_id": 3, "bbox": [0, 0, 9, 9], "iscrowd": 1}
    content["annotations"].append(crowd)
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return tmp_path


def test_coco_objects_lie_over_their_surroundings(coco: Path) -> None:
    arrays = build_folder(coco, OPTIONS)
    assert arrays.class_names == ("apple", "pear")
    assert arrays.num_instances == 3
    for where in np.ndindex(arrays.images.shape[:4]):
        image, size = arrays.images[where].astype(int), arrays.sizes[where[1]]
        fruit = np.abs(image[..., None, :] - list(COLOURS.values())).max(axis=-1).min(axis=-1) < 40
        rows = np.flatnonzero(fruit.any(axis=1))
        assert abs(np.ptp(rows) + 1 - size) <= 2  # 90, the longer side, fills the box
        assert not np.abs(image[~fruit] - (20, 20, 120)).max() > 220


def edit_coco(source: Path, change: Any) -> None:
    path = source / "boxes.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("box", [[390, 100, 70, 70], [-30, 0, 80, 80], [10, 10, 0, 50]])
def test_box_outside_its_image_is_named_or_skipped(
    coco: Path, box: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    edit_coco(coco, lambda content: content["annotations"][4].update(bbox=box))
    with pytest.raises(BoxError, match=r"annotation 4: box from .* inside 2\.png, 400×300"):
        build_folder(coco, OPTIONS)
    with caplog.at_level(logging.WARNING):
        assert len(read_annotations(coco, skip_bad=True).objects) == 17
    assert "skipped 1 outside their picture: " in caplog.text


def test_pictures_outside_the_source_are_refused(coco: Path) -> None:
    inside = coco / "inside"
    inside.mkdir()
    (coco / "boxes.json").rename(inside / "boxes.json")
    shutil.move(coco / "images", inside / "images")
    (inside / "images" / "0.png").rename(coco / "0.png")
    for name in ("../0.png", str(coco / "0.png")):
        edit_coco(inside, lambda content, name=name: content["images"][0].update(file_name=name))
        with pytest.raises(SourceError, match="no picture"):
            read_annotations(inside)
    (inside / "images" / "link.png").symlink_to(coco / "0.png")
    edit_coco(inside, lambda content: content["images"][0].update(file_name="link.png"))
    with pytest.raises(SourceError, match=r"no picture link\.png"):
        read_annotations(inside)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("images"), "broken COCO data"),
        (lambda content: content["annotations"][0].update(bbox=[1, 2, 3, 10**400]), "broken COCO"),
        (lambda content: content["annotations"][4].update(category_id=99), "annotation {'id': 4,"),
        (lambda content: content["images"][0].update(file_name="x" * 300), "no picture xxx"),
        (lambda content: content["images"][0].update(file_name="no.png"), r"no picture no\.png"),
        (lambda content: content["categories"][0].update(name="apple"), "class name apple repeat"),
        (lambda content: content["images"][0].update(id=1), "id 1 repeatedly"),
    ],
)
def test_broken_coco_files_are_named(coco: Path, change: Any, message: str) -> None:
    edit_coco(coco, change)
    with pytest.raises(SourceError, match=message):
        build_folder(coco, OPTIONS)


@pytest.fixture
def yolo(coco: Path) -> Path:
    """The same photos with YOLO's boxes."""
    content = json.loads((coco / "boxes.json").read_text())
    (coco / "labels").mkdir()
    for entry in content["annotations"][:-1]:
        left, top, width, height = entry["bbox"]
        numbers = (left + width / 2) / 400, (top + height / 2) / 300, width / 400, height / 300
        with (coco / "labels" / f"{entry['image_id']}.txt").open("a") as file:
            label = {3: 0, 7: 1}[entry["category_id"]]
            file.write(" ".join(map(str, (label, *numbers))) + "\n")
    (coco / "boxes.json").unlink()
    (coco / "data.yaml").write_text("names:\n  0: apple\n  1: pear\n")
    return coco


def test_yolo_boxes_are_those_of_coco(yolo: Path) -> None:
    found = read_annotations(yolo)
    assert (found.class_names, len(found.objects)) == (("apple", "pear"), 18)
    assert astuple(found.objects[1].box) == pytest.approx((250, 100, 320, 190))
    (yolo / "data.yaml").unlink()
    (yolo / "classes.txt").write_text("apple\npear\n")
    (yolo / "labels" / "0.txt").write_text("1 0.25 0.5 0.5 0.25 0.75 0.75\n")  # a polygon
    assert astuple(read_annotations(yolo).objects[0].box) == (100, 75, 300, 225)


@pytest.mark.parametrize("line", ["2 .5 .5 .1 .1", "-1 .5 .5 .1 .1", "0 .5 .5", "apple 1 1 1 1"])
def test_broken_yolo_line_is_quoted(yolo: Path, line: str) -> None:
    (yolo / "labels" / "3.txt").write_text(line + "\n")
    with pytest.raises(SourceError, match=r"3\.txt: found .* in line 1, expected a class 0…1"):
        read_annotations(yolo)


def test_yolo_without_names_or_pictures(yolo: Path) -> None:
    for text in ("nc: 2\n", "names: [\n- a\n]: b\n"):
        (yolo / "data.yaml").write_text(text)
        with pytest.raises(SourceError, match=r"no class names \(.*\), expected"):  # on one line
            read_annotations(yolo)
    (yolo / "data.yaml").unlink()
    with pytest.raises(SourceError, match=r"data\.yaml or classes\.txt"):
        read_annotations(yolo)
    (yolo / "classes.txt").write_text("apple\npear\n")
    (yolo / "images" / "5.png").unlink()
    with pytest.raises(SourceError, match="no picture 5"):
        read_annotations(yolo)


@pytest.mark.parametrize("names", ["[x, x]", "xy", "{1: a, 2: b}", "[a, [b]]"])
def test_class_names_that_could_be_misread_are_refused(yolo: Path, names: str) -> None:
    (yolo / "data.yaml").write_text(f"names: {names}\n")
    with pytest.raises(SourceError, match=r"data\.yaml: found .*class name"):
        read_annotations(yolo)


def test_small_objects_are_refused_and_counted(
    folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        picture(COLOURS["pear"], (50, 63), number).save(folders / "pear" / f"{number}.png")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TooFewInstancesError, match=r"pear: 1\+1\+0"),
    ):
        build_folder(folders, OPTIONS)
    assert "refused 4 objects smaller than 64 pixels (pear: 4)" in caplog.text
    upscaled = build_folder(folders, replace(OPTIONS, allow_upscaling=True))
    assert upscaled.num_instances == 2


def test_too_few_instances_are_counted(folders: Path) -> None:
    with pytest.raises(
        TooFewInstancesError, match=r"apple: 3\+2\+2, pear: 2\+2\+2, expected 3 of every class in"
    ):
        build_folder(folders, replace(OPTIONS, num_instances=3))
    shutil.rmtree(folders / "pear")
    (folders / "pear").mkdir()
    with pytest.raises(TooFewInstancesError, match=r"pear: 0\+0\+0, expected 1 .* --classes"):
        build_folder(folders, OPTIONS)
    with pytest.raises(SourceError, match="one class, 'apple', expected at least two"):
        build_folder(folders, replace(OPTIONS, classes=("apple",)))


def test_damaged_picture_is_named_or_skipped(
    folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folders / "apple" / "3.png").write_bytes(b"damaged")
    path = folders / "apple" / "4.png"
    path.write_bytes(path.read_bytes()[:60])  # the header is intact
    with pytest.raises(BadPictureError, match=r"3\.png: found a damaged"):
        build_folder(folders, OPTIONS)
    with caplog.at_level(logging.WARNING):
        assert build_folder(folders, replace(OPTIONS, skip_bad=True)).num_instances == 1
    assert "3.png" in caplog.text
    assert "4.png" in caplog.text


def test_stray_files_beside_class_folders(folders: Path) -> None:
    (folders / "apple" / "directory.png").mkdir()
    (folders / "notes.json").write_text("{}")
    with pytest.raises(SourceError, match=r"broken COCO data .* say --format folders"):
        read_annotations(folders)
    assert len(read_annotations(folders, SourceFormat.FOLDERS).objects) == 13


@pytest.mark.parametrize("name", ["", "a/b", "..", "emoji", ".x", "a b"])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="name"):
        FolderOptions(name=name)


@pytest.fixture
def stamps(tmp_path: Path) -> Path:
    """Red discs of two classes in transparent pictures, 120×100, on whose left half nothing is."""
    y, x = np.mgrid[:100, :120] + 0.5
    alpha = np.clip(40.5 - np.hypot(x - 75, y - 50), 0, 1) * 255
    for number in range(6):
        pixels = np.zeros((100, 120, 4), np.uint8)
        pixels[..., 0], pixels[..., 2], pixels[..., 3] = 200, number // 2, alpha.round()
        path = tmp_path / "stamps" / ("disc", "dot")[number % 2] / f"{number // 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "scenes").mkdir()
    Image.new("RGB", (300, 200), (0, 0, 250)).save(tmp_path / "scenes" / "sky.png")
    return tmp_path


def assert_discs(arrays: StirArrays, behind: int) -> None:
    """Each image is a red disc of its size at its place, blended into the background."""
    for where in np.ndindex(arrays.images.shape[:4]):
        size, (left, top) = arrays.sizes[where[1]], arrays.positions[where]
        y, x = np.mgrid[: arrays.canvas, : arrays.canvas] + 0.5
        distance = np.hypot(x - left - size / 2, y - top - size / 2) - size / 2
        red, _, blue = arrays.images[where].astype(int).transpose(2, 0, 1)
        assert (np.abs(red[distance < -2] - 200) <= 3).all()
        assert (red[distance > 2] <= 3).all()
        assert (np.abs(blue[distance > 2] - behind) <= 3).all()
        edge = np.abs(distance) < 0.3
        assert 40 < red[edge].mean() < 160  # antialiased


def test_cutouts_stand_on_backgrounds(stamps: Path) -> None:
    options = replace(OPTIONS, layout=Layout.of(96, (80, 41, 20)))
    scenes = replace(options, backgrounds=stamps / "scenes")
    arrays = build_folder(stamps / "stamps", scenes)
    assert_discs(arrays, behind=250)
    assert build_folder(stamps / "stamps", scenes).content_hash == arrays.content_hash
    assert_discs(build_folder(stamps / "stamps", replace(options, cutouts=True)), behind=0)


def test_masks_cut_out(stamps: Path) -> None:
    for path in (stamps / "stamps").rglob("*.png"):
        with Image.open(path) as image:
            mask = image.getchannel("A")
            image.convert("RGB").save(path)
        (stamps / "masks").mkdir(exist_ok=True)
        mask.save(stamps / "masks" / path.name)
    options = replace(OPTIONS, layout=Layout.of(96, (80, 20)), masks=stamps / "masks")
    assert_discs(build_folder(stamps / "stamps", options), behind=0)
    (stamps / "masks" / "1.png").unlink()
    with pytest.raises(SourceError, match="no mask of disc/1"):
        build_folder(stamps / "stamps", options)


def test_bad_cutouts_are_refused(stamps: Path) -> None:
    Image.new("RGBA", (90, 90)).save(stamps / "stamps" / "disc" / "empty.png")
    options = replace(OPTIONS, cutouts=True)
    with pytest.raises(BadPictureError, match="all transparent"):
        build_folder(stamps / "stamps", options)
    for mode in ("RGB", "RGBA"):
        Image.new(mode, (90, 90), "red").save(stamps / "stamps" / "disc" / "empty.png")
        with pytest.raises(BadPictureError, match=r"no transparency, .* give masks \(--masks DIR"):
            build_folder(stamps / "stamps", options)
    assert build_folder(stamps / "stamps", replace(options, skip_bad=True)).num_instances == 1
    (stamps / "none").mkdir()
    with pytest.raises(SourceError, match="at least one background"):
        build_folder(
            stamps / "stamps", replace(options, skip_bad=True, backgrounds=stamps / "none")
        )
    with pytest.raises(OptionError, match="one folder per class"):
        build_folder(stamps, replace(options, source_format=SourceFormat.COCO))


@pytest.mark.parametrize("group_by", [r"track(\d)", "2"])
def test_groups_are_never_split(tmp_path: Path, group_by: str) -> None:
    """Four tracks of three frames in each class; a copy joins the tracks 0 and 3 of apples."""
    for label, name in enumerate(COLOURS):
        for track in range(4):
            folder = tmp_path / name / f"track{track}"
            folder.mkdir(parents=True)
            for frame in range(3):
                number = 100 * label + 10 * track + frame
                picture(COLOURS[name], (100, 80), number).save(folder / f"{frame}.png")
    shutil.copy(tmp_path / "apple/track0/0.png", tmp_path / "apple/track3/9.png")
    squares = read_annotations(tmp_path).objects
    groups = find_groups(tmp_path, squares, group_by)
    choice = deal_photos(
        squares, groups, tuple(COLOURS), replace(OPTIONS, group_by=group_by), tmp_path
    )
    splits: dict[str, set[int]] = {}
    for (split, _, _), item in choice.slots.items():
        splits.setdefault(groups[item.photo], set()).add(split)
    assert all(len(found) == 1 for found in splits.values())
    apples = tmp_path / "apple"
    assert groups[Photo(apples / "track0/1.png")] == groups[Photo(apples / "track3/2.png")]
    assert choice.num_instances == 3


@pytest.mark.parametrize("group_by", ["(", "nowhere", "3"])
def test_impossible_groups_are_refused(folders: Path, group_by: str) -> None:
    with pytest.raises(OptionError, match="group by"):
        build_folder(folders, replace(OPTIONS, group_by=group_by))

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equiscale.core.errors import OptionError, ShapeError
from equiscale.training.augmentation import RandomObjectSize, _box, _resizing, augment


@pytest.fixture
def images() -> torch.Tensor:
    batch = torch.zeros(50, 2, 64, 64)
    batch[:, :, 24:40, 24:40] = 1
    return batch


def test_shift_moves_by_whole_pixels(images: torch.Tensor) -> None:
    moved = augment(images, "shift", torch.Generator().manual_seed(0))
    torch.testing.assert_close(moved.sum((2, 3)), images.sum((2, 3)), rtol=1e-4, atol=1e-3)
    rows = (moved[:, 0].amax(2) > 0.5).int().argmax(1).tolist()
    assert 16 <= min(rows) <= max(rows) <= 32
    assert len(set(rows)) > 8


def test_rescale_changes_the_size_about_the_centre(images: torch.Tensor) -> None:
    resized, again = (augment(images, "rescale", torch.Generator().manual_seed(0)) for _ in "ab")
    assert torch.equal(resized, again)
    sides = resized[:, 0].sum((1, 2)).sqrt()
    assert sides.min() >= 7.5
    assert sides.max() <= 32.5
    assert sides.max() / sides.min() > 3
    torch.testing.assert_close(resized, resized.flip(2, 3), rtol=0, atol=1e-4)


def test_objects_get_sizes_of_17_to_64_inside_the_canvas() -> None:
    """Log-uniform, all on the canvas, brightness kept: what comes out is an object of that size."""
    images, boxes = torch.zeros(400, 1, 64, 64), torch.zeros(400, 3, dtype=torch.int64)
    for image, box, left in zip(images, boxes, range(400), strict=True):
        left %= 24
        image[:, 5:45, left : left + 40] = 1
        box.copy_(torch.tensor([left, 5, 40]))
    moved = augment(images, "rescale_object", torch.Generator().manual_seed(0), boxes)
    sides = moved[:, 0].sum((1, 2)).sqrt()
    assert sides.min() >= 16.9
    assert sides.max() <= 64.1
    assert float((sides < 33).float().mean()) == pytest.approx(math.log(33 / 17) / 1.326, abs=0.08)
    assert float(moved.max()) < 1.02
    rows = (moved[:, 0].amax(2) > 0.5).int()
    torch.testing.assert_close(rows.sum(1).float(), sides, rtol=0, atol=1.1)
    assert len(rows.argmax(1).unique()) > 20


def test_resizing_by_one_is_the_identity_and_by_a_half_averages() -> None:
    one, zero = torch.ones(1), torch.zeros(1)
    matrix = _resizing(64, 10 * one, 10 * one, one)
    torch.testing.assert_close(matrix[0], torch.eye(64), rtol=0, atol=1e-6)
    half = _resizing(64, zero, zero, 0.5 * one)[0]
    torch.testing.assert_close(half[9, 17:21], torch.tensor([1, 3, 3, 1]) / 8)
    assert not half[33:].any()  # beyond the image


def test_boxes_are_asked_for(images: torch.Tensor) -> None:
    with pytest.raises(OptionError, match="needs the boxes"):
        augment(images, "rescale_object", torch.Generator())


def square(left: int, top: int, right: int, bottom: int) -> torch.Tensor:
    image = torch.full((1, 60, 80), 0.5)
    image[:, top:bottom, left:right] = 1
    return image


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_object_size_is_log_uniform_and_the_target_follows(kind: str) -> None:
    transform = RandomObjectSize((8, 32), generator=torch.Generator().manual_seed(0))
    image, box = square(10, 20, 50, 40), torch.tensor([[10, 20, 50, 40]])
    target = {"labels": 3, "boxes": box, "masks": image == 1}
    sizes = []
    for _ in range(200):
        moved, new = transform(image, {"labels": 3, kind: target[kind]})
        assert moved.shape == image.shape
        assert new["labels"] == 3
        shown = (moved[0] > 0.75).nonzero()
        top, left = shown.amin(0).tolist()
        bottom, right = (shown.amax(0) + 1).tolist()
        assert right - left == pytest.approx(2 * (bottom - top), abs=2.1)
        expected = torch.tensor([[left, top, right, bottom]], dtype=torch.float32)
        found = new["boxes"] if kind == "boxes" else _box(new["masks"][0])[None]
        torch.testing.assert_close(found, expected, rtol=0, atol=1.01)
        sizes.append(right - left)
        assert moved.min() > 0.49  # the edge is repeated
    assert min(sizes) >= 7
    assert max(sizes) <= 33
    assert sum(size < 16 for size in sizes) == pytest.approx(100, abs=25)


def test_whole_pictures_bytes_batches_and_labels() -> None:
    black = RandomObjectSize((20, 40), "black", torch.Generator().manual_seed(0))
    image = torch.full((3, 60, 80), 200, dtype=torch.uint8)
    small, label = black(image, 7)
    assert (small.dtype, small.shape, label) == (image.dtype, image.shape, 7)
    assert 20 * 15 <= (small[0] > 100).sum() <= 41 * 31
    assert {0, 200} <= set(small.unique().tolist())
    batch = black(image.expand(5, -1, -1, -1))
    assert len({int((one[0] > 100).sum()) for one in batch}) > 2
    whole = RandomObjectSize((500, 500))(image)  # as large as the canvas allows
    assert torch.equal(whole, image)
    state = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    first, second = (RandomObjectSize((9, 50), generator=g)(image) for g in state)
    assert torch.equal(first, second)


def test_numpy_images_are_transformed_by_keyword_as_in_albumentations() -> None:
    picture, mask = np.full((60, 80, 3), 100, np.uint8), np.zeros((60, 80), np.uint8)
    picture[20:40, 10:50], mask[20:40, 10:50] = 200, 255
    given: dict[str, Any] = {"image": picture, "mask": mask, "label": 3}

    def transform(**more: Any) -> dict[str, Any]:
        seeded = RandomObjectSize((8, 32), generator=torch.Generator().manual_seed(1))
        return seeded(**given, **more)

    tensors = RandomObjectSize((8, 32), generator=torch.Generator().manual_seed(1))
    target = {"boxes": torch.tensor([10, 20, 50, 40])}
    expected, target = tensors(torch.from_numpy(picture).permute(2, 0, 1), target)
    for boxes in ([(10, 20, 50, 40, "sign")], np.array([[10.0, 20, 50, 40, 7]])):
        found = transform(bboxes=boxes)
        assert set(found) == {"image", "mask", "label", "bboxes"}
        assert found["label"] == 3
        assert type(found["bboxes"]) is type(boxes)
        assert found["bboxes"][0][4] == boxes[0][4]
        np.testing.assert_allclose(np.array(found["bboxes"][0][:4], float), target["boxes"])
        assert np.array_equal(found["image"], expected.permute(1, 2, 0).numpy())
        assert set(np.unique(found["mask"])) == {0, 255}
        assert np.abs((found["mask"] > 0).sum() - (found["image"][..., 0] > 150).sum()) < 20
    assert transform()["image"].dtype == np.uint8  # the mask says where the object is
    seeded = RandomObjectSize((8, 32), generator=torch.Generator().manual_seed(1))
    deep = seeded(image=picture.astype(np.uint16) * 200)["image"]
    assert (deep.max(), deep.dtype) == (40000, np.uint16)
    grey = RandomObjectSize((8, 32))(image=picture[..., 0].astype(np.float32))["image"]
    assert (grey.shape, grey.dtype) == ((60, 80), np.float32)
    with pytest.raises(OptionError, match="keywords go with NumPy images"):
        tensors(expected, mask=mask)
    with pytest.raises(ShapeError, match="1 images need 1 boxes"):
        transform(bboxes=[(0, 0, 9, 9), (1, 1, 5, 5)])


@pytest.mark.needs("albumentations")
@pytest.mark.filterwarnings("ignore::UserWarning")  # Albumentations looks for its newest version
def test_an_object_gets_another_size_in_a_pipeline_of_albumentations() -> None:
    import albumentations

    picture, mask = np.full((60, 80, 3), 100, np.uint8), np.zeros((60, 80), np.uint8)
    picture[20:40, 10:50], mask[20:40, 10:50] = 200, 1
    transform = RandomObjectSize((10, 20), generator=torch.Generator().manual_seed(0))
    steps = [albumentations.HorizontalFlip(p=1), transform.for_albumentations()]
    boxes = albumentations.BboxParams(format="pascal_voc", label_fields=["labels"])
    pipeline = pickle.loads(pickle.dumps(albumentations.Compose(steps, bbox_params=boxes)))
    found = pipeline(image=picture, mask=mask, bboxes=[(10, 20, 50, 40)], labels=["sign"])
    left, top, right, bottom = found["bboxes"][0]
    assert 10 <= right - left <= 20
    assert (right - left) / (bottom - top) == pytest.approx(2, abs=0.01)
    rows, columns = np.nonzero(found["mask"])
    edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert edges == pytest.approx((left, top, right, bottom), abs=1)
    assert (found["image"][found["mask"] > 0] > 140).all()
    assert found["labels"] == ["sign"]
    plain = albumentations.Compose([transform.for_albumentations(p=0)])(image=picture)["image"]
    assert np.array_equal(plain, picture)


def test_bad_sizes_and_boxes_are_named() -> None:
    for sizes in ((3,), (5, 2), (0, 2)):
        with pytest.raises(OptionError, match="smallest and the largest"):
            RandomObjectSize(sizes)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="outside must be"):
        RandomObjectSize((1, 2), "white")  # type: ignore[arg-type]
    for image, found in ((torch.zeros(9, 9), r"\[9, 9\]"), (Image.new("RGB", (9, 9)), "Image")):
        with pytest.raises(ShapeError, match=f"or a NumPy array, got {found}"):
            RandomObjectSize((1, 2))(image)  # type: ignore[arg-type]
    empty = {"masks": torch.zeros(60, 80)}, {"boxes": torch.tensor([5, 5, 5, 9])}
    for target in empty:
        with pytest.raises(ShapeError, match="not empty"):
            RandomObjectSize((1, 2))(torch.zeros(1, 60, 80), target)

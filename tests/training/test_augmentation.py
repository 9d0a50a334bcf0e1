from __future__ import annotations

import pytest
import torch

from equiscale.training.augmentation import augment


@pytest.fixture
def images() -> torch.Tensor:
    batch = torch.zeros(50, 2, 64, 64)
    batch[:, :, 24:40, 24:40] = 1
    return batch


def test_none_is_the_images_themselves(images: torch.Tensor) -> None:
    assert augment(images, "none", torch.Generator()) is images


def test_shift_moves_by_whole_pixels(images: torch.Tensor) -> None:
    moved = augment(images, "shift", torch.Generator().manual_seed(0))
    torch.testing.assert_close(moved.sum((2, 3)), images.sum((2, 3)), rtol=1e-4, atol=1e-3)
    rows = (moved[:, 0].amax(2) > 0.5).int().argmax(1).tolist()
    assert min(rows) >= 16
    assert max(rows) <= 32
    assert len(set(rows)) > 8


def test_rescale_changes_the_size_about_the_centre(images: torch.Tensor) -> None:
    resized = augment(images, "rescale", torch.Generator().manual_seed(0))
    sides = resized[:, 0].sum((1, 2)).sqrt()
    assert sides.min() >= 7.5
    assert sides.max() <= 32.5
    assert sides.max() / sides.min() > 3
    torch.testing.assert_close(resized, resized.flip(2, 3), rtol=0, atol=1e-4)


def test_the_generator_decides(images: torch.Tensor) -> None:
    one, again, other = (
        augment(images, "rescale", torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)

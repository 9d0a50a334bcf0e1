from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.metrics import accuracy_by_bucket, accuracy_by_size, predict, usable_range


@pytest.fixture
def answers() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and object sizes of 500 images."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (500,), generator=generator)
    logits = torch.randn(500, 4, generator=generator) + 2 * nn.functional.one_hot(labels, 4)
    return logits, labels, torch.randint(90, 130, (500,), generator=generator)


def test_accuracy_by_size_equals_a_direct_count(answers: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, labels, object_sizes = answers
    result = accuracy_by_size(logits, labels, object_sizes)
    assert result.sizes.tolist() == list(range(90, 130))
    hits = (logits.argmax(1) == labels).numpy()
    for size, accuracy, count in zip(*result, strict=True):
        own = hits[object_sizes.numpy() == int(size)]
        assert (float(accuracy), int(count)) == (np.mean(own), len(own))
    by_class = accuracy_by_size(logits.argmax(1), labels, object_sizes)
    assert torch.equal(by_class.accuracy, result.accuracy)


def test_a_bucket_begins_at_its_edge(answers: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, labels, object_sizes = answers
    accuracy, counts = accuracy_by_bucket(logits, labels, object_sizes, (90, 100, 200))
    assert int(counts.sum()) == 500
    assert counts.tolist()[::3] == [0, 0]
    assert accuracy[::3].isnan().all()
    small = object_sizes < 100
    assert int(counts[1]) == int(small.sum())
    expected = (logits.argmax(1) == labels)[small].double().mean()
    assert float(accuracy[1]) == pytest.approx(float(expected), abs=1e-15)


def test_wrong_shapes_and_edges_are_named() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    with pytest.raises(ShapeError, match=r"got \[3\], \[3\] and \[4\]"):
        accuracy_by_size(three, three, four)
    with pytest.raises(OptionError, match="ascending"):
        accuracy_by_bucket(three, three, three, (40, 20))


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ([0.5, 0.96, 1.0, 0.95, 0.94], (20, 40)),
        ([1.0, 0.9, 0.97, 0.98, 0.99], (10, 10)),  # 0.99 is not next to the best
        ([1.0, 0.9, 0.97, 1.0, 0.99], (30, 50)),  # of two best sizes, the wider range
        ([1.0, 0.9, 0.8, 0.9, 1.0], (50, 50)),  # of two equal ranges, the larger sizes
        ([0.76, 0.8, 0.75, math.nan, 0.1], (10, 20)),  # 0.76 is 95 % of 0.8
        ([0.5, math.nan, 0.5, 0.0, 0.0], (10, 30)),  # size 20 has no images
    ],
)
def test_usable_range(accuracy: list[float], expected: tuple[float, float]) -> None:
    sizes, values = torch.arange(10, 60, 10), torch.tensor(accuracy, dtype=torch.float64)
    assert usable_range(sizes, values) == expected
    assert usable_range(sizes.flip(0), values.flip(0)) == expected


def test_usable_range_of_nothing() -> None:
    sizes, nothing = torch.arange(3), torch.zeros(3)
    assert all(math.isnan(end) for end in usable_range(sizes, nothing))
    with pytest.raises(OptionError, match=r"keep must lie in \(0, 1\]"):
        usable_range(sizes, nothing, keep=95)


def test_prediction_leaves_every_module_in_its_mode() -> None:
    class Shy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return x.flatten(1)

    model = Shy()
    model.add_module("frozen", nn.BatchNorm2d(3).eval())
    images = torch.rand(10, 1, 2, 2)
    assert torch.equal(predict(model, images, batch_size=3), images.flatten(1).argmax(1))
    assert [module.training for module in model.modules()] == [True, False]

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equiscale import Split, StirDataset, load_dataset
from equiscale.metrics import accuracy_per_size, measure_predictions, predict


class ByBrightness(nn.Module):
    """Guesses the class from the mean brightness, so differently at different sizes."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise AssertionError("evaluated in training mode")
        position = x.mean((1, 2, 3)) * 300 % 36
        return -(torch.arange(36) - position[:, None]).abs()


@pytest.fixture(scope="module")
def dataset(emoji_file: Path) -> StirDataset:
    return load_dataset(emoji_file)


def test_accuracy_per_size_equals_a_direct_count(dataset: StirDataset) -> None:
    model = ByBrightness()
    measured = accuracy_per_size(model, dataset)
    assert list(measured) == list(range(17, 65))
    model.eval()
    for size in (17, 40, 64):
        part = dataset.select(Split.TEST, [size])
        hits = [int(model(image[None]).argmax()) for image in part.images]
        assert measured[size] == np.mean(np.array(hits) == part.labels.numpy())


def test_predictions_do_not_depend_on_the_batch_size(dataset: StirDataset) -> None:
    images = dataset.select(Split.TEST, [20, 30]).images
    assert torch.equal(predict(ByBrightness(), images, 64), predict(ByBrightness(), images, 7))


def test_the_model_is_left_in_its_mode(dataset: StirDataset) -> None:
    model = ByBrightness()
    model.add_module("frozen", nn.BatchNorm2d(3).eval())
    predictions = measure_predictions(model, dataset)
    assert [module.training for module in model.modules()] == [True, False]
    assert len(predictions.predicted) == 48 * 36
    assert predictions.predicted.dtype == np.uint8

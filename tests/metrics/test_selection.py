from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equiscale import SConv2d, Split, StirDataset, create_model, load_dataset
from equiscale.core.errors import OptionError
from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled.pooling import PoolMode
from equiscale.metrics.selection import measure_scale_selection, scale_selection

KERNELS = (33, 41, 49)


class OneLayer(nn.Module):
    def __init__(self, pool: PoolMode) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer = SConv2d(1, 3, 33, kernel_sizes=KERNELS, pool=pool)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.layer(x)
        assert isinstance(values, Tensor)
        return values.amax((2, 3))


@pytest.fixture(scope="module")
def dataset(emoji_file: Path) -> StirDataset:
    return load_dataset(emoji_file)


@pytest.mark.parametrize("pool", ["pixel", "slice", "energy"])
def test_the_choice_equals_that_of_the_stack(dataset: StirDataset, pool: PoolMode) -> None:
    model = OneLayer(pool)
    measured = scale_selection(model, dataset, batch_size=32)
    assert measured.chosen["layer"].shape == (48, 36, 3)
    assert dataset.class_names[measured.example] == "smile"
    image = dataset.select(Split.TEST, [50]).images[measured.example][None]
    layer = model.layer
    stack = (
        scaled_conv2d(image, layer.weight, layer.bias, kernel_sizes=KERNELS, method="direct")[0]
        .detach()
        .numpy()
    )
    for channel, maps in enumerate(stack):
        if pool == "energy":
            index = int(maps.sum((1, 2)).argmax())
        else:  # the kernel behind the largest response of all
            index = int(maps.max((1, 2)).argmax())
        assert measured.chosen["layer"][50 - 17, measured.example, channel] == KERNELS[index]
        if pool == "pixel":
            shown = measured.maps["layer"][50 - 17, channel]
            assert np.array_equal(shown, np.array(KERNELS)[maps.argmax(0)])


def test_maps_of_a_network_that_gives_logits_without_them(dataset: StirDataset) -> None:
    model = create_model("pixel_pool", in_channels=1, num_classes=36, kernel_sizes=(7, 21))
    measured = scale_selection(model, dataset)
    assert measured.maps["conv1"].shape == (48, 16, 58, 58)
    assert measured.maps["conv2"].shape == (48, 32, 52, 52)
    assert measured.chosen["conv2"].shape == (48, 36, 32)


def test_the_layer_is_left_as_it_was(dataset: StirDataset) -> None:
    model = OneLayer("slice")
    scale_selection(model, dataset)
    assert isinstance(model.layer(torch.rand(1, 1, 64, 64)), Tensor)
    record = measure_scale_selection(model, dataset)
    assert record is not None
    assert record.values["layers"] == {"layer": "slice"}
    assert record.arrays["chosen.layer"].dtype == np.uint8


def test_a_model_without_such_layers_is_refused(dataset: StirDataset) -> None:
    with pytest.raises(OptionError, match="no SConv2d layer with a pool"):
        scale_selection(nn.Conv2d(1, 2, 3), dataset)
    assert measure_scale_selection(nn.Conv2d(1, 2, 3), dataset) is None

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equiscale import SConv2d, create_model
from equiscale.core.errors import OptionError
from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled.pooling import PoolMode
from equiscale.metrics import scale_selection, selection_correlation
from equiscale.metrics.selection import recording

KERNELS = (9, 13, 17)


@pytest.mark.parametrize("pool", ["pixel", "slice", "energy"])
def test_the_choice_equals_that_of_the_stack(pool: PoolMode) -> None:
    torch.manual_seed(4)
    layer = SConv2d(1, 3, 9, kernel_sizes=KERNELS, pool=pool)
    model, images = nn.Sequential(layer), torch.rand(5, 1, 24, 24)
    chosen = scale_selection(model, images, batch_size=2)["0"]
    with torch.no_grad(), recording(model) as selections:
        model(images)
    stacks = scaled_conv2d(
        images, layer.weight, layer.bias, kernel_sizes=KERNELS, method="direct"
    ).detach()
    for item, stack in enumerate(stacks.numpy()):
        for channel, maps in enumerate(stack):
            # Pixel and slice pooling pass on the kernel behind the largest response of all.
            strength = maps.sum((1, 2)) if pool == "energy" else maps.max((1, 2))
            assert int(chosen[item, channel]) == KERNELS[int(strength.argmax())]
            if pool == "pixel":
                shown = selections["0"].kernel_sizes[item, channel].numpy()
                assert np.array_equal(shown, np.array(KERNELS)[maps.argmax(0)])
    assert isinstance(layer(images), Tensor)  # the hooks are gone


def test_a_network_that_computes_logits_without_maps() -> None:
    model = create_model("pixel_pool", in_channels=1, num_classes=5, kernel_sizes=(7, 9))
    chosen = scale_selection(model, torch.rand(2, 1, 24, 24))
    assert {name: tuple(sizes.shape) for name, sizes in chosen.items()} == {
        "conv1": (2, 16),
        "conv2": (2, 32),
    }


def test_correlation_equals_numpys() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes, kernels = torch.arange(17, 65), torch.randint(7, 63, (48, 3, 4), generator=generator)
    kernels[:, 2, 3] = 7
    found = selection_correlation(sizes, kernels)
    expected = np.corrcoef(sizes.numpy(), kernels[:, 1, 2].numpy())[0, 1]
    assert float(found[1, 2]) == pytest.approx(expected, abs=1e-12)
    assert found[2, 3].isnan()


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(OptionError, match="Conv2d has no SConv2d layer with a pool"):
        scale_selection(nn.Conv2d(1, 2, 3), torch.rand(1, 1, 8, 8))

# %% [markdown]
# # Make a ResNet respond alike to small and large objects
#
# `equiscale.convert` replaces the convolutions of any network by scaled ones: the same weights,
# the same sizes everywhere, but each kernel is applied at every size that fits and the strongest
# response is kept.

# %%
import torch
from torch import Tensor, nn

import equiscale

# %% [markdown]
# A small ResNet, written as one would:


# %%
class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H / stride, W / stride]`."""
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


class SmallResNet(nn.Module):
    """`[N, C, H, W] -> [N, num_classes]`."""

    def __init__(self, in_channels: int, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 7, padding=3)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, 2 * width]`: the strongest response of each channel."""
        return self.blocks(torch.relu(self.stem(x))).amax((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`."""
        return self.head(self.features(x))


# %% [markdown]
# Convert it. Parameters keep their names and values, so that a checkpoint of the one loads into
# the other.

# %%
torch.manual_seed(1)
plain = SmallResNet(in_channels=1, num_classes=10).eval()
scaled = equiscale.convert(plain, pool="pixel", num_scales=10)
stem_only = equiscale.convert(plain, pool="pixel", num_scales=10, layers="stem")  # or choose layers

print(scaled.stem)
assert list(scaled.state_dict()) == list(plain.state_dict())

# %% [markdown]
# How much do the features of a ring change when it grows? Zero would be perfect invariance. The
# networks are untrained: less than half the change is what the architecture gives for nothing.
# It does so for objects that are larger than the smallest kernel and clear of the border; with a
# first radius of 5 pixels there is no gain, because kernels are only ever enlarged.


# %%
def draw_ring(radius: float, side: int = 96) -> Tensor:
    """`-> [1, 1, side, side]`: a ring in the middle of the canvas, with soft edges."""
    axis = torch.arange(side) - (side - 1) / 2
    distance = (axis[:, None] ** 2 + axis[None, :] ** 2).sqrt()
    return torch.exp(-(((distance - radius) / (0.25 * radius)) ** 2))[None, None]


def feature_change(model: SmallResNet, small: float, large: float) -> float:
    """Return the relative change of the features when a ring grows."""
    with torch.inference_mode():
        before, after = (model.features(draw_ring(radius)) for radius in (small, large))
    return float((after - before).norm() / before.norm())


print("radius   plain   stem converted   all converted")
for large in (12.0, 16.0, 24.0):
    changes = [feature_change(model, 8.0, large) for model in (plain, stem_only, scaled)]
    print(f"8 → {large:<4g} {changes[0]:6.1%} {changes[1]:16.1%} {changes[2]:15.1%}")

# %% [markdown]
# Outputs of a trained network change when it is converted: fine-tune it. Without `num_scales` each
# layer takes every kernel size that fits its input, which costs more; `num_scales=1` computes what
# the plain network did.

# %%
same = equiscale.convert(plain, num_scales=1)
x = torch.rand(2, 1, 64, 64)
assert torch.allclose(same(x), plain(x), atol=1e-4)

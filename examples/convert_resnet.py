# %% [markdown]
# # Make a ResNet respond alike to small and large objects
#
# `equiscale.convert` replaces the convolutions of any network by scaled convolutions. Weights and
# output sizes stay the same, but each layer applies its kernel at several sizes and keeps the
# strongest response.

# %%
import torch
from torch import Tensor, nn

import equiscale

# %% [markdown]
# A small ResNet in plain PyTorch:


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
# Convert it. `num_scales` is the number of kernel sizes of each layer. Parameters keep their names
# and values, so a checkpoint of one network loads into the other. `layers` chooses the layers.

# %%
torch.manual_seed(0)
plain = SmallResNet(in_channels=1, num_classes=10).eval()
scaled = equiscale.convert(plain, pool="pixel", num_scales=10)
stem_only = equiscale.convert(plain, pool="pixel", num_scales=10, layers="stem")

print(scaled.stem)
assert list(scaled.state_dict()) == list(plain.state_dict())

# %% [markdown]
# How much do the features of a ring change when it grows? Zero would be perfect invariance. The
# networks are untrained, so this shows the architecture alone: averaged over eight draws of the
# weights, the features change by about a third less. Rings smaller than the kernel gain less,
# because kernels are only enlarged.


# %%
def draw_ring(radius: float, side: int = 96) -> Tensor:
    """`-> [1, 1, side, side]`: a ring in the middle of the canvas, with soft edges."""
    axis = torch.arange(side) - (side - 1) / 2
    distance = (axis[:, None] ** 2 + axis[None, :] ** 2).sqrt()
    return torch.exp(-(((distance - radius) / (0.25 * radius)) ** 2))[None, None]


def feature_changes(model: SmallResNet, radii: tuple[float, ...]) -> Tensor:
    """`-> [len(radii) - 1]`: relative change of the features from the first ring to the others."""
    with torch.inference_mode():
        first, *others = (model.features(draw_ring(radius)) for radius in radii)
    return torch.stack([(other - first).norm() / first.norm() for other in others])


radii, changes = (8.0, 16.0, 24.0), []
for seed in range(8):
    torch.manual_seed(seed)
    network = SmallResNet(in_channels=1, num_classes=10).eval()
    converted = equiscale.convert(network, pool="pixel", num_scales=10)
    changes.append(torch.stack([feature_changes(m, radii) for m in (network, converted)]))

before, after = torch.stack(changes).unbind(dim=1)  # [seeds, rings] each
for index, radius in enumerate(radii[1:]):
    better = int((after < before)[:, index].sum())
    means = f"{before[:, index].mean():.1%} plain, {after[:, index].mean():.1%} converted"
    print(f"radius 8 → {radius:g}: {means}; less for {better} of {len(changes)} networks")

# %% [markdown]
# Converting a trained network changes its outputs: fine-tune it. With `num_scales=1` it computes
# what the plain network did.

# %%
same = equiscale.convert(plain, num_scales=1)
x = torch.rand(2, 1, 64, 64)
assert torch.allclose(same(x), plain(x), atol=1e-4)

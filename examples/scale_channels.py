# %% [markdown]
# # A network that keeps its accuracy when objects change their size
#
# `equiscale.scale_channels` wraps any classifier: the network is run on several rescaled views of
# the image, and the probabilities of its answers are averaged. Each training step takes one or two
# views on average. The number of parameters stays the same.

# %%
import torch
from torch import Tensor, nn

import equiscale

# %% [markdown]
# Five shapes, drawn at any size and place.

# %%
SHAPES = ("disc", "ring", "square", "diamond", "cross")


def draw(shape: str, size: float, column: float, row: float, side: int = 64) -> Tensor:
    """`-> [1, side, side]`: one white shape on black, its edges one pixel soft."""
    axis = torch.arange(side) + 0.5
    x, y = axis[None, :] - column, axis[:, None] - row
    radius = size / 2
    distance = (x**2 + y**2).sqrt()
    inside = {
        "disc": radius - distance,
        "ring": radius / 4 - (distance - 0.75 * radius).abs(),
        "square": radius - torch.maximum(x.abs(), y.abs()),
        "diamond": radius - x.abs() - y.abs(),
        "cross": torch.minimum(
            radius / 4 - torch.minimum(x.abs(), y.abs()), radius - torch.maximum(x.abs(), y.abs())
        ),
    }[shape]
    return (inside + 0.5).clamp(0, 1)[None]


def draw_batch(count: int, sizes: range, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`-> [N, 1, 64, 64], [N]`: shapes of random kind, size and place, and their labels."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    images = []
    for label in labels.tolist():
        size = sizes[int(torch.randint(len(sizes), (1,), generator=generator))]
        column, row = (size / 2 + torch.rand(2, generator=generator) * (64 - size)).tolist()
        images.append(draw(SHAPES[label], size, column, row))
    return torch.stack(images), labels


# %% [markdown]
# A small residual network, plain and wrapped.


# %%
class Block(nn.Module):
    """A convolution and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, C, H, W]`."""
        return x + torch.relu(self.conv(x))


def build_network() -> nn.Module:
    """`[N, 1, H, W] -> [N, 5]`, always with the same initial weights."""
    torch.manual_seed(0)
    stem = nn.Conv2d(1, 12, 5, padding=2, stride=2)
    body = nn.Sequential(stem, nn.ReLU(), Block(12), Block(12), nn.AdaptiveMaxPool2d(1))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(12, len(SHAPES)))


networks = {"plain": build_network(), "wrapped": equiscale.scale_channels(build_network())}

# %% [markdown]
# Both are trained on small shapes only, 16 to 24 pixels, and tested on others up to 60.


# %%
def train(network: nn.Module, steps: int = 240) -> None:
    """Train; all networks see the same batches."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    network.train()
    for _ in range(steps):
        images, labels = draw_batch(24, range(16, 25), generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    network.eval()


def accuracy(network: nn.Module, sizes: range) -> float:
    """Return the accuracy on new shapes."""
    images, labels = draw_batch(200, sizes, torch.Generator().manual_seed(2))
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).float().mean())


print("sizes     " + "  ".join(f"{name:>8}" for name in networks))
for network in networks.values():
    train(network)
for sizes in (range(16, 25), range(25, 37), range(37, 49), range(49, 61)):
    found = "  ".join(f"{accuracy(network, sizes):8.0%}" for network in networks.values())
    print(f"{sizes[0]} to {sizes[-1]}  {found}")

"""What scale channels do to networks with and without normalisation, on and without a canvas.

The shapes and the residual network of `examples/scale_channels.py`, with a normalisation behind
every convolution: trained on shapes of 16 to 24 pixels, tested on shapes of 49 to 60. Once the
shapes are black on white, where a canvas of zeros does not continue the background.

    python perf/batch_norm.py

`make study` then brings the figures to `docs/scale-channels.md`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import write_results
from torch import Tensor, nn

from equiscale import scale_channels
from equiscale.models.families.scale_channels import TRAIN_FACTORS

EXAMPLE = Path(__file__).parents[1] / "examples" / "scale_channels.py"
SEEDS = range(6)
STEPS = 240
TRAINED, TESTED = range(16, 25), range(49, 61)
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(4, channels),
}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "no scale channels": lambda network: network,
    'canvas="replicate"': scale_channels,
    'canvas="zeros"': lambda n: scale_channels(n, canvas="zeros"),
    'canvas="none"': lambda n: scale_channels(n, canvas="none"),
    "no canvas, trained with the model's views": lambda n: scale_channels(
        n, train_factors=TRAIN_FACTORS, canvas="none"
    ),
}
CASES = {
    "none": ("none", False),
    "batch": ("batch", False),
    "group": ("group", False),
    "batch, white background": ("batch", True),
}
"""Normalisation, and whether light and dark are exchanged."""
WIDTH = 12


class Block(nn.Module):
    """`[N, C, H, W] -> [N, C, H, W]`: a normalised convolution and a shortcut."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), norm(WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, C, H, W]`."""
        return x + self.body(x)


def build_network(norm: Callable[[int], nn.Module], classes: int) -> nn.Module:
    """`[N, 1, H, W] -> [N, classes]`."""
    stem = nn.Sequential(nn.Conv2d(1, WIDTH, 5, padding=2, stride=2), norm(WIDTH), nn.ReLU())
    body = nn.Sequential(Block(norm), Block(norm), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return nn.Sequential(stem, body, nn.Linear(WIDTH, classes))


Draw = Callable[..., tuple[Tensor, Tensor]]


def inverted(draw_batch: Draw) -> Draw:
    """Return what draws black shapes on white."""

    def draw(*arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - those of `draw_batch`
        images, labels = draw_batch(*arguments)
        return 1 - images, labels

    return draw


def measure(network: nn.Module, draw_batch: Draw, seed: int) -> float:
    """Train a network, and return its accuracy on shapes larger than those it was trained on."""
    generator = torch.Generator().manual_seed(1 + seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    network.train()
    for _ in range(STEPS):
        images, labels = draw_batch(24, TRAINED, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    network.eval()
    images, labels = draw_batch(200, TESTED, torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).double().mean())


def main() -> None:
    """Write one row per normalisation and way of training."""
    torch.set_num_threads(1)
    example = load_example()
    rows: list[dict[str, Any]] = []
    for case, (norm, white) in CASES.items():
        draw_batch = inverted(example["draw_batch"]) if white else example["draw_batch"]
        for wrapper, wrap in WRAPPERS.items():
            found = []
            for seed in SEEDS:
                torch.manual_seed(seed)
                network = wrap(build_network(NORMS[norm], len(example["SHAPES"])))
                found.append(measure(network, draw_batch, seed))
            rows.append({"norm": case, "wrapper": wrapper, "accuracies": found})
            print(f"{case}, {wrapper}: {100 * statistics.mean(found):.1f}", flush=True)
    print(f"written to {write_results('batch_norm', rows)}")


def load_example() -> dict[str, Any]:
    """Return what the cells of the example define, up to where it begins to train."""
    cells = EXAMPLE.read_text(encoding="utf-8").partition("\nnetworks = ")[0]
    names: dict[str, Any] = {}
    exec(compile(cells, EXAMPLE.name, "exec"), names)
    return names


if __name__ == "__main__":
    main()

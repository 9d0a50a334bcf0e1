"""What a residual network gains by scale channels on photos: accuracy at every object size.

One network with batch normalisation is trained on gtsrb three times: plain, with rescaling
augmentation, and wrapped in scale channels. The script can be stopped and goes on where it was:

    EQUISCALE_DATA=study/data python study/backbone.py

The curves go to `study/backbone.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import equiscale

HERE = Path(__file__).parent
WIDTHS = (24, 48, 96)
EPOCHS = 20


class Block(nn.Module):
    """`[N, C, H, W] -> [N, O, H/s, W/s]`: two convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1:
            convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H/s, W/s]`."""
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResidualNet(nn.Sequential):
    """`[N, C, H, W] -> [N, num_classes]`: three residual blocks, global mean, linear."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        stem = nn.Conv2d(in_channels, WIDTHS[0], 3, 2, padding=1, bias=False)
        super().__init__(
            *(stem, nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()),
            Block(WIDTHS[0], WIDTHS[0], 1),
            Block(WIDTHS[0], WIDTHS[1], 2),
            Block(WIDTHS[1], WIDTHS[2], 2),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[2], num_classes)),
        )


def wrapped_net(in_channels: int, num_classes: int) -> nn.Module:
    """Return the network in scale channels, with the wrapper's defaults."""
    return equiscale.scale_channels(ResidualNet(in_channels, num_classes))


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (ResidualNet, {}),
    "rescaling augmentation": (ResidualNet, {"augmentation": "rescale"}),
    "scale channels": (wrapped_net, {}),
}


def train(case: str, scenario: str, runs: Path) -> dict[str, Any]:
    """Train one case, or read its record; return accuracy at trained, unseen and single sizes."""
    factory, training = CASES[case]
    result = equiscale.benchmark(
        factory,
        dataset="gtsrb",
        scenarios=scenario,
        seeds=1,
        runs=runs,
        max_epochs=EPOCHS,
        **training,
    )
    study = result.study.where(model=result.model, protocol=result.sweep.protocol.label)
    (run,) = study.runs.filter(scenario=scenario).iter_rows(named=True)
    sizes = study.sizes.filter(scenario=scenario).sort("object_size")
    curve = dict(sizes.select("object_size", "mean").iter_rows())
    return {
        "validation": round(run["valid_accuracy"], 4),
        "unseen sizes": round(run["test_accuracy"], 4),
        "epochs": run["epochs"],
        "per size": {str(size): round(accuracy, 4) for size, accuracy in curve.items()},
    }


def main(arguments: list[str]) -> None:
    """Train what is missing and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=HERE / "backbone_runs")
    parser.add_argument("--scenario", default="mid2rest")
    options = parser.parse_args(arguments)
    network = ResidualNet(3, 16)
    curves = {case: train(case, options.scenario, options.runs) for case in CASES}
    results = {
        "dataset": "gtsrb",
        "scenario": options.scenario,
        "seed": 1,
        "max_epochs": EPOCHS,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "cases": curves,
    }
    (HERE / "backbone.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

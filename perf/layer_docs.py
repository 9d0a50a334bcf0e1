"""Draw `docs/images/layer-cost.svg` and `layer-threads.svg` from what `perf/layer.py` has measured.

python perf/layer_docs.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STYLES: dict[str, dict[str, str]] = {
    "direct": {"color": "#999999", "marker": "s", "label": "direct (the definition)"},
    "spectral": {"color": "#0072b2", "marker": "o", "label": "spectral"},
    "auto": {"color": "#d55e00", "marker": "x", "linestyle": "--", "label": "auto"},
}


def load(part: str) -> list[dict[str, Any]]:
    """Return the measured rows of one part of the benchmark."""
    rows: list[dict[str, Any]] = json.loads(
        (ROOT / "perf" / "figures" / f"layer_{part}.json").read_text()
    )["rows"]
    return rows


def operations_ratio(n: int, k: int = 7) -> float:
    """Operations of all kernel sizes over those of one convolution, by the paper's formula."""
    counts = [size**2 * (n - size + 1) ** 2 for size in range(k, n + 1, 2)]
    return sum(counts) / counts[0]


def draw() -> None:
    """Draw the ratios over the size of the input and over the number of threads."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "equiscale", "svg.fonttype": "none", "font.size": 10})
    _draw_sizes([row for row in load("sizes") if row.get("threads", 1) == 1])
    _draw_threads(load("threads"))


def _draw_sizes(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    every = sorted({row["n"] for row in rows})
    counts = [operations_ratio(n) for n in every]
    axes.plot(every, counts, color="#bbbbbb", linestyle=":", label="operations of the definition")
    for method, style in STYLES.items():
        own = [(row["n"], row["ratio"]) for row in rows if row["method"] == method]
        axes.plot(*zip(*own, strict=True), **style)
    axes.set(xlabel="side n of the input (pixels)", ylabel="time / time of Conv2d")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(every, [str(n) for n in every])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title("One layer 16→32, 7×7 kernel at every size that fits, pixel pooling", size=10)
    figure.savefig(ROOT / "docs" / "images" / "layer-cost.svg", metadata={"Date": None})


def _draw_threads(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
    for model, color in (("Conv2d", "#999999"), ("pixel", "#0072b2")):
        own = [(row["num_threads"], row["to one thread"]) for row in rows if row["model"] == model]
        axes.plot(*zip(*own, strict=True), color=color, marker="o", label=model)
    counts = sorted({row["num_threads"] for row in rows})
    axes.plot(counts, [1 / count for count in counts], color="#bbbbbb", ls=":", label="ideal")
    axes.set(xlabel="threads", ylabel="time / time on one thread", xticks=counts, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title("One layer 16→32 at 64×64, forward and backward", size=10)
    figure.savefig(ROOT / "docs" / "images" / "layer-threads.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()

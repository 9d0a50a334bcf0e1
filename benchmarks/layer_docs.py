"""Bring the figures of `benchmarks/layer.py` into the documentation.

    python benchmarks/layer_docs.py

Rewrites the tables of `docs/fast-layer.md` and draws `docs/images/layer-cost.svg`, both from
`benchmarks/results/`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "fast-layer.md"
MARKED = re.compile(r"(<!-- begin: ([\w-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
STYLES: dict[str, dict[str, str]] = {
    "direct": {"color": "#999999", "marker": "s", "label": "direct (the definition)"},
    "spectral": {"color": "#0072b2", "marker": "o", "label": "spectral"},
    "auto": {"color": "#d55e00", "marker": "x", "linestyle": "--", "label": "auto"},
}
LABELS = {
    "training step": "training step, `{}` / `standard`",
    "inference": "inference, `{}` / `standard`",
    "forward and backward, 64×64": "one layer 16→32 at 64×64, dense gradient, {} pooling / Conv2d",
    "unpooled stack, to direct's": "unpooled stack 16→32 at 64×64, {} / direct",
    "peak memory above standard's (MB)": "peak memory of a step, `{}` above `standard` (MB)",
}


def load(part: str) -> list[dict[str, Any]]:
    """Return the measured rows of one part of the benchmark."""
    rows: list[dict[str, Any]] = json.loads(
        (ROOT / "benchmarks" / "results" / f"layer_{part}.json").read_text()
    )["rows"]
    return rows


def table() -> str:
    """Return the table of costs in Markdown."""
    lines = ["| what | measured |", "| --- | --- |"]
    for row in [*load("networks"), *load("layer"), *load("memory")]:
        if row["model"] in ("standard", "Conv2d", "direct"):
            continue
        value = row.get("ratio", row.get("megabytes"))
        lines.append(f"| {LABELS[row['what']].format(row['model'])} | {value:.2g} |")
    for row in load("sizes"):
        if row["method"] == "spectral" and row["n"] >= 128:
            what = f"one layer 16→32 forward at {row['n']}×{row['n']}, pixel pooling / Conv2d"
            lines.append(f"| {what} | {row['ratio']:.2g} |")
    return "\n".join(lines) + "\n"


def choices() -> str:
    """Return the table of what `auto` makes of many shapes, in Markdown."""
    lines = ["| layer | input | spectral / direct | auto / the better |"]
    lines.append("| --- | --- | --- | --- |")
    for row in load("shapes"):
        options = dict(row["layer"])
        channels = f"{options.pop('in_channels')}→{options.pop('out_channels')}"
        layer = f"{channels}, k = {options.pop('kernel_size')}"
        layer += "".join(f", {name} {_text(value)}" for name, value in options.items())
        shape = "×".join(map(str, row["input"]))
        cells = [layer, shape, f"{row['spectral']:.2g}", f"{row['auto/best']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


TABLES = {"cost": table, "choices": choices}


def operations_ratio(n: int, k: int = 7) -> float:
    """Operations of all kernel sizes over those of one convolution, by the paper's formula."""
    counts = [size**2 * (n - size + 1) ** 2 for size in range(k, n + 1, 2)]
    return sum(counts) / counts[0]


def draw() -> None:
    """Draw the ratio over the size of the input."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "equiscale", "svg.fonttype": "none", "font.size": 10})
    rows = load("sizes")
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


def main() -> None:
    """Rewrite the tables and draw the figure."""
    page = PAGE.read_text()
    PAGE.write_text(MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page))
    draw()


if __name__ == "__main__":
    main()

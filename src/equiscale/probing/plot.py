"""The curves of a probe as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter

from equiscale.probing.page import style_networks

if TYPE_CHECKING:
    from equiscale.probing.report import ProbeReport

_TITLES = {
    "accuracy": "accuracy",
    "agreement": "agreement with full size",
    "confidence": "confidence",
}


def plot_report(report: ProbeReport) -> Figure:
    """Draw accuracy (if there are labels), agreement and confidence over object size."""
    shown = [name for name in _TITLES if report.labelled or name != "accuracy"]
    figure = Figure(figsize=(3.4 * len(shown), 3.2), layout="constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, shown, strict=True):
        _draw(axis, report, name)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _draw(axis: Any, report: ProbeReport, name: str) -> None:  # noqa: ANN401 - an axes
    for finding in report.findings:
        style, rows = style_networks(report)[finding.name], finding.rows
        sizes = [row["object_size"] for row in rows]
        values = [row[name] for row in rows]
        axis.plot(sizes, values, style.marker, ls="-", ms=4, color=style.light, label=style.label)
        if f"{name}_low" in rows[0]:
            low, high = ([row[f"{name}_{end}"] for row in rows] for end in ("low", "high"))
            axis.fill_between(sizes, low, high, color=style.light, alpha=0.15, lw=0)
    axis.set_xscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set(title=_TITLES[name], xlabel="object size, pixels", ylim=(0, 1.02))
    axis.grid(color="#e7e9ec")

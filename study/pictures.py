"""Pictures of accuracy at every object size, for the README and for photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from equiscale import Scenario
from equiscale.analysis.summaries import ModelKey
from equiscale.report.style import scenario_label, style_models
from study.evidence import TRANSFER, Evidence

COLOURS = ("#888888", "#d98c00", "#1f77b4", "#b07aa1", "#2a8a3e")
STYLE: dict[Any, Any] = {"svg.hashsalt": "equiscale", "svg.fonttype": "path", "font.size": 9}


Curves = Mapping[str, Mapping[int, float]]
"""By label: accuracy at each object size."""


def model_curves(
    evidence: Evidence, dataset: str, models: Sequence[str]
) -> tuple[dict[Scenario, Curves], dict[str, str]]:
    """Return the curves of models in each scenario, and the colour of each label."""
    styles = {key.model: style for key, style in style_models(map(ModelKey, models)).items()}
    panels: dict[Scenario, Curves] = {
        scenario: {
            style.label: curve
            for model, style in styles.items()
            if (curve := evidence.curve(dataset, scenario, model))
        }
        for scenario in TRANSFER
    }
    return panels, {style.label: style.light for style in styles.values()}


def draw_curves(panels: Mapping[Scenario, Curves], colours: Mapping[str, str], path: Path) -> None:
    """Draw accuracy over object size, one panel per scenario with curves."""
    filled = {scenario: curves for scenario, curves in panels.items() if curves}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2 + 2.5 * len(filled), 3), layout="constrained")
        axes = figure.subplots(1, len(filled), sharey=True, squeeze=False)[0]
        for axis, (scenario, curves) in zip(axes, filled.items(), strict=True):
            _draw_panel(axis, scenario, curves, colours)
        axes[0].set_ylabel("accuracy (%)")
        figure.supxlabel("object size (pixels); shaded: sizes in training", size=9)
        lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        figure.legend(
            lines.values(), lines.keys(), loc="outside upper center", ncols=2, frameon=False
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw_panel(
    axis: mpl.axes.Axes, scenario: Scenario, curves: Curves, colours: Mapping[str, str]
) -> None:
    trained = scenario.train_sizes()
    axis.axvspan(min(trained), max(trained), color="#dddddd", linewidth=0)
    for label, curve in curves.items():
        means = [100 * mean for mean in curve.values()]
        axis.plot(list(curve), means, color=colours[label], label=label)
    axis.set(title=scenario_label(scenario), xlim=(17, 64), ylim=(0, 102), xticks=(17, 32, 48, 64))
    axis.grid(alpha=0.3)

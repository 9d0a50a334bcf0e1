"""Pictures of accuracy at every object size, for the README and for photos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from equiscale import Scenario
from equiscale.analysis.summaries import ModelKey
from equiscale.report.style import scenario_label, style_models
from study.evidence import TRANSFER, Evidence

STYLE: dict[Any, Any] = {"svg.hashsalt": "equiscale", "svg.fonttype": "path", "font.size": 9}


def draw_curves(evidence: Evidence, dataset: str, models: Sequence[str], path: Path) -> None:
    """Draw accuracy over object size, one panel per scenario in which a model was run."""
    scenarios = [s for s in TRANSFER if any(evidence.curve(dataset, s, m) for m in models)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2 + 2.5 * len(scenarios), 3), layout="constrained")
        axes = figure.subplots(1, len(scenarios), sharey=True, squeeze=False)[0]
        for axis, scenario in zip(axes, scenarios, strict=True):
            _draw_panel(axis, evidence, dataset, models, scenario)
        axes[0].set_ylabel("accuracy (%)")
        figure.supxlabel("object size (pixels); shaded: sizes in training", size=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw_panel(
    axis: mpl.axes.Axes,
    evidence: Evidence,
    dataset: str,
    models: Sequence[str],
    scenario: Scenario,
) -> None:
    trained = scenario.train_sizes()
    axis.axvspan(min(trained), max(trained), color="#dddddd", linewidth=0)
    for key, style in style_models(map(ModelKey, models)).items():
        if curve := evidence.curve(dataset, scenario, key.model):
            means = [100 * mean for mean in curve.values()]
            axis.plot(list(curve), means, color=style.light, label=style.label)
    axis.set(title=scenario_label(scenario), xlim=(17, 64), ylim=(0, 102), xticks=(17, 32, 48, 64))
    axis.grid(alpha=0.3)

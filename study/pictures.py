"""The picture of the README: accuracy at every object size, of three models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from equiscale import Scenario
from equiscale.analysis.summaries import ModelKey
from equiscale.report.style import scenario_label, style_models
from study.evidence import TRANSFER, Evidence

MODELS = ("standard", "pixel_pool", "scale_channels")
STYLE: dict[Any, Any] = {"svg.hashsalt": "equiscale", "svg.fonttype": "path", "font.size": 9}


def draw_headline(evidence: Evidence, path: Path) -> None:
    """Draw accuracy over object size on emoji, one panel per scenario in which all were run."""
    complete = [s for s in TRANSFER if all(evidence.curve("emoji", s, m) for m in MODELS)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2 + 2.5 * len(complete), 3), layout="constrained")
        axes = figure.subplots(1, len(complete), sharey=True, squeeze=False)[0]
        for axis, scenario in zip(axes, complete, strict=True):
            _draw_panel(axis, evidence, scenario)
        axes[0].set_ylabel("accuracy (%)")
        figure.supxlabel("object size (pixels); shaded: sizes in training", size=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw_panel(axis: mpl.axes.Axes, evidence: Evidence, scenario: Scenario) -> None:
    trained = scenario.train_sizes()
    axis.axvspan(min(trained), max(trained), color="#dddddd", linewidth=0)
    for key, style in style_models(map(ModelKey, MODELS)).items():
        curve = evidence.curve("emoji", scenario, key.model) or {}
        means = [100 * mean for mean in curve.values()]
        axis.plot(list(curve), means, color=style.light, label=style.label)
    axis.set(title=scenario_label(scenario), xlim=(17, 64), ylim=(0, 102), xticks=(17, 32, 48, 64))
    axis.grid(alpha=0.3)

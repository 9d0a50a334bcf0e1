"""One label, colour, dash and marker per model, the same in every figure and on the page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from equiscale.analysis.summaries import ModelKey
from equiscale.core.spec import Scenario
from equiscale.core.variants import VARIANTS

TEXT_LIGHT, TEXT_DARK = "#1b1f24", "#e8eaed"
PAPER_LIGHT, PAPER_DARK = "#ffffff", "#15181d"
MARKERS = "osdDpPXh*v^<>"
"""Matplotlib's names of the markers in use; the page draws the same."""

PAPER_DATASETS = ("emoji", "mnist", "trafficsign", "aerial")


@dataclass(frozen=True)
class ModelStyle:
    """How one model is drawn."""

    label: str  # a few words for people
    light: str  # colour on white, contrast at least 3 : 1
    dark: str  # colour on near black, contrast at least 3 : 1
    dash: str  # SVG dash pattern; empty for a solid line
    marker: str  # one of `MARKERS`


# Hues after Okabe and Ito and Paul Tol, darkened for white and lightened for black; colours that
# a colour-blind reader could take for one another differ in dash and in marker.
_SOLID, _LONG, _SHORT, _MIXED = "", "8 3", "2 3", "8 3 2 3"
_LONGEST, _EVEN, _TWO_DOTS, _SPARSE = "12 4", "5 4", "8 3 2 3 2 3", "2 6"
STYLES = {
    "standard": ModelStyle("Standard CNN", "#595f69", "#a9b0bb", _SOLID, "o"),
    "spatial_transform": ModelStyle("Spatial transformer", "#b0457b", "#e58ab8", _LONG, "v"),
    "ensemble": ModelStyle("Pyramid ensemble", "#8a6d00", "#e3c53f", _SHORT, "s"),
    "xu": ModelStyle("Xu et al.", "#117733", "#4fc27a", _LONG, "^"),
    "kanazawa": ModelStyle("Kanazawa et al.", "#007f98", "#57c8de", _MIXED, "D"),
    "hermite": ModelStyle("SES, Hermite", "#882255", "#d977a8", _SHORT, "P"),
    "disco": ModelStyle("SES, DISCO", "#6a4c9c", "#b49be6", _LONG, "X"),
    "pixel_pool": ModelStyle("SConv, pixel pool", "#0063b1", "#5aaef5", _SOLID, "o"),
    "slice_pool": ModelStyle("SConv, slice pool", "#c44400", "#ff8a4c", _SOLID, "d"),
    "energy_pool": ModelStyle("SConv, energy pool", "#a3620a", "#f0b35a", _MIXED, "D"),
    "conv3d": ModelStyle("SConv, 3-D conv", "#287a6c", "#5fd0bb", _SHORT, "p"),
    "scale_channels": ModelStyle("Scale channels", "#4a0d6b", "#f3c9ff", _SOLID, "*"),
    "deep_channels": ModelStyle("Deep channels", "#004d40", "#9dffe9", _LONGEST, "<"),
    "gaussian_derivative": ModelStyle("Gaussian deriv.", "#1d3b8b", "#c3d0ff", _TWO_DOTS, "h"),
    "riesz": ModelStyle("Riesz", "#a01c4b", "#ff8fab", _TWO_DOTS, "X"),
}
_OTHERS = (
    ("#4b5bd7", "#98a3ff", _LONG, "v"),
    ("#a02020", "#ff8080", _MIXED, "P"),
    ("#3d7300", "#9ad04f", _LONG, "X"),
    ("#7d3fb0", "#cc97f5", _SHORT, "^"),
)

_DASHES = (_LONG, _MIXED, _SHORT, _TWO_DOTS, _EVEN, _SPARSE, _LONGEST)
_VARIANT_MARKS = (
    *(("12 4", "<"), ("5 4", ">"), ("2 6", "<"), ("12 4 2 4", ">")),
    *(("5 4 2 4", "P"), ("12 3 5 3", "s"), ("8 6", "^"), ("5 3 2 3 2 3", "*")),
)
_LABEL_LETTERS = 44

SCENARIO_LABELS = {
    Scenario.SMALL_TO_LARGE: "small → large",
    Scenario.MID_TO_REST: "mid → rest",
    Scenario.LARGE_TO_SMALL: "large → small",
    Scenario.ALL_TO_ALL: "all → all",
}
DATASET_LABELS = {
    "emoji": "Emoji",
    "mnist": "MNIST",
    "trafficsign": "Traffic signs",
    "aerial": "Aerial",
    "signs": "Signs",
    "fashion": "Fashion-MNIST",
    "gtsrb": "German traffic signs",
    "mnist_large_scale": "MNIST, canvas 112",
    "fashion_rescaled": "Fashion-MNIST, canvas 72",
}


def style_models(models: Iterable[ModelKey]) -> dict[ModelKey, ModelStyle]:
    """Return the style of each model: those of `STYLES` in their order, variants, then others.

    A model with options is drawn like an unknown one, so that it differs from its default. If it
    is not there without options, one set of options has its colours and mark.
    """
    given = set(models)
    known = STYLES | {name: _variant_style(name) for name in VARIANTS}
    first = {key.model: key for key in sorted(given, reverse=True)}
    styles = {
        key: replace(style, label=style.label + short_label(key).removeprefix(name))
        for name, style in known.items()
        if (key := first.get(name))
    }
    for index, key in enumerate(sorted(given - styles.keys())):
        styles[key] = _other_style(short_label(key), index)
    return styles


def _variant_style(name: str) -> ModelStyle:
    """Return the style of the base with the same colours and another dash and marker."""
    base, index = VARIANTS[name].base, list(VARIANTS).index(name)
    dash, marker = _VARIANT_MARKS[index % len(_VARIANT_MARKS)]
    short = STYLES[base].label.rpartition(", ")[2]  # of "SConv, pixel pool"
    suffix = name.removeprefix(f"{base}_").replace("_", " ")
    label = f"{short[0].upper()}{short[1:]}, {suffix}"
    return replace(STYLES[base], label=label, dash=dash, marker=marker)


def _other_style(label: str, index: int) -> ModelStyle:
    """Return a style that no other index has: each round of colours has other marks."""
    light, dark, dash, marker = _OTHERS[index % len(_OTHERS)]
    turn = index // len(_OTHERS)
    dash = _DASHES[(_DASHES.index(dash) + turn) % len(_DASHES)]
    marker = MARKERS[(MARKERS.index(marker) + turn) % len(MARKERS)]
    return ModelStyle(label, light, dark, dash, marker)


def order_datasets(datasets: Iterable[str]) -> list[str]:
    """Return datasets without duplicates, those of the paper first and in its order."""
    present = set(datasets)
    return [*(d for d in PAPER_DATASETS if d in present), *sorted(present - set(PAPER_DATASETS))]


def dataset_label(dataset: str) -> str:
    """Return a dataset's name for people."""
    return DATASET_LABELS.get(dataset, dataset)


def scenario_label(scenario: str) -> str:
    """Return a scenario's name for people."""
    return SCENARIO_LABELS.get(Scenario(scenario), scenario.replace("@", " at "))


def order_scenarios(scenarios: Iterable[str]) -> list[str]:
    """Return scenarios without duplicates, those of the paper first and in its order."""
    present = set(scenarios)
    known = [scenario.value for scenario in Scenario if scenario.value in present]
    return [*known, *sorted(present - set(known))]


def short_label(key: ModelKey) -> str:
    """Return the last part of `package.module:factory`, with its options if it has any.

    Examples:
        >>> short_label(ModelKey("my.package:net", '{"dropout": 0.5, "factors": [0.35, 0.7071]}'))
        'net, dropout 0.5, factors 0.35…0.707'
    """
    name = key.model.rpartition(":")[2] or key.model
    options = json.loads(key.options or "{}")
    text = ", ".join([name, *(f"{option} {_short(value)}" for option, value in options.items())])
    return text if len(text) <= _LABEL_LETTERS else f"{text[: _LABEL_LETTERS - 1]}…"


def _short(value: object) -> str:
    if isinstance(value, list) and value:
        ends = dict.fromkeys((_short(value[0]), _short(value[-1])))
        return "…".join(ends)
    return f"{value:.3g}" if isinstance(value, float) else str(value)

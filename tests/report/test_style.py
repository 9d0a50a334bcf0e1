"""Colours that everyone can tell apart: contrast, and distance as the colour-blind see them."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from equiscale import list_models
from equiscale.analysis.summaries import ModelKey
from equiscale.models import VARIANTS
from equiscale.report.style import MARKERS, PAPER_DARK, PAPER_LIGHT, style_models

Array = NDArray[np.float64]
STYLES = {key.model: style for key, style in style_models(map(ModelKey, list_models())).items()}

# Machado, Oliveira, Fernandes 2009, severity 1: linear RGB as each deficiency maps it.
DEFICIENCIES = {
    "none": "1 0 0; 0 1 0; 0 0 1",
    "protan": "0.15229 1.05258 -0.20487; 0.11450 0.78628 0.09922; -0.00388 -0.04812 1.05200",
    "deutan": "0.367322 0.860646 -0.227968; 0.280085 0.672501 0.047413; -0.01182 0.04294 0.968881",
    "tritan": "1.25553 -0.07675 -0.17878; -0.07841 0.93081 0.14760; 0.00473 0.69137 0.30390",
}


def matrix(text: str) -> Array:
    return np.array([[float(number) for number in row.split()] for row in text.split(";")])


def linear(colour: str) -> Array:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(linear(colour) @ weights) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: Array) -> Array:
    to_lms = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    to_lab = np.array(
        [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    )
    result: Array = to_lab @ np.cbrt(np.clip(to_lms @ np.clip(rgb, 0, 1), 0, None))
    return result


def test_lines_stand_out_from_the_paper() -> None:
    assert min(contrast(style.light, PAPER_LIGHT) for style in STYLES.values()) >= 3
    assert min(contrast(style.dark, PAPER_DARK) for style in STYLES.values()) >= 3


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_models_that_look_alike_differ_in_dash_and_marker(deficiency: str, theme: str) -> None:
    seen = {
        model: oklab(matrix(DEFICIENCIES[deficiency]) @ linear(getattr(style, theme)))
        for model, style in STYLES.items()
    }
    for first, second in combinations(STYLES, 2):
        distance = float(np.linalg.norm(seen[first] - seen[second]))
        if distance <= 0.06:
            assert STYLES[first].dash != STYLES[second].dash, (first, second, distance)
            assert STYLES[first].marker != STYLES[second].marker, (first, second, distance)


def test_unknown_models_come_last_and_have_a_style() -> None:
    own = ModelKey("my.module:Net")
    styles = style_models([own, ModelKey("xu"), ModelKey("standard")])
    assert list(styles) == [("standard", ""), ("xu", ""), own]
    assert styles[own].label == "Net"


def test_no_two_variants_look_the_same() -> None:
    models = [ModelKey("net", f'{{"dropout":{index}}}') for index in range(40)]
    styles = style_models(models).values()
    assert len({(s.light, s.dash, s.marker) for s in styles}) == len(models)


def test_every_model_of_the_package_has_its_own_style() -> None:
    assert set(STYLES) == set(list_models())
    assert all(STYLES[name].light == STYLES[v.base].light for name, v in VARIANTS.items())
    assert len({(s.light, s.dash, s.marker) for s in STYLES.values()}) == len(STYLES)
    assert {style.marker for style in STYLES.values()} <= set(MARKERS)


def test_the_page_knows_every_marker() -> None:
    script = (resources.files("equiscale.report") / "assets" / "charts.js").read_text("utf-8")
    (shapes,) = re.findall(r"const SHAPES = \{(.*?)\n\};", script, re.DOTALL)
    known = re.findall(r'(?:"(.)"|\b(\w)): (?:ring|cross)', shapes)
    assert {a or b for a, b in known} == set(MARKERS)

"""Groups of models in sweeps."""

from __future__ import annotations

from typing import Any

import pytest

from equiscale.core.errors import OptionError
from equiscale.core.spec import Scenario
from equiscale.models import list_models
from equiscale.sweeps.request import find_models, find_scenarios, find_sources, resolve_sweep
from equiscale.sweeps.sweep_file import SweepRequest


def test_a_group_stands_for_its_models() -> None:
    assert find_models(["paper"]) == list_models("paper")
    assert find_models(["all"]) == list_models()
    assert find_models(["xu", "control", "standard_bn"]) == ["xu", *list_models("control")]
    assert find_models(SweepRequest().models) == list_models("paper")


def test_all_does_not_hide_a_name_that_is_unknown() -> None:
    assert find_scenarios(["all", "mid2rest"]) == tuple(Scenario)
    with pytest.raises(OptionError, match="unknown scenario 'mid'"):
        find_scenarios(["all", "mid"])
    assert find_sources(["all", "emoji"]) == find_sources(["all"])
    assert find_sources(["all", "mine"])[-1] == "mine"


def test_a_group_without_models_is_named() -> None:
    with pytest.raises(OptionError, match="no model of the group 'own'"):
        find_models(["own"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "--lr 0.003"), ({"learning_rates": (0.01,)}, ""), ({"training": {"ema": 0.9}}, "")],
)
def test_the_training_meant_for_a_model_is_named_if_none_is_chosen(
    changes: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    resolve_sweep(SweepRequest(models=("standard", "deep_channels"), seeds=(1,), **changes))
    assert caplog.messages == [m for m in caplog.messages if "deep_channels" in m and words in m]
    assert bool(caplog.messages) == bool(words)

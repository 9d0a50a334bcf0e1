"""Groups of models in sweeps."""

from __future__ import annotations

import pytest

from equiscale.core.errors import OptionError
from equiscale.experiments.sweep import find_models
from equiscale.experiments.sweep_file import SweepRequest
from equiscale.models import list_models


def test_a_group_stands_for_its_models() -> None:
    assert find_models(["paper"]) == list_models("paper")
    assert find_models(["all"]) == list_models()
    assert find_models(["xu", "control", "standard_bn"]) == ["xu", *list_models("control")]
    assert find_models(SweepRequest().models) == list_models("paper")


def test_a_group_without_models_is_named() -> None:
    with pytest.raises(OptionError, match="no model of the group 'own'"):
        find_models(["own"])

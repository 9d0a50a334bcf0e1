"""A user's own model, registered or named by where it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equiscale
from equiscale.core.errors import DuplicateNameError, OptionError, UnknownNameError
from equiscale.models import (
    create_model,
    model_card,
    register_model,
    registry,
)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests register models without leaving them behind."""
    monkeypatch.setattr(registry._MODELS, "_entries", dict(registry._MODELS._entries))


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "class Tiny(nn.Module):\n"
        "    '''A tiny model.\n\n    With more text.'''\n"
        "    def __init__(self, in_channels, num_classes, width=4):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(in_channels, width, 3)\n"
        "        self.head = nn.Linear(width, num_classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.conv(x).amax((2, 3)))\n"
        "def not_a_module(in_channels, num_classes): return 3\n"
        "def needy(in_channels, num_classes, depth): return nn.Identity()\n"
    )
    (tmp_path / "broken_models.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_models"
    sys.modules.pop("own_models", None)


def test_registered_model_works_by_name() -> None:
    @register_model("mine", title="Mine")
    class Mine(nn.Linear):
        def __init__(self, in_channels: int, num_classes: int, bias: bool = True) -> None:
            super().__init__(in_channels, num_classes, bias)

    assert equiscale.list_models()[-1] == "mine"
    model = create_model("mine", in_channels=3, num_classes=2, bias=False)
    assert isinstance(model, Mine)
    assert model_card("mine").options == {"bias": True}
    assert model_card("mine").count_parameters(3, 2) == 8


@pytest.mark.parametrize("name", ["standard", "pixel_pool_full"])
def test_registering_a_name_twice_raises(name: str) -> None:
    with pytest.raises(DuplicateNameError, match=f"'{name}' is already registered"):

        @register_model(name, title="Another")
        def another(in_channels: int, num_classes: int) -> nn.Module:
            return nn.Identity()


def test_model_named_by_where_it_is(own_module: str) -> None:
    model = create_model(f"{own_module}:Tiny", in_channels=3, num_classes=5, width=6)
    assert model(torch.zeros(2, 3, 9, 9)).shape == (2, 5)
    card = model_card(f"{own_module}:Tiny")
    assert card.title == "A tiny model."
    assert card.options == {"width": 4}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("own_models:Missing", UnknownNameError, "no callable 'Missing'"),
        ("no_such_module:Tiny", UnknownNameError, "'no_such_module' cannot be imported"),
        ("broken_models:Tiny", UnknownNameError, "a_package_that_is_missing"),
        ("own_models:not_a_module", OptionError, "its factory returned int"),
        ("own_models:needy", OptionError, "needs the option 'depth'"),
        ("standrad", UnknownNameError, "did you mean 'standard'"),
        (None, OptionError, "must be a string"),
    ],
)
def test_bad_names_are_named(
    own_module: str, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_model(name, in_channels=1, num_classes=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "control"}, "stands for several models"),
        ({"group": "beyonds"}, "did you mean 'beyond'"),
        ({}, "accepts in_channels and num_classes"),
    ],
)
def test_what_cannot_be_registered_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        register_model(**{"name": "narrow", "title": "", **arguments})(lambda width: nn.Identity())


def test_fixed_arguments_are_no_options() -> None:
    @register_model("sized", title="Sized", fixed={"width": 4})
    class Sized(nn.Linear):
        def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
            super().__init__(width, num_classes)

    assert create_model("sized", num_classes=2)(torch.zeros(1, 4)).shape == (1, 2)
    assert model_card("sized").options == {}
    with pytest.raises(OptionError, match="unknown option"):
        create_model("sized", num_classes=2, width=5)

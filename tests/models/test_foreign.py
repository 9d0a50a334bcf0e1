"""Names of models that are not in the registry: stable, and new when the model changes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from tests.processes import run_python
from torch import nn

from equiscale.core.errors import OptionError, UnknownNameError
from equiscale.models import create_model
from equiscale.models.families.plain import StandardNet
from equiscale.models.foreign import fingerprint, is_known_here_only, name_factory

SCRIPT = """
from torch import nn
from equiscale.models.foreign import name_factory
WIDTH = {width}
MODES = frozenset(["a", "b", "c", "d", "e"])
class Block(nn.Module):
    def forward(self, x):
        return x {operation} 2 {comment}
class Net(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.blocks = [Block() for _ in range(WIDTH) if "a" in {{"a", "b", "c"}}]
print(name_factory(Net))
"""


def define(source: str) -> Callable[..., nn.Module]:
    """Return the class `Net` of a script, as `__main__` holds it."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(source, names)
    found = names["Net"]
    assert isinstance(found, type)
    return found


def script(width: int = 4, operation: str = "*", comment: str = "") -> str:
    text = SCRIPT.format(width=width, operation=operation, comment=comment)
    return text.replace("print(name_factory(Net))\n", "")


def test_what_can_be_imported_is_named_by_where_it_is() -> None:
    assert name_factory(StandardNet) == "equiscale.models.families.plain:StandardNet"
    assert not is_known_here_only(name_factory(StandardNet))


def test_a_local_class_is_known_here_under_its_name() -> None:
    class Local(nn.Linear):
        def __init__(self, num_classes: int) -> None:
            super().__init__(64, num_classes)

    name = name_factory(Local)
    assert name == f"Local@{fingerprint(Local)}"
    assert is_known_here_only(name)
    model = create_model(name, in_channels=1, num_classes=7)
    assert model(torch.zeros(2, 64)).shape == (2, 7)


def test_same_name_in_every_process() -> None:
    code = SCRIPT.format(width=4, operation="*", comment="")
    printed = run_python("-c", code, PYTHONHASHSEED="1")
    assert printed.strip() == f"Net@{fingerprint(define(script()))}"


def test_only_a_changed_model_gets_a_new_name() -> None:
    first = fingerprint(define(script()))
    assert fingerprint(define(script(comment="# twice"))) == first
    assert fingerprint(define(script(width=5))) != first, "a constant it refers to"
    assert fingerprint(define(script(operation="+"))) != first, "a class it refers to"


def test_closures_defaults_and_partials_count() -> None:
    def build(width: int) -> Callable[[], nn.Module]:
        return lambda: nn.Linear(width, 3)

    assert fingerprint(build(4)) != fingerprint(build(5))
    assert fingerprint(build(4)) == fingerprint(build(4))
    partials = [functools.partial(nn.Linear, 4, out_features=size) for size in (2, 3)]
    assert fingerprint(partials[0]) != fingerprint(partials[1])
    assert name_factory(partials[0], "linear").startswith("linear@")

    names: dict[str, object] = {"__name__": "__main__"}
    exec("def f(n):\n    return g(n)\ndef g(n):\n    return f(n)\n", names)
    assert fingerprint(names["f"])  # type: ignore[arg-type]  # recursion ends


@pytest.mark.parametrize(
    ("factory", "name", "message"),
    [
        (lambda: nn.Identity(), None, "name='narrow'"),
        (lambda: nn.Identity(), "two words", "must be one word"),
        (nn.Linear(2, 2), None, "a finished Linear; pass the class"),
        (7, None, "got int 7"),
    ],
)
def test_impossible_factories_are_named(factory: object, name: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        name_factory(factory, name)  # type: ignore[arg-type]


def test_a_name_of_another_session_says_what_to_do() -> None:
    with pytest.raises(UnknownNameError, match="known only there: pass its unchanged"):
        create_model("MyNet@00000000", in_channels=1, num_classes=2)

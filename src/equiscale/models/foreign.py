"""Models outside the registry: named by their import path, or known to this process only."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from equiscale.core.errors import OptionError, UnknownNameError
from equiscale.core.files import content_hash

Factory = Callable[..., nn.Module]
FINGERPRINT_LENGTH = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_KNOWN_HERE: dict[str, Factory] = {}


def import_factory(name: str) -> Factory:
    """Import `package.module:factory` and return the factory."""
    module_name, _, attribute = name.partition(":")
    try:
        factory = importlib.import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        raise UnknownNameError(
            f"model {name!r}: the module {module_name!r} cannot be imported ({error}); "
            f"expected package.module:factory"
        ) from error
    for part in attribute.split("."):
        factory = getattr(factory, part, None)  # type: ignore[assignment]
    if not callable(factory):
        raise UnknownNameError(
            f"model {name!r}: the module {module_name!r} has no callable {attribute!r}; "
            f"expected package.module:factory"
        )
    return factory


def is_known_here_only(name: str) -> bool:
    """Whether `name_factory` gave this name to something that no other process can import."""
    return "@" in name


def find_known_here(name: str) -> Factory:
    """Return the factory that `name_factory` named in this process."""
    if name not in _KNOWN_HERE:
        raise UnknownNameError(
            f"model {name!r} was defined in a script or notebook and is known only there: pass "
            "its unchanged class to equiscale.benchmark in this process first"
        )
    return _KNOWN_HERE[name]


def name_factory(factory: Factory, name: str | None = None) -> str:
    """Return a name by which `create_model` finds a factory; the same factory gets the same name.

    A factory that a fresh process can import is named `package.module:factory`. Anything else (a
    lambda, a class of `__main__` or of a notebook) is named `name@fingerprint` and known to this
    process only. The fingerprint is a hash of its compiled code and of the code and plain values
    that it refers to in `__main__`. A changed model gets another name; an unchanged one finds its
    runs again. Comments and formatting do not matter; the version of Python does.

    Args:
        factory: Any callable that returns a module.
        name: Used in place of the factory's own name.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise OptionError(
            f"a model factory must be a class or function that builds a model with fresh weights "
            f"for each seed, got {_describe(factory)}; pass the class, or lambda: MyNet(...)"
        )
    if name is None and _is_importable(factory):
        return f"{factory.__module__}:{factory.__qualname__}"
    word = _check_word(name or str(getattr(factory, "__name__", "<lambda>")))
    full = f"{word}@{fingerprint(factory)}"
    _KNOWN_HERE[full] = factory
    return full


def fingerprint(factory: Factory) -> str:
    """Return a hash of a factory's compiled code and what it refers to in `__main__`."""
    parts: dict[str, Any] = {}
    _collect(factory, parts)
    return content_hash(parts)[:FINGERPRINT_LENGTH]


def _check_word(name: str) -> str:
    if name == "<lambda>":
        raise OptionError(
            "a lambda has no name for its records: give one, as in "
            "benchmark(lambda: MyNet(width=8), name='narrow')"
        )
    if not re.fullmatch(r"[\w.-]+", name):
        raise OptionError(f"a model's name must be one word such as 'my_net', got {name!r}")
    return name


def _describe(value: object) -> str:
    kind = type(value).__name__
    return f"a finished {kind}" if isinstance(value, nn.Module) else f"{kind} {value!r}"


def _is_importable(value: object) -> bool:
    """Whether a fresh process finds the same object by its module and name."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module in (None, "__main__") or path is None:
        return False
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


def _collect(value: object, parts: dict[str, Any]) -> None:
    """Add the code of a function or class and of everything it refers to, each once."""
    if isinstance(value, functools.partial):
        parts["partial"] = [plain_text(value.args), plain_text(value.keywords)]
        _collect(value.func, parts)
        return
    name = getattr(value, "__qualname__", None)
    if _is_importable(value):
        parts[str(name)] = str(getattr(value, "__module__", ""))
    elif isinstance(value, type) and name not in parts:
        parts[str(name)] = [base.__qualname__ for base in value.__bases__]
        for member in (*value.__bases__, *_members(value)):
            _collect(member, parts)
    elif isinstance(value, FunctionType) and name not in parts:
        codes = list(_codes(value.__code__))
        parts[str(name)] = [
            *(_code_text(code) for code in codes),
            plain_text(value.__defaults__),
            plain_text(value.__kwdefaults__),
        ]
        _collect_references(value, codes, parts)


def _members(cls: type) -> Iterator[object]:
    for member in vars(cls).values():
        yield inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))


def _collect_references(
    function: FunctionType, codes: list[CodeType], parts: dict[str, Any]
) -> None:
    """Add globals and closure variables: plain values as text, local functions as code."""
    found = {n: function.__globals__.get(n) for code in codes for n in code.co_names}
    found |= inspect.getclosurevars(function).nonlocals
    for name, value in sorted(found.items()):
        if isinstance(value, (FunctionType, type, functools.partial)):
            _collect(value, parts)
        elif _is_plain(value) and value is not None:
            parts[f"={name}"] = plain_text(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those nested in it: comprehensions, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code_text(code: CodeType) -> list[Any]:
    constants = [plain_text(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list, set, frozenset, range)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return isinstance(value, _PLAIN)


def plain_text(value: object) -> str:
    """Return a text of a plain value that is the same in every process."""
    if isinstance(value, (set, frozenset)):
        return f"set {sorted(map(repr, value))}"
    return repr(value) if _is_plain(value) else type(value).__name__

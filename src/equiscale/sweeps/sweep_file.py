"""Sweeps as people ask for them, also as TOML files; an error names the key. No torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.registry import check_name
from equiscale.runs.key import check_learning_rate, check_model_options, check_seed
from equiscale.sweeps.grid import ModelChoice
from equiscale.sweeps.published import PUBLISHED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL = "all"
PAPER = "paper"
Options = Mapping[str, Any]
MAX_SEEDS = 100_000


def first_seeds(count: int) -> tuple[int, ...]:
    """Return the seeds 1…count."""
    if not 1 <= count <= MAX_SEEDS:
        raise OptionError(f"the number of seeds must be 1 to {MAX_SEEDS}, got {str(count)[:30]}")
    return tuple(range(1, count + 1))


class SweepFileError(OptionError):
    """A sweep file is not TOML, has an unknown key or a value of the wrong type."""


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as a person asks for it: names not yet looked up, `all` not yet expanded.

    Each model runs with every learning rate, and with each of its sets of options. The rates may be
    `published`: those of the paper, and the usual one where it has none.
    """

    models: tuple[str, ...] = (PAPER,)  # names, groups (`paper`, `beyond`, `control`) or `all`
    data: tuple[str, ...] = ("emoji",)  # names, paths or `all`
    scenarios: tuple[str, ...] = (ALL,)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    learning_rates: tuple[float, ...] | Literal["published"] = ()
    select_learning_rate: bool = False  # in two stages, as the paper does
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of `TrainingProtocol`
    options: Mapping[str, Options | tuple[Options, ...]] = field(default_factory=dict)  # by model

    def variants(self, model: str) -> list[ModelChoice]:
        """Return a model with each of the sets of options this request has for it."""
        given = self.options.get(model, {})
        variants = given if isinstance(given, tuple) else (given,)
        return [ModelChoice(model, options) for options in variants]


def read_sweep_file(path: Path) -> SweepRequest:
    """Read a sweep from a TOML file.

    Raises:
        SweepFileError: Names the file, the key and what is wrong with it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SweepFileError(f"cannot read the sweep file {str(path)!r}: {error}") from error
    values: dict[str, Any] = {}
    for name, value in content.items():
        try:
            check_name("key", name, _READERS)
            values[name] = _READERS[name](value)
        except OptionError as error:
            raise SweepFileError(f"{path}: {name}: {error}") from error
    return SweepRequest(**values)


def _check(value: Any, kind: Any, expected: str) -> Any:  # noqa: ANN401 - whatever TOML holds
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise OptionError(f"must be {expected}, got {value!r}")
    return value


def _list(value: object, kind: Any, expected: str) -> tuple[Any, ...]:  # noqa: ANN401
    items = value if isinstance(value, list) else [value]
    return tuple(_check(item, kind, expected) for item in items)


def _texts(value: object) -> tuple[str, ...]:
    return _list(value, str, "a text or a list of texts")


def _seeds(value: object) -> tuple[int, ...]:
    seeds = _list(value, int, "a number of seeds, or a list of seeds")
    for seed in seeds:
        check_seed(seed)
    return seeds if isinstance(value, list) else first_seeds(seeds[0])


def _rates(value: object) -> tuple[float, ...] | str:
    if value == PUBLISHED:
        return PUBLISHED
    rates = _list(value, (int, float), "a number or a list of numbers")
    return tuple(map(check_learning_rate, rates))


def _flag(value: object) -> bool:
    return bool(_check(value, bool, "true or false"))


def _training(value: object) -> Options:
    changes: Options = _check(value, dict, "a table")
    TrainingProtocol.from_changes(changes)
    return changes


def _options(value: object) -> dict[str, Options | tuple[Options, ...]]:
    """Read one table of options per model, or an array of them: one per variant."""
    found = {}
    for model, given in _check(value, dict, "a table").items():
        variants = _list(given, dict, "a table, or tables [[options.…]]")
        for options in variants:
            check_model_options(options)
        found[model] = variants if isinstance(given, list) else variants[0]
    return found


_READERS: Mapping[str, Callable[[object], Any]] = {
    "models": _texts,
    "data": _texts,
    "scenarios": _texts,
    "seeds": _seeds,
    "learning_rates": _rates,
    "select_learning_rate": _flag,
    "training": _training,
    "options": _options,
}

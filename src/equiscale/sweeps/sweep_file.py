"""Sweeps as TOML files; an error names the line. No torch."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.registry import unknown_name_message
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
_COMMENT = re.compile(r"""("[^"]*"|'[^']*')|#.*""")


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

    Args:
        models: Model names, groups of them (`paper`, `beyond`, `control`), or `all`.
        data: Dataset names or paths, or `all`.
        scenarios: Scenario names, or `all`.
        seeds: A number n (seeds 1…n) or the seeds.
        learning_rates: Learning rates to run everything with, or `published`: those of the paper,
            and the usual one where it has none.
        select_learning_rate: The paper's two stages instead.
        training: Fields of `TrainingProtocol` that differ from the paper's.
        options: Model options by model name; several sets of them are several variants.
    """

    models: tuple[str, ...] = (PAPER,)
    data: tuple[str, ...] = ("emoji",)
    scenarios: tuple[str, ...] = (ALL,)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    learning_rates: tuple[float, ...] | Literal["published"] = ()
    select_learning_rate: bool = False
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Options | tuple[Options, ...]] = dataclasses.field(default_factory=dict)

    def variants(self, model: str) -> list[ModelChoice]:
        """Return a model with each of the sets of options this request has for it."""
        given = self.options.get(model, {})
        variants = given if isinstance(given, tuple) else (given,)
        return [ModelChoice(model, options) for options in variants]


def read_sweep_file(path: Path) -> SweepRequest:
    """Read a sweep from a TOML file.

    Raises:
        SweepFileError: Names the file, the line and what is wrong there.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise SweepFileError(f"cannot read the sweep file {str(path)!r}: {error}") from error
    return _Reader(path, text).read(content)


class _Reader:
    """Turns parsed TOML into a request; knows the text, to name lines."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = [_COMMENT.sub(r"\1", line) for line in text.splitlines()]

    def read(self, content: Mapping[str, Any]) -> SweepRequest:
        known = [field.name for field in dataclasses.fields(SweepRequest)]
        self._check_names("", content, known)
        values: dict[str, Any] = {name: self._value(name, v) for name, v in content.items()}
        return SweepRequest(**values)

    def _value(self, name: str, value: object) -> object:
        if name in ("models", "data", "scenarios"):
            return self._list(name, value, str, "a text or a list of texts")
        if name == "learning_rates" and value == PUBLISHED:
            return value
        if name == "learning_rates":
            rates = self._list(name, value, (int, float), "a number or a list of numbers")
            return tuple(self._checked(name, check_learning_rate, rate) for rate in rates)
        if name == "seeds":
            return self._seeds(value)
        if name == "select_learning_rate":
            return self._check(name, value, bool, "true or false")
        table = self._check(name, value, dict, "a table")
        if name == "training":
            return self._training(table)
        return {model: self._options(model, given) for model, given in table.items()}

    def _list(self, name: str, value: object, kind: Any, expected: str) -> tuple[Any, ...]:  # noqa: ANN401
        items = value if isinstance(value, list) else [value]
        return tuple(self._check(name, item, kind, expected) for item in items)

    def _seeds(self, value: object) -> tuple[int, ...]:
        expected = "a number of seeds, or a list of seeds"
        if isinstance(value, list):
            seeds = self._list("seeds", value, int, expected)
            for seed in seeds:
                self._checked("seeds", check_seed, seed)
            return seeds
        count: int = self._check("seeds", value, int, expected)
        return self._checked("seeds", first_seeds, count)

    def _training(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        fields = {field.name: field for field in dataclasses.fields(TrainingProtocol)}
        self._check_names("training", table, list(fields))
        for name, value in table.items():
            self._checked(name, lambda given: TrainingProtocol(**given), {name: value}, "training")
        return table

    def _options(self, model: str, given: object) -> Options | tuple[Options, ...]:
        """Read one table of options, or an array of them: one per variant."""
        if isinstance(given, list) and given:
            return tuple(self._variant(model, options) for options in given)
        return self._variant(model, given)

    def _variant(self, model: str, given: object) -> Options:
        options: Options = self._check(model, given, dict, "a table, or tables [[options.…]]")
        for name, value in options.items():
            self._checked(name, check_model_options, {name: value}, f"options.{model}")
        return options

    def _checked(
        self,
        name: str,
        check: Callable[[Any], Any],
        value: Any,  # noqa: ANN401 - whatever the file holds
        table: str = "",
    ) -> Any:  # noqa: ANN401
        """Return what a check makes of a value; its error gets the line of the name."""
        try:
            return check(value)
        except (OptionError, TypeError) as error:
            return self._fail(name, str(error), table)

    def _check_names(self, table: str, given: Mapping[str, Any], known: list[str]) -> None:
        for name in given:
            if name not in known:
                self._fail(name, unknown_name_message("key", name, known), table=table)

    def _check(self, name: str, value: Any, kind: Any, expected: str) -> Any:  # noqa: ANN401
        wanted = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in wanted):
            self._fail(name, f"{name} must be {expected}, got {value!r}")
        return value

    def _fail(self, name: str, problem: str, table: str = "") -> NoReturn:
        raise SweepFileError(f"{self.path}, line {self._line_of(name, table)}: {problem}")

    def _line_of(self, name: str, table: str) -> int:
        """Return the line that sets a key, or the first that mentions it."""
        current, mentioned = "", 1
        pattern = re.compile(rf"""(?<![\w-])["']?{re.escape(name)}["']?\s*[=.\]]""")
        for number, line in enumerate(self.lines, start=1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                current = re.sub("[\"']", "", header[1])
            if pattern.search(line):
                if current in (table, name):
                    return number
                mentioned = number
        return mentioned

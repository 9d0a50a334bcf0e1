"""Options that several commands share, alone and in groups, and what they are turned into."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equiscale.core.errors import OptionError
from equiscale.runs.store import RunState

DEFAULT_RUNS = Path("runs")
EXIT_FAILED_RUN = 1
EXIT_INTERRUPTED = 130
GRID = "What is run"
TRAINING = "Differences from the paper's protocol (each makes another run)"
MACHINE = "Where it runs"


def option(help: str, *names: str, panel: str | None = None, min: int | None = None) -> Any:  # noqa: A002, ANN401 - typer's words
    """Return an option of a command; a flag needs its name, or it gets a `--no-` twin."""
    return typer.Option(*names, help=help, rich_help_panel=panel, min=min)


grid_option = partial(option, panel=GRID)
training_option = partial(option, panel=TRAINING)
machine_option = partial(option, panel=MACHINE)


RunsDirectory = Annotated[
    Path, typer.Option("--runs", envvar="EQUISCALE_RUNS", help="Directory of the records.")
]
Scenarios = Annotated[str, grid_option("Names with commas, or all.")]
Seeds = Annotated[str, grid_option("A number n (seeds 1…n), or a list.")]
LearningRates = Annotated[
    str, grid_option("Numbers with commas, or published: those of the paper. (default: 1e-3)")
]
SelectLearningRate = Annotated[
    bool,
    grid_option(
        "As in the paper: try 1e-2 and 1e-3 on five seeds, keep the better.", "--select-lr"
    ),
]
ModelOption = Annotated[list[str], option("Option of the model, name=value; may be repeated.")]
DryRun = Annotated[bool, option("Only print what is missing.", "--dry-run")]
RetryFailed = Annotated[bool, option("Try failed runs again.", "--retry-failed")]
Device = Annotated[str | None, machine_option("cuda, mps or cpu; default: the first there is.")]
Threads = Annotated[int | None, machine_option("Threads per run.", min=1)]


@dataclass(frozen=True)
class TrainingOptions:
    """Differences from the paper's protocol."""

    batch_size: Annotated[int | None, training_option("Images per step. (default: 16)", min=1)] = (
        None
    )
    epochs: Annotated[int | None, training_option("At most. (default: 200)", min=1)] = None
    patience: Annotated[
        int | None, training_option("Epochs without improvement. (default: 10)", min=1)
    ] = None
    optimizer: Annotated[str | None, training_option("adam, adamw, sgd. (default: adam)")] = None
    reshuffle: Annotated[bool, training_option("Shuffle before each epoch.", "--reshuffle")] = False
    augmentation: Annotated[
        str | None, training_option("none, rescale, rescale_object, shift. (default: none)")
    ] = None
    ema: Annotated[
        float | None,
        training_option("Test a moving average of the weights with this decay. (default: 0, off)"),
    ] = None
    break_ties: Annotated[
        bool, training_option("Equal validation accuracies: prefer the lower loss.", "--break-ties")
    ] = False

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of `TrainingProtocol` that were given."""
        given = {**vars(self), "max_epochs": self.epochs}
        del given["epochs"]
        return {name: value for name, value in given.items() if value not in (None, False)}


@dataclass(frozen=True)
class RunOptions:
    """How each run is computed and what is kept of it."""

    device: Device = None
    threads: Threads = None
    track: Annotated[str, option("Live curves: tensorboard, mlflow, or both with a comma.")] = ""
    weights: Annotated[bool, option("Keep the best weights in the record.")] = True


@dataclass(frozen=True)
class LauncherOptions:
    """Where many runs are computed, and which of them."""

    directory: RunsDirectory = DEFAULT_RUNS
    dry_run: DryRun = False
    retry_failed: RetryFailed = False
    on: Annotated[str, machine_option("local, ray, slurm or another package's launcher.")] = "local"
    workers: Annotated[
        int | None,
        machine_option(
            "Processes on this machine. (default: one per core, or --per-gpu per GPU)", min=1
        ),
    ] = None
    per_gpu: Annotated[int, machine_option("Runs at once on each GPU.", min=1)] = 1
    launcher_option: Annotated[
        list[str], machine_option("Option of the launcher, name=value; may be repeated.")
    ] = field(default_factory=list)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every argument of a command that is a group into one option per field of the group.

    Typer reads the signature of what is returned, in which the options stand one by one.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if is_dataclass(hints[name])}

    @wraps(command)
    def call(**given: Any) -> None:  # noqa: ANN401 - whatever the options are
        for name, group in groups.items():
            given[name] = group(**{item.name: given.pop(item.name) for item in fields(group)})
        command(**given)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name in groups:
            flat += _parameters(groups[name])
        else:
            flat.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _parameters(group: type) -> list[inspect.Parameter]:
    hints, kind = get_type_hints(group, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    defaults = {
        item.name: [] if item.default is MISSING else item.default for item in fields(group)
    }
    return [
        inspect.Parameter(name, kind, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]


def count_states(
    runs: Iterable[tuple[str, str, RunState]], missing: str = RunState.MISSING.value
) -> Table:
    """Return how many runs there are in each state by model and dataset, given one by one."""
    counts = Counter(runs)
    headings = [missing if state is RunState.MISSING else state.value for state in RunState]
    table = Table("model", "dataset", *headings, box=None)
    for model, dataset in dict.fromkeys((model, dataset) for model, dataset, _ in counts):
        row = (str(counts[model, dataset, state]) for state in RunState)
        table.add_row(Text(model), Text(dataset), *row)
    return table


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_numbers(
    option: str, text: str, kind: Callable[[str], Any], other: str = ""
) -> tuple[Any, ...]:
    """Return the numbers in a text that separates them with commas; the error names `other`."""
    try:
        return tuple(kind(part) for part in split_names(text))
    except ValueError:
        choices = f"numbers separated by commas{other and f', or {other}'}"
        raise OptionError(f"{option} must be {choices}, got {text!r}") from None


def parse_assignments(texts: list[str]) -> dict[str, Any]:
    """Return `name=value` texts as a dictionary; a value is JSON or Python, or else a text.

    Examples:
        >>> parse_assignments(["batch_norm=False", "widths=(8, 16)", "padding=same"])
        {'batch_norm': False, 'widths': (8, 16), 'padding': 'same'}
    """
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"an option must be written name=value, got {text!r}")
        options[name] = _parse_value(value)
    return options


def _parse_value(text: str) -> Any:  # noqa: ANN401 - whatever the option is
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def check_ending(out: Path | None, *endings: str) -> None:
    """Raise `OptionError` unless the file to write, if any, has one of these endings."""
    if out is not None and out.suffix not in endings:
        raise OptionError(f"{str(out)!r} must end in {' or '.join(endings)}")


def say(console: Console, text: str) -> None:
    """Print a text as it is: no markup, no colours, lines not broken, no codes for the terminal."""
    text = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def allow_local_models() -> None:
    """Let `package.module:factory` find modules of the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def format_seconds(seconds: float) -> str:
    """Return a duration for people.

    Examples:
        >>> format_seconds(5), format_seconds(3700), format_seconds(400000)
        ('5 s', '1 h 1 min', '4 d 15 h')
    """
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"

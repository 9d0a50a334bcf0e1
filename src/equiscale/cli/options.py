"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equiscale.core.errors import OptionError

GRID = "What is run"
TRAINING = "Differences from the paper's protocol (each makes another run)"
DEFAULT_RUNS = Path("runs")
EXIT_FAILED_RUN = 1
EXIT_INTERRUPTED = 130
MACHINE = "Where it runs"

RunsDirectory = Annotated[
    Path,
    typer.Option("--runs", envvar="EQUISCALE_RUNS", help="Directory of the records."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cuda, mps or cpu; default: the first there is.", rich_help_panel=MACHINE),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads per run.", rich_help_panel=MACHINE)
]
Track = Annotated[str, typer.Option(help="Live curves: tensorboard, mlflow, or both with a comma.")]
Weights = Annotated[bool, typer.Option(help="Keep the best weights in the record.")]
Scenarios = Annotated[str, typer.Option(help="Names with commas, or all.", rich_help_panel=GRID)]
Seeds = Annotated[
    str, typer.Option(help="A number n (seeds 1…n), or a list.", rich_help_panel=GRID)
]
LearningRates = Annotated[
    str,
    typer.Option(
        help="Learning rates with commas, or published: those of the paper. (default: 1e-3)",
        rich_help_panel=GRID,
    ),
]
SelectLearningRate = Annotated[
    bool,
    typer.Option(
        "--select-lr",
        help="As in the paper: try 1e-2 and 1e-3 on five seeds, keep the better.",
        rich_help_panel=GRID,
    ),
]
Engine = Annotated[
    str,
    typer.Option(help="local, ray, slurm or another package's launcher.", rich_help_panel=MACHINE),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes on this machine. (default: one per core, or --per-gpu per GPU)",
        rich_help_panel=MACHINE,
    ),
]
PerGpu = Annotated[
    int, typer.Option(min=1, help="Runs at once on each GPU.", rich_help_panel=MACHINE)
]
EngineOption = Annotated[
    list[str],
    typer.Option(
        help="Option of the launcher, name=value; may be repeated.", rich_help_panel=MACHINE
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what is missing.")]
ModelOption = Annotated[
    list[str], typer.Option(help="Option of the model, name=value; may be repeated.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Images per step (default: 16).", rich_help_panel=TRAINING)
]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="At most. (default: 200)", rich_help_panel=TRAINING)
]
Patience = Annotated[
    int | None,
    typer.Option(min=1, help="Epochs without improvement. (default: 10)", rich_help_panel=TRAINING),
]
Optimizer = Annotated[
    str | None, typer.Option(help="adam, adamw, sgd. (default: adam)", rich_help_panel=TRAINING)
]
Reshuffle = Annotated[
    bool, typer.Option("--reshuffle", help="Shuffle before each epoch.", rich_help_panel=TRAINING)
]
Augmentation = Annotated[
    str | None,
    typer.Option(
        help="none, rescale, rescale_object, shift. (default: none)", rich_help_panel=TRAINING
    ),
]


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_assignments(texts: list[str]) -> dict[str, Any]:
    """Return `name=value` texts as a dictionary; a value is JSON, or else a text."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"an option must be written name=value, got {text!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


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

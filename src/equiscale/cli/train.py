"""`equiscale train`: one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.status import Status

from equiscale.cli import options
from equiscale.cli.options import RunOptions, TrainingOptions, with_option_groups
from equiscale.cli.sweep import job_settings, parse_rates
from equiscale.core.errors import EquiscaleError, OptionError
from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.sweep_file import SweepRequest

if TYPE_CHECKING:
    from equiscale.sweeps.job import JobSettings
    from equiscale.training.loop import Progress


class BusyError(EquiscaleError):
    """Another process computes this run."""


@with_option_groups
def train(
    model: Annotated[str, typer.Option(help="Name of a model, or package.module:factory.")],
    data: Annotated[str, typer.Option(help="Name or file of a dataset.")] = "emoji",
    scenario: Annotated[
        str, options.option("small2large, mid2rest, large2small or all2all.")
    ] = "mid2rest",
    seed: Annotated[int, typer.Option(min=0)] = 1,
    lr: Annotated[str, options.option("Learning rate, or published: that of the paper.")] = "1e-3",
    option: options.ModelOption = [],  # noqa: B006 - typer reads it, nobody changes it
    directory: options.RunsDirectory = options.DEFAULT_RUNS,
    training: TrainingOptions = TrainingOptions(),  # noqa: B008 - frozen
    run: RunOptions = RunOptions(),  # noqa: B008
    retry_failed: options.RetryFailed = False,
) -> None:
    """Train and test one model; the record goes to the runs directory.

    The same command resumes a run that was stopped, and shows the result of one that is done.
    """
    options.allow_local_models()
    from equiscale.sweeps.request import resolve_sweep

    rates = parse_rates(lr)
    if rates != "published" and len(rates) > 1:
        raise OptionError("--lr takes one learning rate; `equiscale sweep` takes several")
    request = SweepRequest(
        models=(model,),
        data=(data,),
        scenarios=(scenario,),
        seeds=(seed,),
        learning_rates=rates,
        training=training.changes,
        options={model: options.parse_assignments(option)} if option else {},
    )
    sweep = resolve_sweep(request)
    if len(sweep.models) > 1:
        raise OptionError(f"{model!r} stands for several models; `equiscale sweep` trains them")
    settings = job_settings(directory, run, sweep)
    store = RunStore(directory)
    (key,) = sweep.cells()
    if retry_failed:
        store.forget_failures([key.run_id])
    _run(key, store, settings)


def _run(key: RunKey, store: RunStore, settings: JobSettings) -> None:
    """Compute a run in this process with a line of progress, and print its result."""
    from equiscale.sweeps.job import Watcher, run_job
    from equiscale.sweeps.request import note_reused

    if store.state(key.run_id) is RunState.DONE:
        note_reused([key])
    else:
        store.check_writable()
    console = Console(stderr=True)
    console.print(f"{key} ({key.run_id})", highlight=False)
    try:
        with console.status("loading") as line:
            show = _progress_lines(console, line)
            state = run_job(key, store, settings, Watcher(on_epoch=show))
    except KeyboardInterrupt:
        console.print("stopped; the same command resumes it from the last checkpoint")
        raise typer.Exit(options.EXIT_INTERRUPTED) from None
    if state is RunState.DONE:
        _print_result(store, key)
    elif state is RunState.FAILED:
        _print_failure(store, key, console)
        raise typer.Exit(options.EXIT_FAILED_RUN)
    else:
        owner = store.owner(key.run_id)
        raise BusyError(
            f"this run is being computed by {owner or 'another process'}; wait for it, or stop it"
        )


def _progress_lines(console: Console, line: Status) -> Callable[[Progress], None]:
    """Return a callback that shows an epoch: one updated line on a terminal, else a line each."""
    resumed = True

    def show(progress: Progress) -> None:
        nonlocal resumed
        if resumed and progress.epoch > 1:
            console.print(f"resumed from the checkpoint after epoch {progress.epoch - 1}")
        resumed = False
        text = _describe(progress)
        if console.is_terminal:
            line.update(text)
        else:
            options.say(console, text)

    return show


def _describe(progress: Progress) -> str:
    history, left = progress.history, options.format_seconds(progress.seconds_left)
    return (
        f"epoch {progress.epoch}/{progress.max_epochs}  loss {history.train_loss[-1]:.4f}  "
        f"validation {history.valid_accuracy[-1]:.1%}  "
        f"(best {history.best_valid_accuracy:.1%} in epoch {history.best_epoch})"
    ) + (f"  {left} left unless it improves" if progress.epochs_left else "")


def _print_result(store: RunStore, key: RunKey) -> None:
    record = store.load(key.run_id)
    typer.echo(
        f"test accuracy {record.test_accuracy:.2%}  validation {record.valid_accuracy:.2%} in "
        f"epoch {record.history.best_epoch} of {len(record.history)}  "
        f"{options.format_seconds(record.timings.get('run_seconds', 0.0))}"
    )
    typer.echo(store.directory(key.run_id))


def _print_failure(store: RunStore, key: RunKey, console: Console) -> None:
    failure = store.failure(key.run_id)
    if failure.kind != "diverged":
        options.say(console, failure.traceback)
    options.say(console, f"failed: {failure.reason}")
    console.print("try again with --retry-failed")

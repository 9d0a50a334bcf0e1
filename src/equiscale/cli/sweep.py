"""`equiscale sweep`: many runs, here or on a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from equiscale.cli import options
from equiscale.cli.options import LauncherOptions, RunOptions, TrainingOptions, with_option_groups
from equiscale.cli.progress import describe_estimate, following, print_problems, summarize
from equiscale.core.errors import OptionError
from equiscale.core.registry import check_name
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.estimate import MeasuredRuns
from equiscale.sweeps.grid import Sweep
from equiscale.sweeps.sweep_file import SweepRequest, first_seeds, read_sweep_file

if TYPE_CHECKING:
    from equiscale.sweeps.grid import Sweep
    from equiscale.sweeps.job import JobSettings
    from equiscale.sweeps.launch import Launcher
    from equiscale.sweeps.request import SweepStatus


@with_option_groups
def sweep(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="TOML file that describes the sweep instead of options.")
    ] = None,
    models: Annotated[
        str, options.grid_option("Names with commas; all, paper, beyond or control.")
    ] = "paper",
    data: Annotated[str, options.grid_option("Names or files with commas, or all.")] = "emoji",
    scenarios: options.Scenarios = "all",
    seeds: options.Seeds = "5",
    lr: options.LearningRates = "",
    select_lr: options.SelectLearningRate = False,
    launcher: LauncherOptions = LauncherOptions(),  # noqa: B008 - frozen
    run: RunOptions = RunOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
) -> None:
    """Run every missing combination of models, datasets, scenarios and seeds.

    It can be stopped and started at any time, also several times at once: no run is done twice.
    """
    options.allow_local_models()
    if file is not None:
        _check_no_grid_options(context)
        request = read_sweep_file(file)
    else:
        request = SweepRequest(
            models=options.split_names(models),
            data=options.split_names(data),
            scenarios=options.split_names(scenarios),
            seeds=parse_seeds(seeds),
            learning_rates=parse_rates(lr),
            select_learning_rate=select_lr,
            training=training.changes,
        )
    _, status, store = run_request(request, launcher, run)
    exit_if_failed(status, store)


def _check_no_grid_options(context: typer.Context) -> None:
    panels = (options.GRID, options.TRAINING)
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and getattr(parameter, "rich_help_panel", None) in panels:
            raise OptionError(
                f"{parameter.opts[0]} cannot be combined with a sweep file; write it there"
            )


def parse_rates(text: str) -> tuple[float, ...] | Literal["published"]:
    """Return the learning rates of `--lr`."""
    if text == "published":
        return "published"
    return options.parse_numbers("--lr", text, float, other="published")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds 1…n for one number n, or those of a list."""
    seeds = options.parse_numbers("--seeds", text, int)
    return seeds if "," in text else first_seeds(seeds[0] if seeds else 0)


def run_request(
    request: SweepRequest, launching: LauncherOptions, run: RunOptions
) -> tuple[Sweep, SweepStatus, RunStore]:
    """Run a sweep and show its progress; with `--dry-run`, print what is missing and exit."""
    from equiscale.sweeps.request import inspect_sweep, resolve_sweep, run_sweep

    grid, store = resolve_sweep(request), RunStore(launching.directory)
    launcher = _create_launcher(launching, run)
    if launching.dry_run:
        _print_plan(grid, store, launcher)
        raise typer.Exit
    settings = job_settings(launching.directory, run, grid)
    console = Console(stderr=True)
    if launching.retry_failed:
        store.forget_failures(key.run_id for key in inspect_sweep(grid, store).plan.keys)
    try:
        with following(console, grid, store, launcher.slots) as display:
            status = run_sweep(grid, store, launcher, settings, display.show)
    except KeyboardInterrupt:
        console.print("stopped; the same command resumes it")
        raise typer.Exit(options.EXIT_INTERRUPTED) from None
    typer.echo(summarize(status))
    return grid, status, store


def _create_launcher(launching: LauncherOptions, run: RunOptions) -> Launcher:
    from equiscale.sweeps.environment import count_gpus
    from equiscale.sweeps.launch import LAUNCHERS

    launcher: Any = LAUNCHERS[launching.on]
    if not hasattr(launcher, "__dataclass_fields__"):
        raise OptionError(f"launcher {launching.on!r} must be a dataclass; its fields are options")
    known = [item.name for item in dataclasses.fields(launcher) if item.init]
    given = {"workers": launching.workers, "threads": run.threads}
    given = {name: value for name, value in given.items() if value is not None}
    given |= options.parse_assignments(launching.launcher_option)
    for name in given:
        check_name(f"option of {launching.on}:", name, known)
    usual = {"per_gpu": launching.per_gpu}
    if launching.on == "local":
        usual["gpus"] = count_gpus(run.device)
    created: Launcher = launcher(**{n: v for n, v in usual.items() if n in known} | given)
    return created


def job_settings(directory: Path, run: RunOptions, sweep: Sweep) -> JobSettings:
    """Return where and how a command computes its runs, after checking that it can."""
    from equiscale.sweeps.environment import choose_device
    from equiscale.sweeps.job import JobSettings
    from equiscale.sweeps.tracking import check_trackers

    choose_device(run.device)
    track = options.split_names(run.track)
    check_trackers(track)
    return JobSettings(
        runs=str(directory.resolve()),
        sources={data.content_hash: data.source for data in sweep.datasets},
        device=run.device,
        threads=run.threads,
        keep_weights=run.weights,
        track=track,
    )


def _print_plan(grid: Sweep, store: RunStore, launcher: Launcher) -> None:
    """Print what is missing, and how long it will take."""
    from equiscale.sweeps.request import estimate_sweep, inspect_sweep

    status = inspect_sweep(grid, store)
    console = Console()
    runs = ((key.model, key.dataset, status.states[key.run_id]) for key in status.plan.keys)
    console.print(options.count_states(runs))
    measured = MeasuredRuns(store)
    estimate = estimate_sweep(grid, status, measured)
    print_problems([*status.problems, *measured.problems], console)
    console.print(summarize(status), highlight=False)
    console.print(describe_estimate(estimate, launcher.slots), highlight=False)


def exit_if_failed(status: SweepStatus, store: RunStore) -> None:
    """Say which runs failed and why, and end the command, if there are any."""
    console = Console(stderr=True)
    failed = status.keys(RunState.FAILED)
    for key in failed:
        reason = store.failure(key.run_id).reason
        options.say(console, f"failed: {key} ({key.run_id}): {reason}")
    if failed:
        console.print("try them again with --retry-failed")
        raise typer.Exit(options.EXIT_FAILED_RUN)

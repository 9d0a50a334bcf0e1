"""`equiscale bench`: one model through the whole benchmark, and its place among the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equiscale.cli import options
from equiscale.cli.option_groups import (
    EngineOptions,
    RunOptions,
    TrainingOptions,
    with_option_groups,
)
from equiscale.cli.sweep import (
    create_launcher,
    exit_if_failed,
    job_settings,
    parse_rates,
    parse_seeds,
    print_plan,
    run_grid,
)
from equiscale.core.files import check_writable


@with_option_groups
def bench(
    model: Annotated[str, typer.Argument(help="my_module:MyNet, or the name of a model.")],
    data: Annotated[
        str, typer.Option(help="Name or file of a dataset.", rich_help_panel=options.GRID)
    ] = "emoji",
    scenarios: options.Scenarios = "all",
    seeds: options.Seeds = "3",
    lr: options.LearningRates = "",
    select_lr: options.SelectLearningRate = False,
    option: options.ModelOption = [],  # noqa: B006 - typer reads it, nobody changes it
    directory: options.RunsDirectory = options.DEFAULT_RUNS,
    out: Annotated[Path | None, typer.Option(help="Also write the page.")] = None,
    dry_run: options.DryRun = False,
    retry_failed: options.RetryFailed = False,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
    run: RunOptions = RunOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
) -> None:
    """Train, test and measure a model on all scenarios, and rank it among the others.

    The others are the published figures, our runs and every model of the runs directory. The
    command can be stopped and started at any time: no run is done twice.
    """
    options.allow_local_models()
    from equiscale.benchmarking import read_benchmark
    from equiscale.runs.store import RunStore
    from equiscale.sweeps.request import resolve_sweep
    from equiscale.sweeps.sweep_file import SweepRequest

    request = SweepRequest(
        models=(model,),
        data=(data,),
        scenarios=options.split_names(scenarios),
        seeds=parse_seeds(seeds),
        learning_rates=parse_rates(lr),
        select_learning_rate=select_lr,
        training=training.changes,
        options={model: options.parse_assignments(option)} if option else {},
    )
    grid, store = resolve_sweep(request), RunStore(directory)
    launcher = create_launcher(engine, run)
    if dry_run:
        print_plan(grid, store, launcher)
        return
    settings = job_settings(directory, run, grid)
    if out is not None:
        check_writable(out)  # before training for hours
    status = run_grid(grid, store, launcher, settings, retry_failed)
    standing = read_benchmark(grid, status, store)
    Console().print(str(standing), markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        typer.echo(standing.write_page(out))
    exit_if_failed(status, store)

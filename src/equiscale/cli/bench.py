"""`equiscale bench`: one model through the whole benchmark, and its place among the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equiscale.cli import options
from equiscale.cli.options import LauncherOptions, RunOptions, TrainingOptions, with_option_groups
from equiscale.cli.sweep import exit_if_failed, parse_rates, parse_seeds, run_request
from equiscale.core.files import check_writable
from equiscale.sweeps.sweep_file import SweepRequest


@with_option_groups
def bench(
    model: Annotated[str, typer.Argument(help="my_module:MyNet, or the name of a model.")],
    data: Annotated[str, options.grid_option("Name or file of a dataset.")] = "emoji",
    scenarios: options.Scenarios = "all",
    seeds: options.Seeds = "3",
    lr: options.LearningRates = "",
    select_lr: options.SelectLearningRate = False,
    option: options.ModelOption = [],  # noqa: B006 - typer reads it, nobody changes it
    out: Annotated[Path | None, typer.Option(help="Also write the page.")] = None,
    launcher: LauncherOptions = LauncherOptions(),  # noqa: B008 - frozen
    run: RunOptions = RunOptions(),  # noqa: B008
    training: TrainingOptions = TrainingOptions(),  # noqa: B008
) -> None:
    """Train, test and measure a model on all scenarios, and rank it among the others.

    The others are the published figures, our runs and every model of the runs directory. The
    command can be stopped and started at any time: no run is done twice.
    """
    options.allow_local_models()
    from equiscale.benchmarking import read_benchmark

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
    options.check_ending(out, ".html", ".htm")
    if out is not None and not launcher.dry_run:
        check_writable(out)  # before training for hours
    done = run_request(request, launcher, run)
    standing = read_benchmark(*done)
    options.say(Console(), str(standing))
    if out is not None:
        typer.echo(standing.write_page(out))
    exit_if_failed(*done[1:])

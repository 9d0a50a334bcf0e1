"""`equiscale status` and `equiscale collect`: look at a runs directory, any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from equiscale.cli import options
from equiscale.runs.errors import CorruptRecordError, RunsError
from equiscale.runs.store import RunState, RunStore
from equiscale.runs.table import check_table_path, measurements_path, write_tables


def status(directory: options.RunsDirectory = options.DEFAULT_RUNS) -> None:
    """Say which runs are done, running, interrupted or failed."""
    store = _existing_store(directory)
    console = Console()
    console.print(_count_runs(store))
    for note in _notes(store):
        options.say(console, note)


def collect(
    out: Annotated[Path, typer.Option(help="Table of runs to write: .parquet or .csv.")],
    directory: options.RunsDirectory = options.DEFAULT_RUNS,
) -> None:
    """Write all finished runs as two tables: runs, and measurements beside it."""
    check_table_path(out)
    problems: list[str] = []
    records = list(_existing_store(directory).load_all(problems=problems))
    if not records and not problems:
        raise RunsError(f"no finished run in {str(directory)!r}: `equiscale train` makes one")
    count = write_tables(records, out, problems)
    typer.echo(f"{out}, {measurements_path(out).name}: {count} runs")
    if problems:
        raise CorruptRecordError("; ".join(problems) + ". The tables have all the others")


def _existing_store(directory: Path) -> RunStore:
    if not directory.is_dir():
        raise RunsError.missing(directory)
    return RunStore(directory)


def _count_runs(store: RunStore) -> Table:
    runs: list[tuple[str, str, RunState]] = []
    for state in RunState:
        for run_id in store.run_ids(state):
            key = store.key(run_id)
            runs.append((*((key.model, key.dataset) if key else ("unreadable", "")), state))
    table = options.count_states(sorted(runs), missing="interrupted")
    table.add_row("total", "", *(str(sum(one[2] is s for one in runs)) for s in RunState))
    return table


def _notes(store: RunStore) -> Iterator[str]:
    """Yield a line for each run that is running, failed or quarantined."""
    for run_id in store.run_ids(RunState.RUNNING):
        key, progress = store.key(run_id) or "unreadable", store.progress(run_id)
        epoch = f"epoch {progress.get('epoch', '?')}/{progress.get('max_epochs', '?')}"
        yield f"running: {key} ({run_id}), {epoch}, {store.owner(run_id)}"
    for run_id in store.run_ids(RunState.FAILED):
        try:
            failure = store.failure(run_id)
        except RunsError as error:
            yield f"failed: {run_id}: {error}"
        else:
            yield f"failed: {failure.key} ({run_id}): {failure.reason}"
    for name in store.quarantined():
        yield f"quarantined: {store.root / 'quarantine' / name}"

"""The progress of a sweep: bars in a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from equiscale.cli.options import format_seconds, say
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.estimate import Estimate, MeasuredRuns
from equiscale.sweeps.grid import Sweep
from equiscale.sweeps.progress import RunningRun, load_running

if TYPE_CHECKING:
    from equiscale.sweeps.request import SweepStatus

LOG_SECONDS = 10.0
"""Least time between two lines of a log, besides those about finished runs."""

LOGGED_RUNS = 8
"""Running runs that a line of a log names; the others are counted."""

_BAR_WIDTH = 12
_OTHER_LINES = 6
"""Lines of a terminal that are not free for running runs: headings, counts, the cursor's."""


class Display:
    """Follows a sweep of which `slots` runs are computed at once; a subclass says how it looks."""

    def __init__(self, console: Console, grid: Sweep, store: RunStore, slots: int) -> None:
        self.console, self.grid, self.store, self.slots = console, grid, store, slots
        self._measured = MeasuredRuns(store)
        self._states: dict[str, RunState] = {}
        self._outlook = ""
        self._problems: set[str] = set()

    def show(self, status: SweepStatus) -> None:
        """Show where the sweep stands."""
        problems = list(status.problems)
        if status.states != self._states:
            for record in self._load_finished(status, problems):
                say(self.console, _describe_record(record))
            self._outlook = self._estimate(status, problems)
            self._states = dict(status.states)
        print_problems(sorted(set(problems) - self._problems), self.console)
        self._problems.update(problems)
        self._update(status, load_running(status, self.store))

    def _update(self, status: SweepStatus, running: Sequence[RunningRun]) -> None:
        raise NotImplementedError

    def _load_finished(self, status: SweepStatus, problems: list[str]) -> list[RunRecord]:
        """Return the records of runs that were seen before and have ended since."""
        done = [key.run_id for key in status.keys(RunState.DONE)]
        seen = [run_id for run_id in done if run_id in self._states]
        new = [run_id for run_id in seen if self._states[run_id] is not RunState.DONE]
        return list(self.store.load_all(new, problems)) if new else []

    def _estimate(self, status: SweepStatus, problems: list[str]) -> str:
        from equiscale.sweeps.request import estimate_sweep

        estimate = estimate_sweep(self.grid, status, self._measured)
        problems += self._measured.problems
        return describe_estimate(estimate, self.slots)


class TerminalDisplay(Display):
    """A bar per running run and one for all, at the bottom of a terminal."""

    def __init__(self, live: Live, grid: Sweep, store: RunStore, slots: int) -> None:
        super().__init__(live.console, grid, store, slots)
        self._live = live
        self._spinner = Spinner("dots")

    def _update(self, status: SweepStatus, running: Sequence[RunningRun]) -> None:
        room = max(1, self.console.height - _OTHER_LINES)
        lines: list[RenderableType] = []
        if running:
            rates = {key.learning_rate for key in status.plan.keys}
            lines.append(tabulate_runs(running[:room], with_rates=len(rates) > 1))
        if running[room:]:
            lines.append(Text(f"and {len(running) - room} more", style="dim"))
        self._live.update(Group(*lines, self._draw_overall(status, running)))

    def _draw_overall(self, status: SweepStatus, running: Sequence[RunningRun]) -> Table:
        ended = status.count(RunState.DONE) + status.count(RunState.FAILED)
        under_way = sum(run.epoch / run.last_epoch for run in running)
        total = max(1, len(status.plan.keys) + len(status.plan.undecided))
        overall = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=total, completed=ended + under_way, width=_BAR_WIDTH)
        overall.add_row(self._spinner, bar, Text(summarize(status)))
        overall.add_row("", "", Text(self._outlook, style="dim"))
        return overall


class LogDisplay(Display):
    """Lines for a file or another program: one per finished run, others ten seconds apart."""

    _shown = ""
    _next = 0.0

    def _update(self, status: SweepStatus, running: Sequence[RunningRun]) -> None:
        parts = [summarize(status), self._outlook, *map(str, running[:LOGGED_RUNS])]
        if running[LOGGED_RUNS:]:
            parts.append(f"and {len(running) - LOGGED_RUNS} more")
        text = "; ".join(parts)
        if text != self._shown and time.monotonic() >= self._next:
            self._shown, self._next = text, time.monotonic() + LOG_SECONDS
            say(self.console, text)


@contextlib.contextmanager
def following(console: Console, grid: Sweep, store: RunStore, slots: int) -> Iterator[Display]:
    """Yield the display that suits the console, and restore a terminal afterwards."""
    # Rich takes FORCE_COLOR for a terminal, but a coloured log is still a log.
    if not (console.is_interactive and console.file.isatty()):
        yield LogDisplay(console, grid, store, slots)
        return
    beginning = Spinner("dots", "reading the records")
    with Live(beginning, console=console, refresh_per_second=8, transient=True) as live:
        yield TerminalDisplay(live, grid, store, slots)


def tabulate_runs(runs: Iterable[RunningRun], with_rates: bool = False) -> Table:
    """Return one line per running run, with its learning rate if that tells runs apart."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("model")  # gives way first where there is little room, then the bar
    for heading in ("data", "scenario", *(["lr"] if with_rates else []), "seed"):
        table.add_column(heading, no_wrap=True)
    table.add_column(max_width=_BAR_WIDTH)
    for heading in ("epoch", "valid", "left"):
        table.add_column(heading, no_wrap=True, justify="right")
    for run in runs:
        table.add_row(*_cells(run, with_rates))
    return table


def _cells(run: RunningRun, with_rates: bool) -> list[RenderableType]:
    key = run.key
    return [
        Text(key.model, no_wrap=True, overflow="ellipsis"),
        Text(key.dataset),
        key.scenario.value,
        *([f"{key.learning_rate:g}"] if with_rates else []),
        str(key.seed),
        ProgressBar(run.last_epoch, run.epoch, pulse=run.epoch == 0),
        f"{run.epoch}/{run.max_epochs}",
        "–" if run.valid_accuracy is None else f"{run.valid_accuracy:.1%}",
        describe_end(run),
    ]


def describe_end(run: RunningRun) -> str:
    """Return when a run ends; a lower bound (≥) if an improvement would prolong it."""
    if run.seconds_left is None:
        return "–"
    if run.epochs_left == 0:
        return "testing"
    bound = "" if run.last_epoch == run.max_epochs else "≥ "
    return bound + format_seconds(run.seconds_left)


def summarize(status: SweepStatus) -> str:
    """Return the counts of a sweep in one line."""
    counts = ", ".join(f"{status.count(state)} {state.value}" for state in RunState)
    later = len(status.plan.undecided)
    return f"{_count(len(status.plan.keys), 'run')}: {counts}" + (
        f"; {later} more when their learning rates are chosen" if later else ""
    )


def describe_estimate(estimate: Estimate, slots: int) -> str:
    """Return how long a sweep will take."""
    known = f"about {format_seconds(estimate.seconds_left(slots))} left, {slots} at once"
    if not estimate.unknown_runs:
        return known
    unknown = f"{_count(estimate.unknown_runs, 'run')} whose model has not been timed yet"
    return f"{known}, and {unknown}" if estimate.seconds else f"time left: unknown; {unknown}"


def print_problems(problems: Iterable[str], console: Console) -> None:
    """Print what is wrong with records that cannot be used."""
    for problem in problems:
        say(console, f"unusable: {problem}")


def _describe_record(record: RunRecord) -> str:
    epochs = _count(len(record.history), "epoch")
    seconds = format_seconds(record.timings.get("run_seconds", 0.0))
    return f"done: {record.key}: test accuracy {record.test_accuracy:.1%}, {epochs}, {seconds}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

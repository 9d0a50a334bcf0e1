"""Your own model through the whole benchmark, and its place among the others."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from equiscale.analysis.comparison import CITATION
from equiscale.analysis.our_runs import join_our_runs
from equiscale.analysis.runs import read_study
from equiscale.analysis.standings import MEASURED, OURS, PUBLISHED, rank_standings
from equiscale.analysis.study import Study
from equiscale.analysis.summaries import ModelKey
from equiscale.core.errors import EquiscaleError, OptionError
from equiscale.core.files import canonical_json
from equiscale.core.protocol import PROTOCOL_VERSION
from equiscale.core.spec import Scenario
from equiscale.models.foreign import is_known_here_only, name_factory
from equiscale.report.page import write_page
from equiscale.report.style import scenario_label, short_label
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.environment import choose_device, count_gpus
from equiscale.sweeps.grid import Sweep
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.launch import InProcessLauncher, Launcher
from equiscale.sweeps.launch_local import LocalLauncher
from equiscale.sweeps.progress import load_running
from equiscale.sweeps.request import SweepStatus, resolve_sweep, run_sweep
from equiscale.sweeps.sweep_file import SweepRequest

if TYPE_CHECKING:
    import polars as pl
    from torch import nn

DEFAULT_RUNS = "runs"


class BenchmarkError(EquiscaleError):
    """Not a single run of a benchmark could be finished."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Results of a model beside the published ones, our runs and others in the runs directory.

    `print(result)` shows a table, a notebook draws it, and `result.write_page("report.html")`
    writes the page.

    Attributes:
        model: The name of the model in tables.
        options: Its options that differ from the defaults, as canonical JSON; empty without any.
        sweep: The runs that were requested.
        study: All finished runs of the runs directory.
        failures: Why runs failed, by run.
    """

    model: str
    options: str
    sweep: Sweep
    study: Study = field(repr=False)
    failures: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per model, best first; see `equiscale.analysis.standings.rank_standings`."""
        choice = self.sweep.datasets[0]
        hashes = dict(self.study.runs.select("dataset_hash", "dataset").rows())
        dataset = hashes.get(choice.content_hash, choice.name)
        return rank_standings(self.study, self.sweep.protocol.label, dataset, self.sweep.scenarios)

    @property
    def place(self) -> int | None:
        """The model's place in the table; None if it lacks a scenario."""
        return self._own.get("place")

    @property
    def accuracies(self) -> dict[str, float]:
        """Mean accuracy on the test sizes by scenario."""
        found = {s.value: self._own.get(s.value) for s in self.sweep.scenarios}
        return {name: value for name, value in found.items() if value is not None}

    def write_page(self, path: str | Path) -> Path:
        """Write the page: this model, the runs directory's others, and our runs."""
        write_page(join_our_runs(self.study), Path(path))
        return Path(path)

    def __str__(self) -> str:
        headings, rows = self._headings(), [self._cells(row) for row in self._rows]
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = [_line(cells, widths) for cells in (headings, *rows)]
        return "\n".join([self._title(), "", *lines, "", *self._remarks()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(text)}</th>" for text in self._headings())
        body = []
        for row in self._rows:
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in self._cells(row))
            style = ' style="font-weight: bold"' if self._is_own(row) else ""
            body.append(f"<tr{style}>{cells}</tr>")
        remarks = "<br>".join(html.escape(text) for text in self._remarks())
        return (
            f"<p>{html.escape(self._title())}</p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table><p>{remarks}</p>"
        )

    def _title(self) -> str:
        rows = [row for row in self._rows if row["place"] is not None]
        place = f"place {self.place} of {len(rows)}" if self.place else "no place yet"
        return f"{ModelKey(self.model, self.options)} on {self.sweep.datasets[0].name}: {place}"

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return self.table.to_dicts()

    @property
    def _own(self) -> dict[str, Any]:
        return next((row for row in self._rows if self._is_own(row)), {})

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        own = MEASURED, self.model, self.options
        return (row["source"], row["model"], row["options"]) == own

    def _headings(self) -> list[str]:
        scenarios = [scenario_label(scenario) for scenario in self.sweep.scenarios]
        ends = ["mean", "gap", "equivariance error", "parameters", "epoch"]
        return ["place", "model", "source", "runs", *scenarios, *ends]

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        mark = "> " if self._is_own(row) else ""
        ratio = row["epoch_ratio"]
        return [
            f"{mark}{row['place'] or '–'}",
            short_label(ModelKey(row["model"], row["options"])),
            row["source"],
            str(row["runs"]),
            *(_percent(row[scenario.value]) for scenario in self.sweep.scenarios),
            _percent(row["mean"]),
            _percent(row["gap"]),
            _number(row["equivariance_error"], ".3g"),
            _number(row["parameters"], ","),
            f"{ratio:.1f}×" if ratio else _number(row["epoch_seconds"], ".3g", " s"),
        ]

    def _remarks(self) -> list[str]:
        protocol = self.sweep.protocol.label
        lines = [
            "Accuracy in % on the test sizes, mean over seeds; gap: trained minus other sizes; "
            "epoch: × that of standard measured here, else seconds."
        ]
        sources = {row["source"] for row in self._rows}
        if PUBLISHED in sources:
            lines.append(f"Published: {CITATION}")
        if OURS in sources:
            lines.append("equiscale: runs that come with it, measured on another machine.")
        if sources - {MEASURED} and protocol != PROTOCOL_VERSION:
            lines.append(
                f"Measured with {protocol}, the others with the paper's protocol: do not compare."
            )
        lines += [f"failed: {run}: {reason}" for run, reason in self.failures.items()]
        return lines


def benchmark(
    model_factory: Callable[..., nn.Module] | str,
    dataset: str | Path = "emoji",
    scenarios: str | Sequence[str | Scenario] = "all",
    seeds: int | Sequence[int] = 3,
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    runs: str | Path = DEFAULT_RUNS,
    launcher: Launcher | None = None,
    device: str | None = None,
    learning_rates: Sequence[float] | Literal["published"] = (),
    select_learning_rate: bool = False,
    progress: bool = True,
    **training: Any,  # noqa: ANN401 - the fields of TrainingProtocol
) -> Benchmark:
    """Train, test and measure a model, and find its place among the others.

    Every run is an ordinary run with an ordinary record: nothing is computed twice, a stopped
    call goes on where it was, and `equiscale report` shows the model too.

    The factory is called with `in_channels` and `num_classes` if it has arguments of these names,
    and must return a module that maps `[N, C, 64, 64]` to logits `[N, num_classes]`. One that
    other processes can import is trained on all cores; a lambda or a class of a notebook or script
    is trained in this process, and recorded under its name and a fingerprint of its code.

    Args:
        model_factory: A class, a function, or the name of a model.
        dataset: Name or file of a dataset.
        scenarios: `"all"`, a name or several.
        seeds: A number n, for seeds 1…n, or the seeds.
        name: Name of the model in records and tables; a lambda needs one.
        options: Arguments of the factory besides the two sizes.
        runs: Directory of the records.
        launcher: Where runs are computed; None takes one process per core.
        device: `cuda`, `mps`, `cpu`; None takes the first there is.
        learning_rates: None given takes 1e-3; `published` those of the paper, for its models.
        select_learning_rate: Try two rates on five seeds and keep the better, as the paper does.
        progress: Whether to show a bar.
        training: Differences from the paper's protocol, fields of
            `equiscale.core.protocol.TrainingProtocol`: `max_epochs=5`, `batch_size=64`, …

    Raises:
        OptionError: An argument is not possible; the model cannot take the images.
        BenchmarkError: Not a single run was finished.

    Example (it trains for minutes, so it is not run here but, with a small model, in the tests)::

        class MyNet(nn.Module):
            def __init__(self, in_channels: int, num_classes: int) -> None: ...

        print(equiscale.benchmark(MyNet, dataset="emoji", scenarios="mid2rest", seeds=1))
    """
    if isinstance(seeds, int) and seeds < 1:
        raise OptionError(f"seeds must be a number of at least 1, or a list of seeds, got {seeds}")
    rates = learning_rates if isinstance(learning_rates, str) else tuple(learning_rates)
    model = _name(model_factory, name)
    request = SweepRequest(
        models=(model,),
        data=(str(dataset),),
        scenarios=_names(scenarios),
        seeds=tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds),
        learning_rates=rates,
        select_learning_rate=select_learning_rate,
        training=training,
        options={model: options} if options else {},
    )
    sweep = resolve_sweep(request)
    store = RunStore(runs)
    choose_device(device)
    settings = JobSettings(
        runs=str(Path(runs).resolve()),
        sources={data.content_hash: data.source for data in sweep.datasets},
        device=device,
    )
    with _following(store, progress) as show:
        chosen = _choose_launcher(launcher, model, device)
        status = run_sweep(sweep, store, chosen, settings, show)
    return read_benchmark(sweep, status, store)


def read_benchmark(sweep: Sweep, status: SweepStatus, store: RunStore) -> Benchmark:
    """Return how the model of a finished sweep stands."""
    failed = {str(key): store.failure(key.run_id).reason for key in status.keys(RunState.FAILED)}
    if not status.count(RunState.DONE):
        reason = next(iter(failed.values()), "there is none")
        raise BenchmarkError(f"none of the {len(status.plan.keys)} runs was finished: {reason}")
    choice = sweep.models[0]
    options = canonical_json(dict(choice.options)) if choice.options else ""
    study = read_study(store.root)
    return Benchmark(choice.name, options, sweep, study, failed)


def _name(factory: Callable[..., nn.Module] | str, name: str | None) -> str:
    if not isinstance(factory, str):
        return name_factory(factory, name)
    if name is not None:
        raise OptionError(f"a model that is given by its name, {factory!r}, keeps that name")
    return factory


def _names(scenarios: str | Sequence[str | Scenario]) -> tuple[str, ...]:
    given = [scenarios] if isinstance(scenarios, str) else scenarios
    return tuple(getattr(scenario, "value", scenario) for scenario in given)


def _choose_launcher(launcher: Launcher | None, model: str, device: str | None) -> Launcher:
    if launcher is None:
        if is_known_here_only(model):
            return InProcessLauncher()
        return LocalLauncher(gpus=count_gpus(device))
    if is_known_here_only(model) and not isinstance(launcher, InProcessLauncher):
        raise OptionError(
            f"{model} is known to this process only, and {type(launcher).__name__} starts others: "
            "put the class into a module of its own and import it, or leave out the launcher"
        )
    return launcher


@contextlib.contextmanager
def _following(store: RunStore, visible: bool) -> Iterator[Callable[[SweepStatus], None]]:
    """Yield a function that shows how many runs have ended, and how far the first other one is."""
    with tqdm(unit="run", disable=not visible) as bar:

        def show(status: SweepStatus) -> None:
            running = load_running(status, store)
            bar.set_postfix_str(str(running[0]) if running else "", refresh=False)
            bar.total = len(status.plan.keys) + len(status.plan.undecided)
            bar.n = status.count(RunState.DONE) + status.count(RunState.FAILED)
            bar.refresh()

        yield show


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        text.ljust(width) if index in (1, 2) else text.rjust(width)
        for index, (text, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"

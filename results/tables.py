"""Our runs as Markdown tables, each a function of the records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from equiscale.analysis.comparison import compare_published, published_accuracy
from equiscale.analysis.runs import Runs
from equiscale.analysis.statistics import pearson
from equiscale.analysis.summaries import (
    channel_correlations,
    count_strong,
    reported_runs,
    summarize_accuracy,
)
from equiscale.core.spec import Scenario
from equiscale.data.catalog import CARDS
from equiscale.models.base import list_models, model_card
from equiscale.report.figure_data import FigureData, NothingToDrawError
from equiscale.report.figures import MAIN_MODELS
from equiscale.report.plots import EQUIVARIANCE_MODELS
from equiscale.report.style import order_datasets
from equiscale.results.key import PROTOCOL_VERSION, protocol_changes
from equiscale.results.record import RunRecord
from equiscale.results.store import RunStore

ROOT = Path(__file__).parents[1]
TRANSFER = (Scenario.SMALL_TO_LARGE, Scenario.MID_TO_REST, Scenario.LARGE_TO_SMALL)
NONE = "–"
CONFUSED = (("mnist", Scenario.SMALL_TO_LARGE), ("emoji", Scenario.LARGE_TO_SMALL))
FEWEST = 4  # points that a correlation is worth computing from
CORNER = 6  # pixels on either side that count as the border of a map


class Evidence:
    """Our runs, and what follows from them.

    Args:
        runs: What `results/runs` holds.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.data = FigureData(runs, PROTOCOL_VERSION)

    @cached_property
    def runs_without_variants(self) -> Runs:
        """The runs of models as they are, for figures that would be crowded by ablations."""
        table = self.runs.table.filter(pl.col("model").is_in(list_models()))
        return replace(self.runs, table=table)

    @cached_property
    def cells(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Cells of the paper's protocol by dataset, scenario and model."""
        names = ("dataset", "scenario", "model")
        rows = self.data.cells.iter_rows(named=True)
        return {tuple(row[name] for name in names): row for row in rows}

    @cached_property
    def changed_cells(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """Cells of emoji that depart from the paper's protocol, by model and changes, scenario."""
        cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in summarize_accuracy(reported_runs(self.runs.table)).iter_rows(named=True):
            changes = protocol_changes(row["protocol"])
            if changes and row["dataset"] == "emoji":
                cells.setdefault((row["model"], changes), {})[row["scenario"]] = row
        return cells

    def records(self, model: str, dataset: str, scenario: Scenario) -> list[RunRecord]:
        """Return the records of a cell, with the model as it is, by their seeds."""
        wanted = model, dataset, scenario
        found = (
            record
            for record in RunStore(ROOT / "results" / "runs").load_all()
            if (record.key.model, record.key.dataset, record.key.scenario) == wanted
            and not record.key.model_options
        )
        return sorted(found, key=lambda record: record.key.seed)

    @cached_property
    def costs(self) -> dict[str, dict[str, Any]]:
        """Measured cost of each model, from `benchmarks/models.py`."""
        return {row["model"]: row for row in measured("models")}

    def mean(self, dataset: str, scenario: Scenario, model: str) -> float | None:
        """Return the mean accuracy of a cell, if it was run."""
        cell = self.cells.get((dataset, scenario.value, model))
        return None if cell is None else cell["mean"]

    def sizes(self, dataset: str, scenario: Scenario, model: str) -> pl.DataFrame:
        """Return the accuracy at each object size."""
        wanted = {"dataset": dataset, "scenario": scenario.value, "model": model}
        return self.data.sizes.filter(pl.col(name) == value for name, value in wanted.items())


def measured(benchmark: str) -> list[dict[str, Any]]:
    """Return the rows that a script of `benchmarks/` has written."""
    path = ROOT / "benchmarks" / "results" / f"{benchmark}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """Return an accuracy in per cent, or a dash."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def models(evidence: Evidence) -> str:
    """Accuracy on the unseen sizes of emoji, and cost, of every model that was run."""
    rows = []
    for name in list_models():
        cells = [evidence.cells.get(("emoji", scenario.value, name)) for scenario in TRANSFER]
        if any(cells):
            rows.append((name, "", cells))
    for (name, changes), found in evidence.changed_cells.items():
        rows.append((name, changes, [found.get(scenario.value) for scenario in TRANSFER]))
    rows.sort(key=lambda row: -np.mean([cell["mean"] for cell in row[2] if cell]))
    headings = ["model", "parameters", *(s.value for s in TRANSFER), "training step", "inference"]
    best = ["*best published mean*", NONE, *_best_published("emoji"), NONE, NONE]
    return markdown_table(headings, [*(_model_row(evidence, *row) for row in rows), best])


def _model_row(evidence: Evidence, name: str, changes: str, cells: Sequence[Any]) -> list[str]:
    cost = evidence.costs.get(name, {})
    accuracies = [NONE if cell is None else _with_seeds(cell) for cell in cells]
    ratios = [_ratio(cost.get(key)) for key in ("training_step_ratio", "inference_ratio")]
    label = f"`{name}`, {changes}" if changes else f"`{name}`"
    return [label, f"{model_card(name).count_parameters():,}", *accuracies, *ratios]


def _with_seeds(cell: Mapping[str, Any]) -> str:
    spread = "" if cell["std"] is None else f" ± {percent(cell['std'])}"
    return f"{percent(cell['mean'])}{spread} ({cell['runs']})"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _best_published(dataset: str) -> list[str]:
    best = []
    for scenario in TRANSFER:
        best.append(f"*{percent(_published_nine(dataset, scenario)['mean'][0])}*")
    return best


def _published_nine(dataset: str, scenario: Scenario) -> pl.DataFrame:
    """Return the published cells of the paper's nine models, the best first."""
    cells = published_accuracy().filter(dataset=dataset, scenario=scenario.value)
    return cells.filter(pl.col("model").is_in(MAIN_MODELS)).sort("mean", descending=True)


def published(evidence: Evidence) -> str:
    """Every cell that is published and that we ran, of the paper's protocol."""
    compared = compare_published(evidence.data.cells)
    rows = []
    for row in compared.iter_rows(named=True):
        deviation = row["difference"] / row["published_std"]
        theirs = f"{percent(row['published'])} ± {percent(row['published_std'])}"
        within = "yes" if row["near"] else "**no**"
        cell = [row["dataset"], row["scenario"], f"`{row['model']}`", row["runs"]]
        rows.append([*cell, percent(row["mean"]), theirs, f"{deviation:+.1f}", within])
    near = compared["near"].sum()
    headings = ["dataset", "scenario", "model", "our seeds", "ours", "published mean ± sd"]
    table = markdown_table([*headings, "difference in sd", "within 2 sd"], rows)
    return f"{table}\n{near} of {len(rows)} cells lie within two published standard deviations.\n"


def others(evidence: Evidence) -> str:
    """Every cell without a published counterpart: our models, datasets and controls."""
    known = set(published_accuracy().select("dataset", "scenario", "model").iter_rows())
    rows = []
    for row in summarize_accuracy(reported_runs(evidence.runs.table)).iter_rows(named=True):
        cell = (row["dataset"], row["scenario"], row["model"])
        changes = protocol_changes(row["protocol"])
        if (cell not in known or changes) and not is_variant(row["model"]):
            model = f"`{row['model']}`" + (f", {changes}" if changes else "")
            each = ", ".join(percent(value) for value in row["accuracies"])
            rows.append([*cell[:2], model, f"{row['learning_rate']:g}", percent(row["mean"]), each])
    return markdown_table(["dataset", "scenario", "model", "lr", "mean", "all seeds"], rows)


def is_variant(model: str) -> bool:
    """Whether a model was run with options of its own, which its name then shows."""
    return "{" in model


def transfer(evidence: Evidence) -> str:
    """Every cell of scale_channels, beside standard and the best published one."""
    rows = []
    for dataset in evidence.data.datasets:
        everywhere = evidence.cells.get((dataset, Scenario.ALL_TO_ALL.value, "scale_channels"))
        for scenario in TRANSFER:
            cell = evidence.cells.get((dataset, scenario.value, "scale_channels"))
            if cell is not None:
                each = ", ".join(percent(value) for value in cell["accuracies"])
                nine = _published_nine(dataset, scenario)
                best = f"{percent(nine['mean'][0])}, `{nine['model'][0]}`" if len(nine) else NONE
                bound = NONE if everywhere is None else percent(everywhere["mean"])
                plain = percent(evidence.mean(dataset, scenario, "standard"))
                own = percent(cell["mean"]), each, bound
                rows.append([dataset, scenario.value, *own, plain, best])
    headings = ["dataset", "scenario", "mean", "all seeds", "trained on all sizes"]
    return markdown_table([*headings, "`standard`", "best published mean"], rows)


def ablations(evidence: Evidence) -> str:
    """Runs of scale_channels in which one thing was changed, beside those as it is."""
    names = {cell[2] for cell in evidence.cells if cell[2].startswith("scale_channels")}
    rows = []
    for name in sorted(names):
        cells = [evidence.cells.get(("emoji", scenario.value, name)) for scenario in TRANSFER]
        changed = _options(name.removeprefix("scale_channels").strip())
        rows.append([changed, *(NONE if cell is None else _with_seeds(cell) for cell in cells)])
    return markdown_table(["changed", *(scenario.value for scenario in TRANSFER)], rows)


def stopping(evidence: Evidence) -> str:
    """How the accuracy of scale_channels goes with the epochs before it stopped improving.

    All its runs on emoji count, but those that pad or pool in another way.
    """
    runs = evidence.runs.table.filter(
        pl.col("model").str.starts_with("scale_channels"),
        ~pl.col("model").str.contains("padding|pool"),
        pl.col("dataset") == "emoji",
    )
    rows = []
    for scenario in TRANSFER:
        own = runs.filter(pl.col("scenario") == scenario.value)
        if len(own) >= FEWEST:
            best, valid = (sorted(own[name]) for name in ("best_epoch", "valid_accuracy"))
            span = f"{best[0]}–{best[-1]}", f"{percent(valid[0])}–{percent(valid[-1])}"
            rows.append([scenario.value, *span, _correlation(own, "best_epoch")])
    headings = ["scenario", "best epoch", "validation", "r of best epoch and accuracy"]
    return markdown_table(headings, rows)


def _options(text: str) -> str:
    """Return the options of a variant as a person would write them."""
    given = json.loads(text) if text else {}
    return ", ".join(f"`{name}={_rounded(value)}`" for name, value in given.items()) or "nothing"


def _rounded(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_rounded, value))})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def channel_pooling(evidence: Evidence) -> str:
    """Answers of trained scale channels combined in other ways, from `benchmarks/channels.py`."""
    del evidence
    frame = pl.DataFrame(measured("channels")).filter(dataset="emoji")
    means = frame.group_by("label", "scenario", maintain_order=True).agg(
        pl.col("accuracy").mean(), pl.len()
    )
    found = {(row[0], row[1]): row[2:] for row in means.iter_rows()}
    rows = []
    for variant in dict.fromkeys(frame["label"]):
        cells = [found.get((variant, scenario.value)) for scenario in TRANSFER]
        shown = [NONE if cell is None else f"{percent(cell[0])} ({cell[1]})" for cell in cells]
        rows.append([variant, *shown])
    best = ["*best published mean*", *_best_published("emoji")]
    headings = ["pooling and factors", *(scenario.value for scenario in TRANSFER)]
    return markdown_table(headings, [*rows, best])


def channels_alone(evidence: Evidence) -> str:
    """Each channel asked by itself on mnist small2large, from `benchmarks/channels.py`."""
    del evidence
    runs = pl.DataFrame(measured("channels_alone"))
    chosen = runs.filter(dataset="mnist", scenario="small2large", seed=1)
    rows = [
        [
            f"{row['size']} px",
            *(
                f"{percent(accuracy)} ({row['size'] * factor:.0f} px, {_two_digits(certainty)})"
                for factor, accuracy, certainty in zip(
                    row["factors"], row["alone"], row["certainty_when_wrong"], strict=True
                )
            ),
            percent(row["accuracy"]),
            "{} as {}: {}".format(*row["errors"][0]) if row["errors"] else NONE,
        ]
        for row in chosen.iter_rows(named=True)
    ]
    factors = [f"copy × {factor:.2f}" for factor in runs["factors"][0]]
    return markdown_table(["digit", *factors, "mixture", "most frequent error"], rows)


def _two_digits(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def confusions(evidence: Evidence) -> str:
    """What scale_channels takes for what at unseen sizes, where it misses most."""
    rows = []
    for dataset, scenario in CONFUSED:
        for record in evidence.records("scale_channels", dataset, scenario):
            found, tested = record.predictions, scenario.test_sizes
            wrong = np.isin(found.object_sizes, tested) & (found.predicted != found.labels)
            pairs = Counter(zip(found.labels[wrong], found.predicted[wrong], strict=True))
            names = CARDS[dataset].class_names
            common = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:5]
            shown = ", ".join(f"{names[a]} as {names[b]}: {count}" for (a, b), count in common)
            asked = int(np.isin(found.object_sizes, tested).sum())
            errors = f"{wrong.sum()} of {asked}"
            rows.append([dataset, scenario.value, record.key.seed, errors, shown])
    headings = ["dataset", "scenario", "seed", "errors at unseen sizes", "most frequent"]
    return markdown_table(headings, rows)


def costs(evidence: Evidence) -> str:
    """Time, memory and operations of every model, measured side by side."""
    rows = [
        [
            f"`{name}`",
            _ratio(row["training_step_ratio"]),
            NONE if row["target"] is None else f"{row['target']:g}",
            _ratio(row["inference_ratio"]),
            f"{row['peak_memory_mb']:.0f}",
            f"{row['forward_gflop']:.1f}",
        ]
        for name, row in evidence.costs.items()
    ]
    headings = ["model", "training step", "to reach", "inference", "peak memory, MB", "GFLOP"]
    return markdown_table(headings, rows)


LAYER_LABELS = {
    "training step": "training step, `{}` / `standard`",
    "inference": "inference, `{}` / `standard`",
    "inference without compiled code": "inference without compiled code, `{}` / `standard`",
    "forward and backward, 64×64": "one layer 16→32 at 64×64, dense gradient, {} pooling / Conv2d",
    "unpooled stack, to direct's": "unpooled stack 16→32 at 64×64, {} / direct",
    "peak memory above standard's (MB)": "peak memory of a step, `{}` above `standard` (MB)",
}


def layer_cost(evidence: Evidence) -> str:
    """What the scaled convolution costs, from `benchmarks/layer.py`."""
    del evidence
    rows = []
    for row in [*measured("layer_networks"), *measured("layer_layer"), *measured("layer_memory")]:
        if row["model"] not in ("standard", "Conv2d", "direct"):
            value = row.get("ratio", row.get("megabytes"))
            rows.append([LAYER_LABELS[row["what"]].format(row["model"]), f"{value:.2g}"])
    for row in measured("layer_sizes"):
        if row["method"] == "spectral" and row["n"] >= 128:
            what = f"one layer 16→32 forward at {row['n']}×{row['n']}, pixel pooling / Conv2d"
            rows.append([what, f"{row['ratio']:.2g}"])
    return markdown_table(["what", "measured"], rows)


def layer_choices(evidence: Evidence) -> str:
    """What `auto` makes of many shapes, from `benchmarks/layer.py shapes`."""
    del evidence
    rows = []
    for row in measured("layer_shapes"):
        options = dict(row["layer"])
        channels = f"{options.pop('in_channels')}→{options.pop('out_channels')}"
        layer = f"{channels}, k = {options.pop('kernel_size')}"
        layer += "".join(f", {name} {_listed(value)}" for name, value in options.items())
        shape = "×".join(map(str, row["input"]))
        rows.append([layer, shape, f"{row['spectral']:.2g}", f"{row['auto/best']:.2f}"])
    return markdown_table(["layer", "input", "spectral / direct", "auto / the better"], rows)


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def epochs(evidence: Evidence) -> str:
    """Time of a training epoch over that of standard, ours beside the paper's Table 2."""
    costs = evidence.data.costs.filter(pl.col("epoch_ratio").is_not_null())
    timed = {(row["dataset"], row["model"]): row for row in costs.iter_rows(named=True)}
    rows = []
    for dataset in order_datasets(costs["dataset"].to_list()):
        for row in (timed[dataset, m] for m in list_models() if (dataset, m) in timed):
            ratios = (_ratio(row["epoch_ratio"]), _ratio(row["published_ratio"]))
            rows.append([dataset, f"`{row['model']}`", *ratios])
    return markdown_table(["dataset", "model", "ours", "published"], rows)


def winners(evidence: Evidence) -> str:
    """The best of the paper's nine in every cell in which all nine were run."""
    rows = []
    for dataset in evidence.data.datasets:
        for scenario in Scenario:
            means = {m: evidence.mean(dataset, scenario, m) for m in MAIN_MODELS}
            if all(mean is not None for mean in means.values()):
                best, second = sorted(means, key=lambda m: -(means[m] or 0))[:2]
                nine = _published_nine(dataset, scenario)
                theirs = f"`{nine['model'][0]}`" if len(nine) else NONE
                shown = [f"`{m}` {percent(means[m])}" for m in (best, second)]
                rows.append([dataset, scenario.value, *shown, theirs])
    table = markdown_table(["dataset", "scenario", "best", "second", "best as published"], rows)
    different = len({row[2].partition(" ")[0] for row in rows})
    return f"{table}\nCells: {len(rows)}; models that are best in one of them: {different}.\n"


def directions(evidence: Evidence) -> str:
    """Accuracy of mid2rest below and above the trained sizes."""
    rows: list[list[str]] = []
    papers: list[str] = []
    for dataset in evidence.data.datasets:
        for model in list_models():
            sizes = evidence.sizes(dataset, Scenario.MID_TO_REST, model)
            if len(sizes):
                thirds = [_mean_over(sizes, *span) for span in ((17, 32), (33, 48), (49, 64))]
                lower = "smaller" if thirds[0] < thirds[2] else "larger"
                rows.append([dataset, f"`{model}`", *map(percent, thirds), lower])
                papers += [lower] if model in list_models("paper") else []
    headings = ["dataset", "model", "17–32", "33–48 (trained)", "49–64", "loses more towards"]
    own, every = (
        f"{some.count('smaller')} of {len(some)}" for some in (papers, [row[-1] for row in rows])
    )
    verdict = f"{own} cells of the paper's models lose more towards smaller sizes, {every} in all."
    return f"{markdown_table(headings, rows)}\n{verdict}\n"


def _mean_over(sizes: pl.DataFrame, first: int, last: int) -> float:
    return float(sizes.filter(pl.col("object_size").is_between(first, last))["mean"].mean())  # type: ignore[arg-type]


def equivariance(evidence: Evidence) -> str:
    """Correlation of equivariance error and accuracy, across models and within them."""
    errors = evidence.data.errors.filter(
        pl.col("stage").str.contains("stage2"),
        pl.col("model").is_in(list_models()),  # not their variants
    )
    rows = []
    for (dataset, scenario), cell in errors.group_by("dataset", "scenario", maintain_order=True):
        means = cell.group_by("model", maintain_order=True).agg(
            pl.col("error", "test_accuracy").mean()
        )
        papers = means.filter(pl.col("model").is_in(EQUIVARIANCE_MODELS))
        centred = cell.with_columns(
            pl.col(name) - pl.col(name).mean().over("model") for name in ("error", "test_accuracy")
        ).filter(pl.col("seed").count().over("model") > 1)
        if len(means) >= FEWEST:
            kinds = (papers, means, centred)
            rows.append([dataset, scenario, *(_correlation(kind, "error") for kind in kinds)])
    headings = [
        "dataset",
        "scenario",
        "across the paper's five",
        "across all",
        "within, over seeds",
    ]
    return markdown_table(headings, rows)


def _correlation(frame: pl.DataFrame, cause: str) -> str:
    """Return r of a column and the accuracy, its interval and the number of points."""
    if len(frame) < FEWEST:
        return "too few"
    found = pearson(frame[cause].to_list(), frame["test_accuracy"].to_list())
    low, high = found.interval.low, found.interval.high
    between = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{found.r:.2f}{between} ({len(frame)})"


def slice_selection(evidence: Evidence) -> str:
    """How the kernel size that slice pooling chooses follows the object's size."""
    try:
        selection = evidence.data.selection("slice")
    except NothingToDrawError:
        return "No run of `slice_pool` yet.\n"
    rows = []
    for layer in selection.pools:
        chosen = selection.chosen[layer]
        strong = [
            count_strong(channel_correlations(selection, layer, item))
            for item in range(chosen.shape[1])
        ]
        above, example = np.mean(strong), strong[selection.example]
        channels, largest = chosen.shape[2], int(chosen.max())
        rows.append([layer, channels, f"{above:.1f}", example, int(np.median(chosen)), largest])
    headings = ["layer", "channels", "with r > 0.9, mean over test objects", "for the example"]
    cell = " ".join(selection.cell[1:])
    table = markdown_table([*headings, "median kernel", "largest kernel"], rows)
    return f"{cell}, seed {selection.seed}:\n\n{table}"


def pixel_selection(evidence: Evidence) -> str:
    """Kernel sizes that pixel pooling chooses at the centre and at the border of the map."""
    rows = []
    for selection in evidence.runs.selections:
        if selection.cell[1:3] == ("emoji", "mid2rest") and selection.maps:
            for layer, maps in selection.maps.items():
                per_pixel = maps.astype(float).mean(axis=(0, 1))
                inner = per_pixel[CORNER:-CORNER, CORNER:-CORNER]
                border = (per_pixel.sum() - inner.sum()) / (per_pixel.size - inner.size)
                third = len(per_pixel) // 3
                centre = per_pixel[third:-third, third:-third].mean()
                row = [f"`{selection.cell[3]}`", layer, f"{centre:.1f}", f"{border:.1f}"]
                rows.append([*row, f"{centre / border:.2f}"])
    headings = ["model", "layer", "centre (inner third)", f"border ({CORNER} pixels)", "ratio"]
    return markdown_table(headings, sorted(rows))


BLOCKS = {
    "results": models,
    "published": published,
    "others": others,
    "transfer": transfer,
    "ablations": ablations,
    "stopping": stopping,
    "channel-pooling": channel_pooling,
    "channels-alone": channels_alone,
    "confusions": confusions,
    "costs": costs,
    "layer-cost": layer_cost,
    "layer-choices": layer_choices,
    "epochs": epochs,
    "winners": winners,
    "directions": directions,
    "equivariance": equivariance,
    "slice-selection": slice_selection,
    "pixel-selection": pixel_selection,
}
"""Tables by the name that marks their place in the pages."""

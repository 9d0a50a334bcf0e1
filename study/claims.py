"""The paper's claims, each as a table of what our runs say of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale import Scenario, SConv2d, create_model, list_models
from equiscale.analysis.comparison import published_curves
from equiscale.analysis.selection import (
    SIZES,
    ScaleSelection,
    channel_correlations,
    count_strong,
    read_selection,
)
from equiscale.report.figures import MAIN_MODELS
from equiscale.report.plots import EQUIVARIANCE_MODELS
from equiscale.report.style import order_datasets
from study.evidence import (
    FEWEST,
    NONE,
    Evidence,
    correlation,
    markdown_table,
    percent,
    published_nine,
)

CORNER = 6  # pixels on either side that count as the border of a map
INCOMPARABLE = (
    "spatial_transform",
    "ensemble",
    "ensemble_dropout",
    "scale_channels",
    "gaussian_derivative",
)
"""Models of which an equivariance error says little: they move objects, or only some of their
levels or channels have maps of which it can be measured."""
PIXEL_MODELS = ("pixel_pool", "pixel_pool_same")


def winners(evidence: Evidence) -> str:
    """The best of the paper's nine in every cell in which all nine were run."""
    rows = []
    for dataset in evidence.datasets:
        for scenario in Scenario:
            means = {m: evidence.mean(dataset, scenario, m) for m in MAIN_MODELS}
            if all(mean is not None for mean in means.values()):
                best, second = sorted(means, key=lambda m: -(means[m] or 0))[:2]
                nine = published_nine(dataset, scenario)
                theirs = f"`{nine['model'][0]}`" if len(nine) else NONE
                shown = [f"`{m}` {percent(means[m])}" for m in (best, second)]
                rows.append([dataset, scenario.value, *shown, theirs])
    table = markdown_table(["dataset", "scenario", "best", "second", "best as published"], rows)
    different = len({row[2].partition(" ")[0] for row in rows})
    return f"{table}\nCells: {len(rows)}; models that are best in one of them: {different}.\n"


SPANS = ((17, 32), (25, 32), (33, 48), (49, 64))
"""Sizes of mid2rest: below the trained ones, those of them that are no further off by their ratio
than the largest, the trained ones, and those above."""
ENDS = ((33, 64), (17, 48), (25, 48))
"""Sizes that small2large tests, that large2small tests, and those of these that are no further off
by their ratio than the largest of small2large."""


def directions(evidence: Evidence) -> str:
    """Accuracy of mid2rest below and above the trained sizes."""
    rows: list[list[str]] = []
    for dataset in evidence.datasets:
        for model in list_models():
            curve = evidence.curve(dataset, Scenario.MID_TO_REST, model)
            if curve is not None:
                all_below, as_far, trained, above = (_mean_over(curve, span) for span in SPANS)
                means = map(percent, (all_below, as_far, trained, above))
                verdicts = (_lower(below, above) for below in (all_below, as_far))
                rows.append([dataset, f"`{model}`", *means, *verdicts])
    headings = ["dataset", "model", "17–32", "25–32", "33–48 (trained)", "49–64"]
    headings += ["loses more towards", "at the same ratios"]
    papers = [row for row in rows if row[1].strip("`") in list_models("paper")]
    whole, near = (_count_smaller(papers, column) for column in (-2, -1))
    verdict = (
        f"{whole} cells of the paper's models lose more towards smaller sizes, {near} where both "
        f"are as far from the trained ones by their ratio; of all models {_count_smaller(rows, -2)}"
        f" and {_count_smaller(rows, -1)}."
    )
    return f"{markdown_table(headings, rows)}\n{verdict}\n"


def _mean_over(curve: Mapping[int, float], span: tuple[int, int]) -> float:
    return float(np.mean([curve[size] for size in range(span[0], span[1] + 1)]))


def _lower(smaller: float, larger: float) -> str:
    return "smaller" if smaller < larger else "larger"


def _count_smaller(rows: list[list[str]], column: int) -> str:
    return f"{sum(row[column] == 'smaller' for row in rows)} of {len(rows)}"


def ends(evidence: Evidence) -> str:
    """Accuracy of the paper's models where they go from one end of the sizes to the other."""
    rows = []
    for dataset in evidence.datasets:
        for model in list_models("paper"):
            upwards = evidence.curve(dataset, Scenario.SMALL_TO_LARGE, model)
            downwards = evidence.curve(dataset, Scenario.LARGE_TO_SMALL, model)
            if upwards is not None and downwards is not None:
                larger, smaller, as_far = _means_at_ends(upwards, downwards)
                means = map(percent, (larger, smaller, as_far))
                verdicts = (_lower(below, larger) for below in (smaller, as_far))
                rows.append([dataset, f"`{model}`", *means, *verdicts])
    headings = ["dataset", "model", "small2large", "large2small", "large2small, 25–48"]
    headings += ["lower towards", "at the same ratios"]
    whole, near = (_count_smaller(rows, column) for column in (-2, -1))
    verdict = f"{whole} are lower towards smaller sizes, {near} at the same ratios."
    return f"{markdown_table(headings, rows)}\n{verdict}\n"


def _means_at_ends(
    upwards: Mapping[int, float], downwards: Mapping[int, float]
) -> tuple[float, float, float]:
    larger, smaller, as_far = ENDS
    return (
        _mean_over(upwards, larger),
        _mean_over(downwards, smaller),
        _mean_over(downwards, as_far),
    )


def published_directions(evidence: Evidence) -> str:
    """How many of the paper's models lose more towards smaller sizes, by the published means."""
    curves = {
        key: dict(zip(SIZES, values, strict=True)) for key, values in published_curves().items()
    }
    rows = []
    for dataset in order_datasets({dataset for dataset, _, _ in curves}):
        found: list[list[str]] = []
        for model in list_models("paper"):
            middle, upwards, downwards = (
                curves[dataset, scenario, model]
                for scenario in ("mid2rest", "small2large", "large2small")
            )
            all_below, as_far, _, above = (_mean_over(middle, span) for span in SPANS)
            larger, *smaller = _means_at_ends(upwards, downwards)
            pairs = [(all_below, above), (as_far, above), *((mean, larger) for mean in smaller)]
            found.append([_lower(*pair) for pair in pairs])
        rows.append([dataset, *(_count_smaller(found, column) for column in range(4))])
    headings = ["dataset", "mid2rest", "mid2rest, same ratios", "from end to end"]
    return markdown_table([*headings, "from end to end, same ratios"], rows)


def equivariance(evidence: Evidence) -> str:
    """Correlation of the logarithm of the equivariance error and accuracy, by stage."""
    errors = _errors_per_run(evidence)
    rows = []
    for (dataset, scenario, stage), cell in errors.group_by(
        "dataset", "scenario", "stage", maintain_order=True
    ):
        values = ("log_error", "test_accuracy")
        means = cell.group_by("model", maintain_order=True).agg(pl.col(values).mean())
        papers = means.filter(pl.col("model").is_in(EQUIVARIANCE_MODELS))
        repeated = cell.filter(pl.len().over("model") > 1)
        centred = repeated.with_columns(pl.col(v) - pl.col(v).mean().over("model") for v in values)
        groups = max(1, repeated["model"].n_unique())
        if len(means) >= FEWEST:
            across = (correlation(kind, "log_error") for kind in (papers, means))
            within = correlation(centred, "log_error", groups)
            rows.append([dataset, scenario, stage, *across, within])
    headings = ["dataset", "scenario", "stage", "across the paper's five", "across all"]
    return markdown_table([*headings, "within, over seeds"], rows)


def _errors_per_run(evidence: Evidence) -> pl.DataFrame:
    """Return one row per run and stage, the mean over the channels that a model may have."""
    known = [model for model in list_models() if model not in INCOMPARABLE]
    errors = evidence.paper.errors.filter(
        pl.col("model").is_in(known), pl.col("error") > 0, options=""
    )
    run = ("dataset", "scenario", "stage", "model", "seed", "test_accuracy")
    return (
        errors.with_columns(
            stage=pl.col("stage").str.extract(r"stage([12])"), log_error=pl.col("error").log10()
        )
        .drop_nulls("stage")
        .group_by(run, maintain_order=True)
        .agg(pl.col("log_error").mean())
        .sort("dataset", "scenario", "stage", maintain_order=True)
    )


def slice_selection(evidence: Evidence) -> str:
    """How the kernel size that slice pooling chooses follows the object's size."""
    rows = []
    for dataset in ("emoji", "signs"):
        for selection in _selections(evidence, "slice_pool", dataset):
            for layer, chosen in selection.chosen.items():
                strong = [
                    count_strong(channel_correlations(selection, layer, item))
                    for item in range(chosen.shape[1])
                ]
                example = chosen[:, selection.example]
                constant = int((example == example[0]).all(axis=0).sum())
                row = [dataset, selection.seed, layer, chosen.shape[2]]
                row += [strong[selection.example], f"{np.mean(strong):.1f}", constant]
                rows.append([*row, int(np.median(example)), example.max(), chosen.max()])
    headings = ["dataset", "seed", "layer", "channels", "r > 0.9, example"]
    headings += ["r > 0.9, mean over objects", "always the same, example", "median kernel, example"]
    return markdown_table([*headings, "largest, example", "largest, all objects"], rows)


def _selections(evidence: Evidence, model: str, dataset: str) -> list[ScaleSelection]:
    """Return the scale selections of all runs on mid2rest, by their seeds."""
    records = evidence.records(model, dataset, Scenario.MID_TO_REST)
    found = (read_selection(record) for record in records)
    return [selection for selection in found if selection is not None]


def pixel_selection(evidence: Evidence) -> str:
    """Kernel sizes that pixel pooling chooses at the centre and at the border of the map."""
    rows = []
    for model in PIXEL_MODELS:
        for selection in _selections(evidence, model, "emoji"):
            for layer, maps in selection.maps.items():
                fits = _fitting(model, layer, maps)
                chosen = _centre_and_border(maps, np.isfinite(maps))
                responding = _centre_and_border(maps, fits)
                zeros = 1 - fits.mean()
                sizes = [f"{value:.1f}" for value in (*chosen, *responding)]
                shares = percent(zeros), _share_explained(chosen, responding) if zeros else NONE
                rows.append([f"`{model}`", selection.seed, layer, *sizes, *shares])
    headings = ["model", "seed", "layer", "centre (inner third)", f"border ({CORNER} pixels)"]
    headings += ["centre, without zeros", "border, without zeros", "zeros chosen, %"]
    return markdown_table([*headings, "of the difference due to zeros, %"], rows)


def _share_explained(chosen: tuple[float, float], responding: tuple[float, float]) -> str:
    """Return which share of the difference between centre and border goes with the zeros."""
    return percent(1 - (responding[0] - responding[1]) / (chosen[0] - chosen[1]))


def _fitting(model: str, layer: str, maps: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return where the kernel that was chosen fits; elsewhere a zero of its frame was taken."""
    convolution = create_model(model, in_channels=1, num_classes=2).get_submodule(layer)
    assert isinstance(convolution, SConv2d)
    if convolution.padding == "same":
        return np.ones(maps.shape, bool)
    rows, columns = (np.minimum(np.arange(n), np.arange(n)[::-1]) for n in maps.shape[2:])
    from_border = np.minimum(rows[:, None], columns)
    fits: NDArray[np.bool_] = maps <= convolution.kernel_size[0] + 2 * from_border
    return fits


def _centre_and_border(maps: NDArray[np.uint8], counted: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the mean over the inner third and over the margin, of what counts."""
    third = maps.shape[2] // 3
    inner = np.s_[..., third:-third, third:-third]
    margin = np.ones(maps.shape, bool)
    margin[..., CORNER:-CORNER, CORNER:-CORNER] = False
    return float(maps[inner][counted[inner]].mean()), float(maps[margin & counted].mean())

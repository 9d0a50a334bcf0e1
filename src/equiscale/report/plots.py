"""One function per figure: a study in, a matplotlib figure out. Ours filled, published hollow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.cbook import boxplot_stats
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from equiscale.analysis.comparison import published_accuracy, published_curves
from equiscale.analysis.selection import (
    SIZES,
    ScaleSelection,
    best_channels,
    channel_correlations,
    count_strong,
)
from equiscale.analysis.statistics import Correlation
from equiscale.analysis.study import Study
from equiscale.analysis.summaries import ModelKey, model_keys, train_spans
from equiscale.core.errors import EquiscaleError, OptionError
from equiscale.core.operations import scaled_operations, standard_operations
from equiscale.core.spec import CANVAS, Scenario
from equiscale.core.variants import VARIANTS
from equiscale.data.catalog import locate_dataset
from equiscale.data.schema import read_arrays
from equiscale.report.style import (
    STYLES,
    ModelStyle,
    dataset_label,
    order_datasets,
    order_scenarios,
    scenario_label,
    style_models,
)

EQUIVARIANCE_MODELS = ("standard", "kanazawa", "pixel_pool", "slice_pool", "energy_pool")
_MARKER_STEP = 9
_WIDE = 20
_SHADE = "#e6eef6"
_INK = "#1b1f24"
Styles = Mapping[ModelKey, ModelStyle]


class NothingToDrawError(OptionError):
    """The runs lack what a figure shows."""


def plot_accuracy(study: Study, wanted: Sequence[str] | None = None) -> Figure:
    """Fig. 4 / Suppl. 1: box over seeds, every seed, published mean; datasets × scenarios."""
    styles = _chosen_styles(study, wanted)
    height = 0.5 + 0.21 * len(styles)
    figure, axes = _grid(study, row_height=height, sharex=False)
    for (dataset, scenario), axis in axes.items():
        cells = _by_model(study.cells.filter(dataset=dataset, scenario=scenario))
        known = published_accuracy().filter(
            dataset=_published_name(study, dataset), scenario=scenario
        )
        published = {ModelKey(name): mean for name, mean in known.select("model", "mean").rows()}
        for place, model in enumerate(styles):
            _draw_seeds(axis, place, styles[model], cells.get(model), published.get(model))
        _label_rows(axis, styles.values())
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=None))
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.grid(axis="y", visible=False)
        if styles.keys().isdisjoint(cells.keys() | published.keys()):
            _mark_empty(axis)
    figure.supxlabel("accuracy on the test sizes, %", fontsize=8)
    points = (("s", "quartiles, median"), ("D", "published mean"))
    hollow = [_point(marker, label, hollow=True) for marker, label in points]
    _legend(figure, [_point(".", "one seed"), *hollow])
    return figure


def plot_sizes(study: Study, wanted: Sequence[str] | None = None) -> Figure:
    """Fig. 5 / Suppl. 2: mean accuracy at each object size, training range shaded."""
    styles = _chosen_styles(study, wanted)
    curves = study.sizes.partition_by("dataset", "scenario", "model", "options", as_dict=True)
    all_sizes = study.object_sizes
    figure, axes = _grid(study, row_height=1.75, sharex=len(set(all_sizes.values())) == 1)
    for (dataset, scenario), axis in axes.items():
        sizes = all_sizes[dataset]
        for first, last in train_spans(Scenario(scenario), sizes):
            axis.axvspan(first - 0.5, last + 0.5, color=_SHADE, lw=0, zorder=0)
        name = _published_name(study, dataset)
        for index, (key, style) in enumerate(styles.items()):
            _draw_curve(axis, curves.get((dataset, scenario, *key)), style)
            published = published_curves().get((name, scenario, key.model))
            if published is not None and not key.options:
                _draw_published_curve(axis, published, style, index)
        axis.set_xlim(sizes[0] - 1, sizes[-1] + 1)
        axis.set_ylim(0, 1.02)
        axis.set_xticks(_ticks(sizes))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    figure.supxlabel("object size in pixels", fontsize=8)
    lines = [
        Line2D([], [], color=style.light, lw=1.4, ls=_dash(style), label=style.label)
        for style in styles.values()
    ]
    _legend(figure, [*lines, _point("o", "published", hollow=True)])
    return figure


def plot_equivariance(study: Study, last_stage: bool = False) -> Figure:
    """Fig. 6 / Suppl. 3: equivariance error against accuracy, one marker per run."""
    errors = study.errors.filter(pl.col("error").is_not_null(), _is_wanted(EQUIVARIANCE_MODELS))
    if last_stage:
        errors = errors.filter("last").with_columns(stage=pl.lit("last stage"))
    if errors.is_empty():
        raise NothingToDrawError("no equivariance error was measured")
    styles = _styles(model_keys(errors))
    rows = [
        (dataset, found)
        for dataset in _datasets(study)
        for found in errors.filter(dataset=dataset)["stage"].unique().sort()
    ]
    columns = _scenarios(errors)
    parts = errors.partition_by("dataset", "stage", "scenario", "model", "options", as_dict=True)
    figure, axes = _panels(len(rows), len(columns), 1.6)
    for (dataset, found), row in zip(rows, axes, strict=True):
        for scenario, axis in zip(columns, row, strict=True):
            own = {key: parts.get((dataset, found, scenario, *key)) for key in styles}
            _draw_errors(axis, own, styles)
            axis.set_title(scenario_label(scenario) if axis in axes[0] else "")
        row[0].set_ylabel(f"{_dataset(dataset)}, {found}\naccuracy")
    left_out = "undefined ones left out"
    scales = {axis.get_xscale() for row in axes for axis in row}
    remark = f"{left_out}; axes are linear or logarithmic" if len(scales) > 1 else left_out
    figure.supxlabel(f"equivariance error ({remark})", fontsize=8)
    _legend(figure, [_point(s.marker, s.label, s.light) for s in styles.values()])
    return figure


def plot_slice_selection(study: Study) -> Figure:
    """Fig. 7: kernel size over object size, one panel per channel, sorted by Pearson's r."""
    cell, selection = _selection(study, "slice")
    layer, item = selection.last_layer, selection.example
    chosen = selection.chosen[layer][:, item]
    correlations = channel_correlations(selection, layer, item)
    order = best_channels(correlations)
    (style,) = _styles([ModelKey(cell["model"], cell["options"])]).values()
    rows = -(-len(order) // 8)
    figure = Figure(figsize=(7.2, 1.05 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, 8, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(order) :]:
        axis.set_visible(False)
    for axis, channel in zip(axes.flat, order, strict=False):
        axis.plot(selection.sizes, chosen[:, channel], ".", ms=2.2, color=style.light)
        axis.set_title(_correlation_text(correlations[channel]), fontsize=6, pad=2)
        axis.set_xticks([selection.sizes[0], selection.sizes[-1]])
        axis.tick_params(labelsize=6.5)
    figure.supxlabel("object size in pixels", fontsize=8)
    figure.supylabel("kernel size", fontsize=8)
    strong = count_strong(correlations)
    figure.suptitle(
        f"{_cell_text(cell, selection)}\n{strong} of {len(order)} channels with r > 0.9, "
        f"largest kernel {chosen.max()}; in brackets: 95 % interval of r",
        fontsize=8,
    )
    return figure


def plot_pixel_selection(study: Study) -> Figure:
    """Suppl. 4: the kernel size at every pixel, one tile per channel, at four object sizes."""
    cell, selection = _selection(study, "pixel")
    layer = selection.last_layer
    if layer not in selection.maps:
        raise NothingToDrawError("no run holds the maps of its pixel pooling")
    maps = selection.maps[layer]
    kernel_range = {"vmin": min(7, maps.min()), "vmax": max(57, maps.max())}
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, size in zip(axes.flat, _ticks(selection.sizes), strict=False):
        tiles = _tiles(maps[selection.sizes.index(size)])
        shown = axis.imshow(tiles, **kernel_range, cmap="viridis", interpolation="nearest")
        axis.set_title(f"object size {size}")
        axis.set_axis_off()
    bar = figure.colorbar(shown, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label("kernel size")
    bar.outline.set_visible(False)
    figure.suptitle(f"{_cell_text(cell, selection)}, {maps.shape[1]} channels", fontsize=8)
    return figure


def plot_operations(study: Study) -> Figure:
    """Operations over the input size by the formulas, and of our networks as executed."""
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    standard, scaled = _styles([ModelKey("standard"), ModelKey("pixel_pool")]).values()
    sizes = np.arange(7, 129)
    for label, formula, style in (
        ("standard layer", standard_operations, standard),
        ("scaled layer", scaled_operations, scaled),
    ):
        values = [formula(int(size), 7) for size in sizes]
        left.semilogy(sizes, values, color=style.light, lw=1.6, label=label)
        at = formula(CANVAS, 7)
        left.plot(CANVAS, at, "o", color=style.light, ms=4)
        left.annotate(f"{at:.1e}", (CANVAS, at), (6, -9), textcoords="offset points", fontsize=7)
    left.set_xlabel("input size n, kernel size 7")
    left.set_ylabel("operations per channel pair")
    left.legend(loc="lower right")
    _draw_executed(right, study)
    return figure


def plot_epoch_seconds(study: Study) -> Figure:
    """Table 2: seconds per epoch, and how many times those of standard; published ones hollow."""
    costs = study.costs.drop_nulls("epoch_seconds")
    if costs.is_empty():
        raise NothingToDrawError("no epoch was timed")
    styles = _styles(model_keys(costs))
    datasets = order_datasets(costs["dataset"])
    figure, axes = _panels(len(datasets), 2, 0.5 + 0.21 * len(styles), column_width=2.4)
    for dataset, row in zip(datasets, axes, strict=True):
        models = _by_model(costs.filter(dataset=dataset))
        for axis, kind in zip(row, ("seconds", "ratio"), strict=True):
            _draw_costs(axis, models, styles, f"epoch_{kind}", f"published_{kind}")
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        row[0].set_ylabel(_dataset(dataset))
    axes[0][0].set_title("seconds per epoch")
    axes[0][1].set_title("times those of the standard CNN")
    _legend(
        figure, [_point("o", "ours, fastest run"), _point("D", "published (A100)", hollow=True)]
    )
    return figure


def _draw_costs(
    axis: Axes, models: Mapping[ModelKey, dict[str, Any]], styles: Styles, filled: str, hollow: str
) -> None:
    """Draw two costs of each model, one filled and one hollow."""
    for place, (model, style) in enumerate(styles.items()):
        row = models.get(model, {})
        if row.get(hollow):
            axis.plot(row[hollow], place, "D", mfc="none", mec=style.light, ms=5)
        if row.get(filled):
            axis.plot(row[filled], place, "o", color=style.light, ms=4.5)
    if models:
        axis.set_xscale("log")
    _label_rows(axis, styles.values())


def plot_ranks(study: Study) -> Figure:
    """Average rank over cells; models whose bars overlap are not told apart at 5 %."""
    ranking = study.ranking(study.main_protocol)
    if ranking is None:
        raise NothingToDrawError("ranks need two models with runs in the same cells")
    styles = _styles(ranking.models)
    count = len(ranking.models)
    figure = Figure(figsize=(5.2, 0.8 + 0.22 * count), layout="constrained")
    axis = figure.subplots()
    half = (ranking.critical_difference or 0) / 2
    for place, (model, rank) in enumerate(zip(ranking.models, ranking.ranks, strict=True)):
        colour = styles[model].light
        ends = [max(1.0, rank - half), min(float(count), rank + half)]
        axis.plot(ends, [place, place], color=colour, lw=3, alpha=0.3)
        axis.plot(rank, place, "o", color=colour, ms=5)
    _label_rows(axis, [styles[model] for model in ranking.models])
    cells = "1 cell that has" if ranking.cells == 1 else f"{ranking.cells} cells that have"
    axis.set_xlabel(f"average rank over {cells} all of these models")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if ranking.critical_difference is not None:
        text = f"critical difference {ranking.critical_difference:.2f} (Nemenyi, 5 %)"
        axis.set_title(f"{text}: overlapping bars are not told apart", fontsize=7)
    return figure


def plot_overview(study: Study, images: str | None = None) -> Figure:
    """Fig. 3: which object sizes each scenario trains on and tests, and example objects."""
    pictures = _example_images(_datasets(study), images)
    figure = Figure(figsize=(7.2, 1.7 + 1.05 * len(pictures)), layout="constrained")
    ratios = [1.6] + [1.0] * len(pictures)
    parts: Any = figure.subfigures(len(ratios), 1, height_ratios=ratios, squeeze=False)
    _draw_scenarios(parts[0, 0].subplots())
    for part, (name, (sizes, shown)) in zip(parts[1:, 0], pictures.items(), strict=True):
        _draw_examples(part, name, sizes, shown)
    return figure


def _draw_scenarios(axis: Axes) -> None:
    colours = {"train": "#0063b1", "test": "#f0b35a"}
    for place, scenario in enumerate(Scenario):
        both = scenario is Scenario.ALL_TO_ALL
        for sizes, what in ((scenario.train_sizes(), "train"), (scenario.test_sizes(), "test")):
            low = place - 0.36 if not both or what == "train" else place + 0.02
            spans = [(size - 0.5, 1.0) for size in sizes]
            height = 0.34 if both else 0.72
            axis.broken_barh(spans, (low, height), color=colours[what], lw=0, antialiased=False)
    axis.set_yticks(range(len(Scenario)), [scenario_label(s.value) for s in Scenario])
    axis.invert_yaxis()
    axis.set_xlim(16, 65)
    axis.set_xticks([17, 32, 48, 64])
    axis.set_xlabel("object size in pixels")
    axis.grid(visible=False)
    handles = [Line2D([], [], lw=6, color=c, label=name) for name, c in colours.items()]
    axis.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _label_rows(axis: Axes, styles: Collection[ModelStyle]) -> None:
    """Label one row per model, from the top."""
    axis.set_yticks(range(len(styles)), [style.label for style in styles])
    axis.set_ylim(len(styles) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)


def _plain(text: str) -> str:
    """Return a text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def _styles(models: Iterable[ModelKey]) -> dict[ModelKey, ModelStyle]:
    styles = style_models(models)
    return {key: replace(style, label=_plain(style.label)) for key, style in styles.items()}


def _is_wanted(names: Sequence[str] | None) -> pl.Expr:
    """Whether a model is one of these or not of this package; None means all models."""
    if names is None:
        return pl.lit(True)
    return pl.col("model").is_in(names) | ~pl.col("model").is_in([*STYLES, *VARIANTS])


def _chosen_styles(study: Study, wanted: Sequence[str] | None) -> dict[ModelKey, ModelStyle]:
    styles = _styles(model_keys(study.cells.filter(_is_wanted(wanted))))
    if not styles:
        raise NothingToDrawError("no run of these models")
    return styles


def _by_model(frame: pl.DataFrame) -> dict[ModelKey, dict[str, Any]]:
    return {ModelKey(row["model"], row["options"]): row for row in frame.to_dicts()}


def _datasets(study: Study) -> list[str]:
    return order_datasets(study.cells["dataset"])


def _published_name(study: Study, dataset: str) -> str:
    return str(study.cells.filter(dataset=dataset)["dataset_name"][0])


def _selection(study: Study, pool: str) -> tuple[dict[str, Any], ScaleSelection]:
    """Return cell and scale selection of a run with this pool, of emoji mid2rest if possible."""
    found = [(c, s) for c, s in study.reported_selections if s.pools[s.last_layer] == pool]
    if not found:
        raise NothingToDrawError(f"no run has a layer with {pool} pooling")
    return min(found, key=lambda f: (f[0]["dataset"] != "emoji", f[0]["scenario"] != "mid2rest"))


def _dataset(name: str) -> str:
    return _plain(dataset_label(name))


def _panels(
    rows: int, columns: int, row_height: float, sharex: bool = False, column_width: float = 1.45
) -> tuple[Figure, NDArray[Any]]:
    size = (max(column_width * columns + 1.4, 3.4), row_height * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=sharex, sharey="row", squeeze=False)


def _grid(
    study: Study, row_height: float, sharex: bool
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """Return one panel per dataset (rows) and scenario (columns)."""
    datasets, scenarios = _datasets(study), _scenarios(study.cells)
    figure, axes = _panels(len(datasets), len(scenarios), row_height, sharex)
    for axis, scenario in zip(axes[0], scenarios, strict=True):
        axis.set_title(scenario_label(scenario))
    panels: dict[tuple[str, str], Axes] = {}
    for row, dataset in zip(axes, datasets, strict=True):
        row[0].set_ylabel(_dataset(dataset))
        panels |= {(dataset, s): axis for s, axis in zip(scenarios, row, strict=True)}
    return figure, panels


def _scenarios(frame: pl.DataFrame) -> list[str]:
    return order_scenarios(frame["scenario"].to_list())


def _ticks(sizes: Sequence[int]) -> list[int]:
    """Return four object sizes or fewer, the first and the last among them."""
    rows = np.linspace(0, len(sizes) - 1, min(4, len(sizes)))
    return [sizes[row] for row in rows.round().astype(int)]


def _draw_seeds(
    axis: Axes, place: int, style: ModelStyle, cell: dict[str, Any] | None, published: float | None
) -> None:
    values = cell["accuracies"] if cell else []
    if len(values) > 2:
        _draw_box(axis, place, style, values)
    spread = 0.09 if len(values) > 1 else 0.0
    heights = [place + ((index * 7) % 5 - 2) * spread for index in range(len(values))]
    size, alpha = (4, 0.5) if len(values) > 5 else (7, 0.85)
    axis.plot(values, heights, ".", color=style.light, mew=0, ms=size, alpha=alpha)
    if published is not None:
        axis.plot(published, place, "D", mfc="none", mec=style.light, ms=4.2, mew=0.9, zorder=5)


def _draw_box(axis: Axes, place: int, style: ModelStyle, values: Sequence[float]) -> None:
    """Draw quartiles, median and whiskers (the last value within 1.5 box lengths) as two lines."""
    (box,) = boxplot_stats(values)
    low, high, top, bottom = box["q1"], box["q3"], place - 0.31, place + 0.31
    gap = np.nan
    x = [low, high, high, low, low, gap]
    y = [top, top, bottom, bottom, top, gap]
    for end, start in ((box["whislo"], low), (box["whishi"], high)):
        x += [start, end, gap, end, end, gap]
        y += [place, place, gap, place - 0.155, place + 0.155, gap]
    axis.plot(x, y, color=style.light, lw=0.8)
    axis.plot([box["med"]] * 2, [top, bottom], color=style.light, lw=1.6, solid_capstyle="butt")


def _draw_curve(axis: Axes, curve: pl.DataFrame | None, style: ModelStyle) -> None:
    if curve is not None:
        sizes, means = curve["object_size"], curve["mean"]
        ends = curve.select("low", "high").to_numpy().astype(float)
        axis.fill_between(sizes, *ends.T, color=style.light, alpha=0.12, lw=0)
        axis.plot(sizes, means, color=style.light, lw=1.1, ls=_dash(style))


def _draw_published_curve(axis: Axes, means: list[float], style: ModelStyle, index: int) -> None:
    """Draw some points as hollow markers; the index shifts them, so that few coincide."""
    hollow: Any = {"mfc": "white", "mec": style.light, "mew": 0.6, "ms": 2.8}
    every = (index % _MARKER_STEP, _MARKER_STEP)
    axis.plot(SIZES, means, ls="", marker=style.marker, markevery=every, **hollow)


def _dash(style: ModelStyle) -> Any:  # noqa: ANN401 - what matplotlib takes for a line style
    """Return a dash pattern in units of the line's width."""
    return (0, [int(length) / 1.8 for length in style.dash.split()]) if style.dash else "-"


def _draw_errors(
    axis: Axes, errors: Mapping[ModelKey, pl.DataFrame | None], styles: Styles
) -> None:
    for model, runs in errors.items():
        if runs is None:
            continue
        style = styles[model]
        axis.plot(
            runs["error"],
            runs["test_accuracy"],
            style.marker,
            color=style.light,
            ms=3.6,
            alpha=0.75,
            mew=0,
        )
    axis.margins(y=0.1)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    drawn = [runs["error"].drop_nulls() for runs in errors.values() if runs is not None]
    found = [error for series in drawn for error in series]
    if not found:
        _mark_empty(axis)
    elif 0 < _WIDE * min(found) < max(found):  # one far off would hide how the others differ
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axis.set_xlim(0, 1.1 * max(found) or 1)  # all of them can be 0


def _mark_empty(axis: Axes) -> None:
    axis.set_xticks([])
    axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="#7a828c")


def _draw_executed(axis: Axes, study: Study) -> None:
    """Draw the operations of whole networks, by formula (hollow) and as executed (filled)."""
    costs = study.costs.drop_nulls("operations_executed")
    dataset = order_datasets(costs["dataset"])[:1]  # the number of channels differs
    rows = _by_model(costs.filter(pl.col("dataset").is_in(dataset)))
    _draw_costs(axis, rows, _styles(rows), "operations_executed", "operations_by_formula")
    where = ", ".join(map(_dataset, dataset)) or "no run"
    axis.set_xlabel(f"operations per image, network ({where})\n● executed   ◇ by the formulas")


def _correlation_text(correlation: Correlation) -> str:
    if correlation.r is None:
        return "constant"
    low, high = correlation.interval.low, correlation.interval.high
    return f"r = {correlation.r:.2f}\n[{low:.2f}, {high:.2f}]".replace("-", "−")


def _cell_text(cell: Mapping[str, Any], selection: ScaleSelection) -> str:
    (style,) = _styles([ModelKey(cell["model"], cell["options"])]).values()
    where = f"{_dataset(cell['dataset'])}, {scenario_label(cell['scenario'])}"
    name = _plain(selection.example_name)
    return f"{style.label}, {where}, seed {selection.seed}, object “{name}”"


def _tiles(maps: NDArray[np.uint8], columns: int = 8, gap: int = 3) -> NDArray[np.float64]:
    """`[C, H, W] -> [rows, columns]`: channels side by side, with NaN between them."""
    channels, height, width = maps.shape
    rows = -(-channels // columns)
    tiles = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for channel in range(channels):
        top, left = (height + gap) * (channel // columns), (width + gap) * (channel % columns)
        tiles[top : top + height, left : left + width] = maps[channel]
    return tiles


def _example_images(
    datasets: list[str], images: str | None
) -> dict[str, tuple[list[int], NDArray[np.uint8]]]:
    """Return some sizes and test images `[sizes, n, H, W(, 3)]` of the datasets found here."""
    pictures = {}
    for name in [images] if images else datasets:
        try:
            arrays = read_arrays(locate_dataset(name, download=False))
        except EquiscaleError:
            if images:
                raise
            continue
        sizes = _ticks(sorted(arrays.sizes))
        rows = [arrays.sizes.index(size) for size in sizes]
        classes = np.linspace(0, arrays.num_classes - 1, min(3, arrays.num_classes)).astype(int)
        pictures[name] = sizes, arrays.images[2][rows][:, classes, 0]
    return pictures


def _draw_examples(
    part: Any,  # noqa: ANN401 - a subfigure
    name: str,
    sizes: Sequence[int],
    images: NDArray[np.uint8],
) -> None:
    flat = [image for row in images for image in row]
    axes = part.subplots(1, len(flat), squeeze=False)[0]
    part.suptitle(_dataset(name), fontsize=8, x=0.01, ha="left")
    for index, (axis, image) in enumerate(zip(axes, flat, strict=True)):
        axis.imshow(image, cmap="gray", vmin=0, vmax=255)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.grid(visible=False)
        if index % images.shape[1] == 0:
            axis.set_title(f"size {sizes[index // images.shape[1]]}", fontsize=7)


def _point(marker: str, label: str, colour: str = _INK, hollow: bool = False) -> Line2D:
    face = "none" if hollow else colour
    return Line2D([], [], ls="", marker=marker, mfc=face, mec=colour, ms=4, label=label)


def _legend(figure: Figure, handles: list[Line2D]) -> None:
    """Add a legend above the panels, with as many columns as the figure is wide enough for."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    width = 0.45 + 0.06 * longest  # inches: the sample, and letters of 7.5 points
    columns = max(1, min(len(handles), int(figure.get_figwidth() / width)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize=7.5)

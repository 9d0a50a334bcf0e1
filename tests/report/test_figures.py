"""What the figures draw: values of lines and markers against the records and published tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy import stats

from equiscale.analysis.comparison import published_accuracy, published_curves
from equiscale.analysis.selection import SIZES
from equiscale.analysis.study import Study
from equiscale.core.errors import OptionError
from equiscale.core.operations import scaled_operations, standard_operations
from equiscale.core.spec import Scenario
from equiscale.report.figures import FIGURES, write_figures
from equiscale.report.style import STYLES
from equiscale.runs.record import RunRecord
from equiscale.runs.table import MeasuredValue

STARTS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
MID = Scenario.MID_TO_REST
SLICE = STYLES["slice_pool"]


@pytest.fixture(scope="module")
def paper(study: Study) -> Study:
    return study.where(protocol="paper-1")


def panel(figure: Figure, title: str, ylabel: str) -> Axes:
    """Return the panel of a column and a row."""
    columns = [a.get_title() for a in figure.axes if a.get_title()]
    rows = [a.get_ylabel() for a in figure.axes if a.get_ylabel()]
    return figure.axes[rows.index(ylabel) * len(columns) + columns.index(title)]


def lines(axis: Axes, colour: str, marker: str) -> list[list[list[float]]]:
    """Return x and y of the lines with a colour and marker, `"None"` for plain ones."""
    return [
        [np.asarray(line.get_xdata(), float).tolist(), np.asarray(line.get_ydata(), float).tolist()]
        for line in axis.lines
        if line.get_marker() == marker and colour in (line.get_markeredgecolor(), line.get_color())
    ]


def labels(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.get_yticklabels()]


def test_accuracy_shows_every_seed_quartiles_and_the_published_mean(
    paper: Study, cell: list[RunRecord]
) -> None:
    axis = panel(FIGURES["suppl1-accuracy"](paper), "mid → rest", "Emoji")
    place = labels(axis).index(SLICE.label)
    own = [record.test_accuracy for record in cell]
    ((x, y),) = lines(axis, SLICE.light, ".")
    assert x == own
    assert y == pytest.approx([place] * 3, abs=0.3)
    published = published_accuracy().filter(dataset="emoji", scenario="mid2rest")
    expected = published.filter(model="slice_pool")["mean"][0]
    assert lines(axis, SLICE.light, "D") == [[[expected], [place]]]
    box, median = lines(axis, SLICE.light, "None")
    assert median[0] == [np.median(own)] * 2
    assert np.nanmin(box[0]) == min(own)
    assert box[0][:2] == pytest.approx(np.quantile(own, [0.25, 0.75]).tolist())


def test_sizes_shows_the_mean_at_each_size_its_interval_and_the_published_curve(
    paper: Study, cell: list[RunRecord]
) -> None:
    axis = panel(FIGURES["fig5-accuracy-per-size"](paper), "mid → rest", "Emoji")
    ((x, y),) = lines(axis, SLICE.light, "None")
    assert x == list(SIZES)
    curves = [list(record.predictions.accuracy_per_size().values()) for record in cell]
    assert y == pytest.approx(np.mean(curves, axis=0).tolist())
    ((x, y),) = lines(axis, SLICE.light, SLICE.marker)
    assert (x, y) == (list(SIZES), published_curves()["emoji", "mid2rest", "slice_pool"])
    shaded = axis.patches[0].get_extents().transformed(axis.transData.inverted())
    assert (shaded.x0, shaded.x1) == pytest.approx((MID.train_sizes()[0] - 0.5, 48.5))
    bands: list[Any] = list(axis.collections)
    (band,) = [one for one in bands if to_hex(one.get_facecolor()[0]) == SLICE.light]
    ends = paper.sizes.filter(dataset="emoji", scenario="mid2rest", model="slice_pool")
    drawn = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
    assert drawn >= set(ends.select("object_size", "low").iter_rows())
    assert drawn >= set(ends.select("object_size", "high").iter_rows())


@pytest.mark.parametrize(
    ("name", "row"), [("fig6-equivariance", "last stage"), ("suppl3-equivariance", "stage2")]
)
def test_equivariance_shows_error_and_accuracy_of_each_run(
    paper: Study, cell: list[RunRecord], name: str, row: str
) -> None:
    axis = panel(FIGURES[name](paper), "mid → rest", f"Emoji, {row}\naccuracy")
    errors = []
    for record in cell:
        measured = record.measurements["equivariance"]
        inside = [
            i for i, (a, b) in enumerate(measured.values["pairs"]) if {a, b} <= {*MID.test_sizes()}
        ]
        errors.append(float(np.nanmean(measured.arrays["stage2"][inside])))
    ((x, y),) = lines(axis, SLICE.light, SLICE.marker)
    assert x == pytest.approx(errors, abs=1e-5)
    assert y == [record.test_accuracy for record in cell]


def test_slice_selection_is_sorted_by_r(paper: Study, cell: list[RunRecord]) -> None:
    figure = FIGURES["fig7-slice-selection"](paper)
    chosen = cell[0].measurements["scale_selection"].arrays["chosen.conv2"][:, 0]
    r = [stats.pearsonr(SIZES, chosen[:, channel]).statistic for channel in range(32)]
    order = np.argsort(r)[::-1]
    for axis, channel in zip(figure.axes, order, strict=True):
        ((x, y),) = lines(axis, SLICE.light, ".")
        assert (x, y) == (list(SIZES), chosen[:, channel].tolist())
        assert axis.get_title().startswith(f"r = {r[channel]:.2f}\n".replace("-", "−"))
    strong = sum(value > 0.9 for value in r)
    title = f"{strong} of 32 channels with r > 0.9, largest kernel {chosen.max()}"
    assert title in figure.get_suptitle()


def test_pixel_selection_shows_the_maps(paper: Study) -> None:
    figure = FIGURES["suppl4-pixel-selection"](paper)
    cells = ((c["model"], c["scenario"], s) for c, s in paper.reported_selections)
    (maps,) = [s.maps["conv2"] for *c, s in cells if c == ["pixel_pool", "mid2rest"]]
    for axis, size in zip(figure.axes[:4], (17, 33, 48, 64), strict=True):
        assert axis.get_title() == f"object size {size}"
        shown: Any = axis.images[0].get_array()
        for channel in range(32):
            top, left = 55 * (channel // 8), 55 * (channel % 8)
            tile = shown[top : top + 52, left : left + 52]
            assert (tile == maps[size - 17, channel]).all()


def test_operations_shows_formulas_and_executed_operations(paper: Study) -> None:
    left, right = FIGURES["operations"](paper).axes
    formulas = (standard_operations, scaled_operations)
    for line, formula in zip(left.lines[::2], formulas, strict=True):
        expected = [formula(n, 7) for n in range(7, 129)]
        assert np.asarray(line.get_ydata()).tolist() == expected
    place = labels(right).index(SLICE.label)
    assert lines(right, SLICE.light, "o") == [[[1_124_267_136], [place]]]
    assert lines(right, SLICE.light, "D") == [[[12_709_081_472], [place]]]


def test_epoch_seconds_shows_the_fastest_run_and_its_ratio(paper: Study) -> None:
    seconds, ratios = FIGURES["table2-epoch-seconds"](paper).axes[:2]
    place = labels(seconds).index(SLICE.label)
    runs = paper.runs.filter(dataset="emoji").with_columns(
        seconds=pl.col("median_epoch_seconds")
        / pl.when(pl.col("scenario") == "all2all").then(3).otherwise(1)
    )
    fastest = dict(runs.group_by("model").agg(pl.col("seconds").min()).iter_rows())
    own = fastest["slice_pool"]
    assert lines(seconds, SLICE.light, "o")[0] == [[pytest.approx(own)], [place]]
    expected = own / fastest["standard"]
    assert lines(ratios, SLICE.light, "o")[0] == [[pytest.approx(expected)], [place]]


def test_ranks_shows_the_average_rank(paper: Study) -> None:
    (axis,) = FIGURES["ranks"](paper).axes
    known = pl.col("model").is_in(list(STYLES))
    cells = paper.cells.filter(known, dataset="emoji")
    ranks = cells.with_columns(rank=pl.col("mean").rank(descending=True).over("scenario"))
    expected = dict(ranks.group_by("model").agg(pl.col("rank").mean()).iter_rows())
    for model, rank in expected.items():
        style = STYLES[model]
        assert lines(axis, style.light, "o") == [[[rank], [labels(axis).index(style.label)]]]


def test_the_overview_shows_the_sizes_of_each_scenario(paper: Study) -> None:
    axis = FIGURES["fig3-scenarios"](paper).axes[0]
    spans = [[path.get_extents().x0 for path in bars.get_paths()] for bars in axis.collections]
    expected = [sizes for s in Scenario for sizes in (s.train_sizes(), s.test_sizes())]
    assert [[x + 0.5 for x in span] for span in spans] == [list(sizes) for sizes in expected]


def test_files_are_what_they_say_and_the_same_each_time(
    study: Study, tmp_path: Path, hostile: str
) -> None:
    name = "suppl1-accuracy"
    write_figures(study, tmp_path, [name])
    for ending, start in STARTS.items():
        assert (tmp_path / f"{name}.{ending}").read_bytes().startswith(start)
    assert len(pl.read_csv(tmp_path / f"{name}.csv")) == 10
    first = (tmp_path / f"{name}.svg").read_text()
    assert hostile not in first
    write_figures(study, tmp_path, [name], ["svg"])
    assert (tmp_path / f"{name}.svg").read_text() == first


def _run(run_id: str, dataset: str, scenario: str, **changes: object) -> dict[str, Any]:
    row = {"run_id": run_id, "model": "standard", "dataset": dataset, "scenario": scenario}
    return {**row, "seed": 1, "test_accuracy": 0.5, "protocol": "paper-1", **changes}


def _error(run_id: str, stage: str, value: float | None, pair: tuple[int, int]) -> MeasuredValue:
    lost = 10 if value is None else 0
    return MeasuredValue(run_id, "equivariance", "error", value, stage, *pair, None, 10, lost)


def test_one_run_draws_what_it_can_and_says_what_is_missing(tmp_path: Path) -> None:
    study = Study.from_tables([_run("a", "$x^ $y", "mid2rest", model="my:$Net_{")])
    outcome = write_figures(study, tmp_path, formats=["svg"])
    assert outcome["fig7-slice-selection"] == "not drawn: no run has a layer with slice pooling"
    assert (tmp_path / "suppl1-accuracy.svg").exists()


@pytest.mark.parametrize("name", ["fig5-accuracy-per-size", "suppl3-equivariance"])
def test_nothing_is_cut_off_a_narrow_figure(paper: Study, name: str) -> None:
    figure = FIGURES[name](paper.where(scenario="mid2rest", dataset="emoji"))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_variants_of_ours_do_not_crowd_the_figures_of_the_paper() -> None:
    models = ("standard", "scale_channels", "my.module:Net")
    rows = [
        _run(f"{model} {options}", "emoji", "mid2rest", model=model, options=options)
        for model in models
        for options in ("", '{"depth":2}')
    ]
    study = Study.from_tables(rows)
    shown = labels(FIGURES["fig4-accuracy"](study).axes[0])
    assert shown == ["Standard CNN", "Net", "Net, depth 2", "standard, depth 2"]
    assert len(labels(FIGURES["suppl1-accuracy"](study).axes[0])) == 6


@pytest.mark.parametrize("name", ["suppl1-accuracy", "suppl3-equivariance"])
def test_a_cell_without_runs_says_so(name: str) -> None:
    rows = [_run("a", "mine", "small2large"), _run("b", "yours", "large2small")]
    values = [_error("a", "stage2", 1.0, (49, 64)), _error("b", "stage2", 1.0, (17, 32))]
    figure = FIGURES[name](Study.from_tables(rows, values))
    empty = [axis for axis in figure.axes if any(t.get_text() == "not run" for t in axis.texts)]
    assert len(figure.axes) == 4
    assert empty == [figure.axes[1], figure.axes[2]]
    assert not any(len(axis.get_xticks()) for axis in empty)


@pytest.mark.parametrize(
    ("other", "scale"), [(2.0, "linear"), (100.0, "log"), (0.0, "linear"), (None, "linear")]
)
def test_errors_far_apart_are_drawn_on_a_logarithmic_axis(other: float | None, scale: str) -> None:
    rows = [_run("a", "mine", "small2large"), _run("b", "mine", "small2large", seed=2)]
    values = [_error("a", "stage2", 1.0, (49, 64)), _error("b", "stage2", other, (49, 64))]
    figure = FIGURES["fig6-equivariance"](Study.from_tables(rows, values))
    assert [axis.get_xscale() for axis in figure.axes] == [scale]


def test_unknown_names_are_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'ranks'"):
        write_figures(study, tmp_path, ["rank"])
    with pytest.raises(OptionError, match="gif"):
        write_figures(study, tmp_path, ["ranks"], ["gif"])

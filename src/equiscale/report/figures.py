"""The figures and tables of the paper and its supplement, by name: runs in, files out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from equiscale.analysis.runs import Runs
from equiscale.core.errors import MissingExtraError, OptionError
from equiscale.core.files import atomic_write
from equiscale.core.protocol import PROTOCOL_VERSION
from equiscale.core.registry import unknown_name_message
from equiscale.report.figure_data import FigureData, NothingToDrawError

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError("matplotlib", "report") from error

from equiscale.report import plots

FORMATS = ("svg", "pdf", "png")
MAIN_MODELS = (
    "standard",
    "spatial_transform",
    "ensemble",
    "xu",
    "kanazawa",
    "hermite",
    "disco",
    "pixel_pool",
    "slice_pool",
)
"""The nine models of the paper's own figures; its supplement adds the others."""

Plot = Callable[[FigureData], Figure]


FIGURES: Mapping[str, Plot] = {
    "fig3-scenarios": plots.plot_overview,
    "fig4-accuracy": lambda data: plots.plot_accuracy(data, MAIN_MODELS),
    "fig5-accuracy-per-size": lambda data: plots.plot_sizes(data, MAIN_MODELS),
    "fig6-equivariance": lambda data: plots.plot_equivariance(data, last_stage=True),
    "fig7-slice-selection": plots.plot_slice_selection,
    "suppl1-accuracy": lambda data: plots.plot_accuracy(data, None),
    "suppl2-accuracy-per-size": lambda data: plots.plot_sizes(data, None),
    "suppl3-equivariance": plots.plot_equivariance,
    "suppl4-pixel-selection": plots.plot_pixel_selection,
    "operations": plots.plot_operations,
    "table2-epoch-seconds": plots.plot_epoch_seconds,
    "ranks": plots.plot_ranks,
}


def write_figures(
    runs: Runs,
    directory: Path,
    names: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
    images: str | None = None,
) -> dict[str, str]:
    """Write figures of the protocol with most runs, the paper's if it is there.

    Args:
        runs: What is drawn.
        directory: Where the files go; each is complete or absent.
        names: Which figures; None means all of `FIGURES`.
        formats: `svg`, `pdf`, `png`.
        images: Name or file of a dataset for the overview.

    Returns:
        By name, the files that were written, or what is missing for the figure.
    """
    _check_choices("figure", names or FIGURES, tuple(FIGURES))
    _check_choices("format", formats, FORMATS)
    data = FigureData(runs, main_protocol(runs.table), images)
    outcome = {}
    for name in names or FIGURES:
        try:
            with mpl.rc_context(_PAPER_STYLE):
                figure = FIGURES[name](data)
                _arrange(figure)
                files = [_save(figure, directory / f"{name}.{ending}") for ending in formats]
                table = _tables(name, data)
        except NothingToDrawError as error:
            outcome[name] = f"not drawn: {error}"
            continue
        if table is not None:
            files.append(_write(directory / f"{name}.csv", table.write_csv().encode()))
        outcome[name] = ", ".join(files)
    return outcome


def main_protocol(table: pl.DataFrame) -> str:
    """Return the paper's protocol if there are runs of it, else the one with most runs."""
    counts: dict[str, int] = dict(table["protocol"].value_counts().iter_rows())
    if PROTOCOL_VERSION in counts:
        return PROTOCOL_VERSION
    return max(sorted(counts), key=lambda name: counts[name])


def _tables(name: str, data: FigureData) -> pl.DataFrame | None:
    """Return the numbers behind a figure, where they are a plain table."""
    tables: dict[str, Callable[[], pl.DataFrame]] = {
        "suppl1-accuracy": lambda: data.cells.drop("seeds", "missing", "accuracies"),
        "suppl2-accuracy-per-size": lambda: data.sizes,
        "suppl3-equivariance": lambda: data.errors,
        "table2-epoch-seconds": lambda: data.costs,
    }
    return tables[name]() if name in tables else None


def _arrange(figure: Figure) -> None:
    """Compute the layout once; it is the same in every format."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def _save(figure: Figure, path: Path) -> str:
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    ending = path.suffix[1:]
    figure.savefig(buffer, format=ending, metadata=metadata[ending])
    return _write(path, buffer.getvalue())


def _write(path: Path, content: bytes) -> str:
    with atomic_write(path) as file:
        file.write(content)
    return str(path)


def _check_choices(kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise OptionError(unknown_name_message(kind, name, known))


_PAPER_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#6b717b",
    "axes.labelcolor": "#1b1f24",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7e9ec",
    "grid.linewidth": 0.6,
    "xtick.color": "#4d535c",
    "ytick.color": "#4d535c",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "equiscale",
    "pdf.fonttype": 42,
}

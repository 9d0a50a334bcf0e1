"""The figures and tables of the paper and its supplement, by name."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from equiscale.analysis.study import Study
from equiscale.core.errors import MissingExtraError
from equiscale.core.files import atomic_write
from equiscale.core.registry import check_name

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

Plot = Callable[[Study], Figure]

FIGURES: Mapping[str, Plot] = {
    "fig3-scenarios": plots.plot_overview,
    "fig4-accuracy": partial(plots.plot_accuracy, wanted=MAIN_MODELS),
    "fig5-accuracy-per-size": partial(plots.plot_sizes, wanted=MAIN_MODELS),
    "fig6-equivariance": partial(plots.plot_equivariance, last_stage=True),
    "fig7-slice-selection": plots.plot_slice_selection,
    "suppl1-accuracy": plots.plot_accuracy,
    "suppl2-accuracy-per-size": plots.plot_sizes,
    "suppl3-equivariance": plots.plot_equivariance,
    "suppl4-pixel-selection": plots.plot_pixel_selection,
    "operations": plots.plot_operations,
    "table2-epoch-seconds": plots.plot_epoch_seconds,
    "ranks": plots.plot_ranks,
}


TABLES: Mapping[str, Callable[[Study], pl.DataFrame]] = {
    "suppl1-accuracy": lambda study: study.cells.drop("seeds", "missing", "accuracies", "variant"),
    "suppl2-accuracy-per-size": lambda study: study.sizes,
    "suppl3-equivariance": lambda study: study.errors.drop_nulls("error"),
    "table2-epoch-seconds": lambda study: study.costs,
}
"""The numbers behind figures, written beside them as CSV."""


def write_figures(
    study: Study,
    directory: Path,
    names: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
    images: str | None = None,
) -> dict[str, str]:
    """Write figures of the study's main protocol.

    Args:
        study: The runs to draw.
        directory: Where the files go; each is written atomically.
        names: Which figures; None means all of `FIGURES`.
        formats: `svg`, `pdf`, `png`.
        images: Name or file of a dataset for the overview; None takes those on this machine.

    Returns:
        By name, the files that were written, or what is missing for the figure.
    """
    for name in names or FIGURES:
        check_name("figure", name, FIGURES)
    for ending in formats:
        check_name("format", ending, FORMATS)
    drawn = study.where(protocol=study.main_protocol)
    plot_functions: dict[str, Plot] = {
        **FIGURES,
        "fig3-scenarios": partial(plots.plot_overview, images=images),
    }
    outcome = {}
    for name in names or FIGURES:
        try:
            with mpl.rc_context(_PAPER_STYLE):
                figure = plot_functions[name](drawn)
                _arrange(figure)
                files = [_save(figure, directory / f"{name}.{ending}") for ending in formats]
        except plots.NothingToDrawError as error:
            outcome[name] = f"not drawn: {error}"
            continue
        if name in TABLES:
            table = TABLES[name](drawn).write_csv().encode()
            files.append(_write(directory / f"{name}.csv", table))
        outcome[name] = ", ".join(files)
    return outcome


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

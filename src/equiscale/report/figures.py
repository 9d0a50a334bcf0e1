"""The figures and tables of the paper and its supplement, by name: runs in, files out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from equiscale.analysis.comparison import (
    published_accuracy,
    published_epoch_seconds,
    published_sizes,
)
from equiscale.analysis.runs import Runs, Selection
from equiscale.analysis.summaries import (
    reported_runs,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
    summarize_sizes,
)
from equiscale.core.errors import MissingExtraError, OptionError, StorageError
from equiscale.core.files import atomic_write
from equiscale.core.registry import unknown_name_message
from equiscale.results.key import PROTOCOL_VERSION

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError("matplotlib", "report") from error

FORMATS = ("svg", "pdf", "png")
MAIN_MODELS = (
    "standard spatial_transform ensemble xu kanazawa hermite disco pixel_pool slice_pool"
).split()
"""The nine models of the paper's own figures; its supplement adds the others."""

_log = logging.getLogger(__name__)


class NothingToDrawError(OptionError):
    """The runs lack what a figure shows."""


@dataclass(frozen=True, eq=False)
class FigureData:
    """What figures are drawn from: the runs of one protocol.

    Attributes:
        runs: All runs.
        protocol: The one that is drawn.
        images: Name or file of a dataset for the overview; None takes what is on this machine.
    """

    runs: Runs
    protocol: str
    images: str | None = None

    @cached_property
    def reported(self) -> pl.DataFrame:
        """The runs that count."""
        return reported_runs(self.runs.table.filter(pl.col("protocol") == self.protocol))

    @cached_property
    def cells(self) -> pl.DataFrame:
        """See `summarize_accuracy`."""
        return summarize_accuracy(self.reported)

    @cached_property
    def sizes(self) -> pl.DataFrame:
        """See `summarize_sizes`."""
        return summarize_sizes(self.reported)

    @cached_property
    def errors(self) -> pl.DataFrame:
        """See `summarize_equivariance`, without undefined ones."""
        errors = summarize_equivariance(self.reported)
        return errors.filter(pl.col("error").is_not_null())

    @cached_property
    def costs(self) -> pl.DataFrame:
        """See `summarize_costs`."""
        return summarize_costs(self.reported)

    @cached_property
    def datasets(self) -> list[str]:
        """Datasets of the cells, those of the paper first."""
        order = ("emoji", "mnist", "trafficsign", "aerial")
        present = self.cells["dataset"].unique().to_list()
        return [*(d for d in order if d in present), *sorted(set(present) - set(order))]

    def models(self, wanted: Sequence[str] | None) -> list[str]:
        """Return the models that have runs; those wanted, and any that the paper does not know."""
        from equiscale.report.style import STYLES, style_models

        present = style_models(sorted(self.cells["model"].unique().to_list()))
        return [m for m in present if wanted is None or m in wanted or m not in STYLES]

    def selection(self, pool: str) -> Selection:
        """Return the scale selection of a run with this pool, of emoji mid2rest if there is one."""
        found = [
            s for s in self.runs.selections
            if s.pools[s.last_layer] == pool and s.cell[0] == self.protocol
        ]
        if not found:
            raise NothingToDrawError(f"no run has a layer with {pool} pooling")
        return min(found, key=lambda s: (s.cell[1] != "emoji", s.cell[2] != "mid2rest", s.cell))


Plot = Callable[[FigureData], Figure]


def _registry() -> dict[str, Plot]:
    from equiscale.report import plots

    return {
        "fig3-scenarios": plots.plot_overview,
        "fig4-accuracy": lambda data: plots.plot_accuracy(data, MAIN_MODELS),
        "fig5-accuracy-per-size": lambda data: plots.plot_sizes(data, MAIN_MODELS),
        "fig6-equivariance": lambda data: plots.plot_equivariance(data, "stage2"),
        "fig7-slice-selection": plots.plot_slice_selection,
        "suppl1-accuracy": lambda data: plots.plot_accuracy(data, None),
        "suppl2-accuracy-per-size": lambda data: plots.plot_sizes(data, None),
        "suppl3-equivariance": lambda data: plots.plot_equivariance(data, None),
        "suppl4-pixel-selection": plots.plot_pixel_selection,
        "operations": plots.plot_operations,
        "table2-epoch-seconds": plots.plot_epoch_seconds,
        "ranks": plots.plot_ranks,
    }


FIGURES: Mapping[str, Plot] = _registry()


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


def _save(figure: Figure, path: Path) -> str:
    import io

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    ending = path.suffix[1:]
    figure.savefig(buffer, format=ending, metadata=metadata[ending])
    return _write(path, buffer.getvalue())


def _write(path: Path, content: bytes) -> str:
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    return str(path)


def _check_choices(kind: str, given: Sequence[str] | Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise OptionError(unknown_name_message(kind, name, known))


_PAPER_STYLE = {
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
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "equiscale",
    "pdf.fonttype": 42,
}
__all__ = [
    "FIGURES",
    "FigureData",
    "NothingToDrawError",
    "main_protocol",
    "published_accuracy",
    "published_epoch_seconds",
    "published_sizes",
    "write_figures",
]

"""What figures are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from equiscale.analysis.comparison import compare_costs
from equiscale.analysis.runs import Runs, RunSelection
from equiscale.analysis.summaries import (
    reported_runs,
    reported_selections,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
    summarize_sizes,
)
from equiscale.core.errors import OptionError
from equiscale.report.style import is_ours, order_datasets, style_models

_PANEL = ("dataset", "scenario")


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
        """See `summarize_costs` and `compare_costs`."""
        return compare_costs(summarize_costs(self.reported))

    @cached_property
    def datasets(self) -> list[str]:
        """Datasets of the cells, those of the paper first."""
        return order_datasets(self.cells["dataset"].to_list())

    @cached_property
    def curves(self) -> dict[tuple[str, ...], pl.DataFrame]:
        """Accuracy at each object size by dataset, scenario and model."""
        return self.sizes.partition_by(*_PANEL, "model", as_dict=True)

    def published_name(self, dataset: str) -> str:
        """Return the name under which the figures of a dataset would be published."""
        return str(self.cells.filter(pl.col("dataset") == dataset)["dataset_name"][0])

    def models(self, wanted: Sequence[str] | None) -> list[str]:
        """Return the models that have runs: those wanted, any that this package lacks.

        A model with options, `name {…}`, is wanted where `name` is.
        """
        present = style_models(sorted(self.cells["model"].unique().to_list()))
        if wanted is None:
            return list(present)
        names = {model: model.partition(" {")[0] for model in present}
        return [m for m, name in names.items() if name in wanted or not is_ours(name)]

    def selection(self, pool: str) -> RunSelection:
        """Return the scale selection of a run with this pool, of emoji mid2rest if there is one."""
        reported = reported_selections(self.runs.selections, self.reported)
        found = [s for s in reported if s.pools[s.last_layer] == pool]
        if not found:
            raise NothingToDrawError(f"no run has a layer with {pool} pooling")
        return min(found, key=lambda s: (s.cell[1] != "emoji", s.cell[2] != "mid2rest", s.cell))

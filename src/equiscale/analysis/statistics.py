"""Intervals, paired comparisons, ranks and correlation, over seeds and over cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from equiscale.core.seeding import numpy_generator

CONFIDENCE = 0.95
RESAMPLES = 2000
Floats = NDArray[np.float64]


Name = TypeVar("Name", bound=tuple[str, ...])
"""What models are ranked by, such as `ModelKey`."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends are None where there are too few values for one."""

    low: float | None
    high: float | None


NO_INTERVAL = Interval(None, None)


def bootstrap_means(values: Floats) -> tuple[Floats, Floats]:
    """`[n, cells] -> [cells], [cells]`: 95 % percentile bootstrap interval of each column's mean.

    All columns share the resamples, which depend on n only: the same values give the same
    interval. With one row there is no interval, and both ends are NaN.
    """
    count = len(values)
    if count < 2:
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing
    means = _bootstrap_draws(count) @ values / count
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


@lru_cache(maxsize=64)
def _bootstrap_draws(count: int) -> Floats:
    """`-> [resamples, count]`: how often each value occurs in each resample."""
    generator = numpy_generator("bootstrap", str(count))
    draws = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return draws.astype(np.float64)


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of a mean; none for fewer than two values.

    Examples:
        >>> bootstrap_interval([0.5, 0.5, 0.5])
        Interval(low=0.5, high=0.5)
    """
    if len(values) < 2:
        return NO_INTERVAL
    low, high = bootstrap_means(np.asarray(values, float)[:, None])
    return Interval(float(low[0]), float(high[0]))


@dataclass(frozen=True)
class PairedComparison:
    """Two models over the same seeds.

    Attributes:
        seeds: Number of seeds that both have.
        missing: Number of seeds that only one of them has; they take no part.
        difference: Mean of first minus second.
        low: Lower end of its bootstrap interval.
        high: Upper end.
        wins: How often the first was better.
        ties: How often both were equal.
        p_value: Wilcoxon's signed-rank test, two-sided; None with fewer than six pairs that
            differ, where it cannot reach 5 %.
    """

    seeds: int
    missing: int
    difference: float | None
    low: float | None
    high: float | None
    wins: int
    ties: int
    p_value: float | None


def compare_paired(first: Mapping[int, float], second: Mapping[int, float]) -> PairedComparison:
    """Compare two models by their results per seed."""
    shared = sorted(first.keys() & second.keys())
    differences = np.array([first[seed] - second[seed] for seed in shared])
    interval = bootstrap_interval(differences.tolist())
    testable = np.count_nonzero(differences) >= 6
    return PairedComparison(
        seeds=len(shared),
        missing=len(first.keys() ^ second.keys()),
        difference=float(differences.mean()) if shared else None,
        low=interval.low,
        high=interval.high,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        p_value=float(stats.wilcoxon(differences).pvalue) if testable else None,
    )


@dataclass(frozen=True)
class Ranking(Generic[Name]):
    """Average ranks over cells (1 is best), and what difference is more than chance.

    Attributes:
        models: Best first.
        ranks: Average rank of each.
        cells: Number of cells that have a result of each of them.
        left_out: Number of cells that have not.
        models_left_out: Models that lack a result in one of the cells.
        critical_difference: Of two average ranks, by Nemenyi's test at 5 %; None with one cell.
        p_value: Friedman's test that all are equal; None with fewer than three models or two cells.
    """

    models: tuple[Name, ...]
    ranks: tuple[float, ...]
    cells: int
    left_out: int
    models_left_out: tuple[Name, ...]
    critical_difference: float | None
    p_value: float | None


def rank_models(scores: Mapping[object, Mapping[Name, float]]) -> Ranking[Name] | None:
    """Rank models over cells by their score, higher is better; ties share their ranks.

    If some models lack cells, the models of one cell are ranked over all cells that have each of
    them. That cell is chosen so that most scores take part; the rest is counted as left out.

    Args:
        scores: Score by cell and model.

    Returns:
        None if no two models have a cell in common.
    """
    models = _most_comparable(scores)
    complete = [[cell[m] for m in models] for cell in scores.values() if cell.keys() >= {*models}]
    if len(models) < 2 or not complete:
        return None
    table = np.array(complete)
    ranks = stats.rankdata(-table, axis=1).mean(axis=0)
    order = np.argsort(ranks, kind="stable")
    testable = len(models) > 2 and len(table) > 1 and bool(np.ptp(table, axis=1).any())
    known = {model for cell in scores.values() for model in cell}
    return Ranking(
        models=tuple(models[i] for i in order),
        ranks=tuple(float(ranks[i]) for i in order),
        cells=len(table),
        left_out=len(scores) - len(table),
        models_left_out=tuple(sorted(known.difference(models))),
        critical_difference=_critical_difference(*table.shape) if len(table) > 1 else None,
        p_value=float(stats.friedmanchisquare(*table.T).pvalue) if testable else None,
    )


def _most_comparable(scores: Mapping[object, Mapping[Name, float]]) -> list[Name]:
    """Return the models of one cell, or those of all cells, whichever has most complete scores."""
    cells = [set(cell) for cell in scores.values()]
    common: set[Name] = set.intersection(*cells) if cells else set()

    def complete_scores(models: set[Name]) -> int:
        return len(models) * sum(cell >= models for cell in cells) if len(models) > 1 else 0

    best: set[Name] = max([*cells, common], key=complete_scores)
    return sorted(best)


def _critical_difference(cells: int, models: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference of average ranks."""
    q = float(stats.studentized_range.ppf(1 - level, models, 1e6)) / math.sqrt(2)
    return q * math.sqrt(models * (models + 1) / (6 * cells))


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of n pairs; None where it is not defined, as for a constant."""

    r: float | None
    interval: Interval
    count: int


def pearson(x: Sequence[float], y: Sequence[float], controls: int = 0) -> Correlation:
    """Return Pearson's r with its 95 % interval by Fisher's transformation.

    Args:
        x: One value per pair.
        y: The other.
        controls: How many quantities besides the common mean were subtracted from the values:
            g - 1 for the means of g groups. Each widens the interval like one pair fewer.

    Examples:
        >>> pearson([1, 2, 3, 4], [2, 4, 6, 8]).r
        1.0
    """
    count = len(x)
    if count < 2:
        return Correlation(None, NO_INTERVAL, count)
    first, second = (np.asarray(values, float) - np.mean(values) for values in (x, y))
    norm = math.sqrt((first**2).sum() * (second**2).sum())
    if norm == 0:
        return Correlation(None, NO_INTERVAL, count)
    r = round(float(first @ second) / norm, 12)
    if count - controls < 4:
        return Correlation(r, NO_INTERVAL, count)
    if abs(r) >= 1:
        return Correlation(r, Interval(r, r), count)
    width = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) / math.sqrt(count - controls - 3)
    centre = math.atanh(r)
    return Correlation(r, Interval(math.tanh(centre - width), math.tanh(centre + width)), count)

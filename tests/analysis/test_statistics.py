from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equiscale.analysis.statistics import (
    bootstrap_interval,
    bootstrap_means,
    compare_paired,
    pearson,
    rank_models,
)

VALUES = np.random.default_rng(0).normal(0.7, 0.1, 25)


def test_the_bootstrap_agrees_with_scipys() -> None:
    ours = bootstrap_interval(VALUES.tolist())
    reference = stats.bootstrap(
        (VALUES,), np.mean, method="percentile", n_resamples=20000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.low == pytest.approx(reference.low, abs=0.003)
    assert ours.high == pytest.approx(reference.high, abs=0.003)


def test_columns_have_the_intervals_they_have_alone() -> None:
    low, high = bootstrap_means(np.stack([VALUES, VALUES**2], axis=1))
    for column, values in enumerate((VALUES, VALUES**2)):
        alone = bootstrap_interval(values.tolist())
        assert (low[column], high[column]) == pytest.approx((alone.low, alone.high))


def test_one_seed_has_no_interval() -> None:
    assert bootstrap_interval([0.5]).low is None


def test_a_paired_comparison_uses_shared_seeds_only() -> None:
    first = {seed: 0.8 + 0.01 * seed for seed in range(1, 11)}
    second = {seed: 0.7 + 0.01 * seed + 0.001 * (seed % 3) for seed in range(3, 14)}
    paired = compare_paired(first, second)
    assert (paired.seeds, paired.missing) == (8, 5)
    differences = [first[seed] - second[seed] for seed in range(3, 11)]
    assert paired.difference == pytest.approx(np.mean(differences))
    assert paired.wins == 8
    assert paired.p_value == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_few_or_equal_seeds_have_no_p_value() -> None:
    same = dict.fromkeys(range(20), 0.5)
    assert compare_paired(same, same).p_value is None
    assert compare_paired({1: 0.5}, {2: 0.5}).difference is None


A, B, C, D = MODELS = [(name,) for name in "abcd"]


def test_ranks_and_critical_difference_match_demsars_example() -> None:
    # k = 4 classifiers, N = 14 data sets: CD 1.25 (Demšar 2006, with q = 2.569).
    generator = np.random.default_rng(2)
    scores: dict[object, dict[tuple[str], float]] = {
        i: dict(zip(MODELS, generator.random(4), strict=True)) for i in range(14)
    }
    ranking = rank_models({**scores, 99: {A: 1.0}})
    assert ranking is not None
    assert ranking.critical_difference == pytest.approx(2.569 * math.sqrt(20 / 84), abs=2e-3)
    assert (ranking.cells, ranking.left_out) == (14, 1)
    table = np.array([[scores[i][m] for m in ranking.models] for i in range(14)])
    by_hand = [np.mean([1 + (row > row[j]).sum() for row in table]) for j in range(4)]
    assert ranking.ranks == pytest.approx(by_hand)
    assert ranking.p_value == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)


def test_a_model_that_lacks_cells_does_not_keep_the_others_from_being_ranked() -> None:
    both = {A: 0.2, B: 0.1}
    ranking = rank_models({1: both, 2: both, 3: {**both, C: 0.9}, 4: {C: 0.9, D: 0.8}})
    assert ranking is not None
    assert ranking.models == (A, B)
    assert (ranking.cells, ranking.left_out) == (3, 1)
    assert ranking.models_left_out == (C, D)
    assert rank_models({1: {A: 0.5}, 2: {B: 0.5}}) is None


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=5, max_size=30))
def test_pearson_agrees_with_scipy(pairs: list[tuple[float, float]]) -> None:
    x, y = (list(values) for values in zip(*pairs, strict=True))
    ours = pearson(x, y)
    if ours.r is None or np.ptp(x) < 1e-3 or np.ptp(y) < 1e-3 or abs(ours.r) > 0.999:
        return
    reference = stats.pearsonr(x, y)
    assert ours.r == pytest.approx(reference.statistic, abs=1e-6)
    low, high = reference.confidence_interval()
    assert (ours.interval.low, ours.interval.high) == pytest.approx((low, high), abs=1e-5)


def test_means_that_were_taken_off_widen_the_interval() -> None:
    x, y = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, 2.0, 1.0, 3.0, 5.0, 4.0, 6.0]
    plain, fewer = pearson(x, y), pearson(x, y, controls=2)
    assert plain.r == fewer.r
    widths = [math.atanh(c.interval.high) - math.atanh(c.r) for c in (plain, fewer)]  # type: ignore[arg-type]
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(4 / 2))
    assert pearson(x, y, controls=4).interval.low is None


def test_a_constant_has_no_correlation() -> None:
    assert pearson([1, 2, 3], [5, 5, 5]).r is None
    assert pearson(range(4), [4, 3, 2, 1]).r == -1

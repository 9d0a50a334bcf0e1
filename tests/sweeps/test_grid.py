from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equiscale.core.errors import OptionError
from equiscale.core.spec import Scenario
from equiscale.sweeps.grid import (
    DatasetChoice,
    ModelChoice,
    Sweep,
    cell_name,
    choose_learning_rate,
    plan_runs,
)

EMOJI = DatasetChoice("emoji", "emoji", "aa", 36)
SWEEP = Sweep(
    models=(ModelChoice("standard"), ModelChoice("xu", {"columns": 3})),
    datasets=(EMOJI,),
    scenarios=(Scenario.MID_TO_REST, Scenario.ALL_TO_ALL),
    seeds=tuple(range(1, 8)),
)
PAPER = replace(SWEEP, select_learning_rate=True)


def test_a_plain_sweep_is_the_grid_with_early_seeds_first() -> None:
    plan = plan_runs(replace(SWEEP, learning_rates=(1e-2, 1e-3)), {})
    assert len(plan.keys) == len({key.run_id for key in plan.keys}) == 2 * 2 * 7 * 2
    assert [key.seed for key in plan.keys] == sorted(key.seed for key in plan.keys)
    assert plan.undecided == ()


def test_only_the_trials_are_known_at_first() -> None:
    plan = plan_runs(PAPER, {})
    assert len(plan.keys) == 4 * 5 * 2
    assert {key.seed for key in plan.keys} == {1, 2, 3, 4, 5}
    assert {key.learning_rate for key in plan.keys} == {1e-2, 1e-3}
    assert len(plan.undecided) == 4 * 2
    assert plan.chosen == {}


def accuracies(better: float) -> dict[str, float]:
    return {
        key.run_id: 0.5 + 0.1 * (key.learning_rate == better) for key in plan_runs(PAPER, {}).keys
    }


def test_the_rest_follows_the_better_rate() -> None:
    plan = plan_runs(PAPER, accuracies(1e-2))
    late = [key for key in plan.keys if key.seed > 5]
    assert len(late) == 4 * 2
    assert {key.learning_rate for key in late} == {1e-2}
    assert set(plan.chosen.values()) == {1e-2}
    assert set(plan.chosen) == {cell_name(key) for key in plan.keys}


def test_a_cell_with_a_missing_trial_waits_alone() -> None:
    known = accuracies(1e-3)
    lacking = plan_runs(PAPER, {}).keys[0]
    del known[lacking.run_id]
    plan = plan_runs(PAPER, known)
    assert {key.seed for key in plan.undecided} == {6, 7}
    assert cell_name(lacking) not in plan.chosen
    assert len(plan.chosen) == 3


@given(
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_choice_by_median_with_ties_to_the_smaller(low: list[float], high: list[float]) -> None:
    chosen = choose_learning_rate({1e-3: low, 1e-2: high})
    assert chosen == (1e-2 if sorted(high)[2] > sorted(low)[2] else 1e-3)
    assert chosen == choose_learning_rate({1e-2: high, 1e-3: low})


def test_an_empty_sweep_is_an_error() -> None:
    with pytest.raises(OptionError, match="at least one of its scenarios"):
        replace(SWEEP, scenarios=())


def test_a_cell_may_have_its_own_rate() -> None:
    first = next(SWEEP.cells())
    own = {(first.dataset, first.scenario.value, first.model): 0.5}
    plan = plan_runs(replace(SWEEP, cell_rates=own), {})
    rates = {(key.dataset, key.scenario.value, key.model): key.learning_rate for key in plan.keys}
    assert rates.pop(next(iter(own))) == 0.5
    assert set(rates.values()) == set(SWEEP.learning_rates)

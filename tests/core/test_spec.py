from __future__ import annotations

import copy
import pickle

import pytest

from equiscale.core.errors import OptionError
from equiscale.core.spec import OBJECT_SIZES, Layout, Scenario, Split, thirds

PHOTO_SIZES = (224, 160, 112, 80, 56, 40, 28)


def test_sizes_of_the_four_published_scenarios() -> None:
    assert Scenario("mid2rest").train_sizes() == tuple(range(33, 49))
    assert Scenario("mid2rest").test_sizes() == (*range(17, 33), *range(49, 65))
    assert Scenario("small2large").test_sizes() == tuple(range(33, 65))
    assert Scenario("large2small").test_sizes() == tuple(range(17, 49))
    assert Scenario("all2all").test_sizes() == tuple(sorted(OBJECT_SIZES))


@pytest.mark.parametrize("count", range(3, 30))
def test_thirds_partition_any_sizes_evenly(count: int) -> None:
    parts = thirds(range(1, count + 1))
    assert [size for part in parts for size in part] == list(range(1, count + 1))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_scenarios_follow_the_sizes_of_the_dataset() -> None:
    assert Scenario.MID_TO_REST.train_sizes(PHOTO_SIZES) == (56, 80, 112)
    assert Scenario.LARGE_TO_SMALL.sizes("test", PHOTO_SIZES) == (28, 40, 56, 80, 112)
    assert Scenario.ALL_TO_ALL.sizes(Split.VALID, PHOTO_SIZES) == PHOTO_SIZES[::-1]


def test_a_scenario_may_name_its_sizes() -> None:
    one = Scenario("train@56")
    assert (one.value, one.train_sizes(PHOTO_SIZES)) == ("train@56", (56,))
    assert one.test_sizes(PHOTO_SIZES) == (28, 40, 80, 112, 160, 224)
    several = Scenario("train@28+80-160")
    assert several.train_sizes(PHOTO_SIZES) == (28, 80, 112, 160)
    assert Scenario("train@17-32").train_sizes() == Scenario.SMALL_TO_LARGE.train_sizes()


def test_a_named_scenario_is_one_object_and_not_a_member() -> None:
    one = Scenario("train@56")
    assert Scenario("train@56") is one
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one
    assert len(Scenario) == 4
    assert one not in list(Scenario)


@pytest.mark.parametrize("name", ["train@", "train@0", "train@56+28", "train@5-5", "mid2res", 3])
def test_unknown_scenarios_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"unknown scenario.*train@28"):
        Scenario.named(name)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("train@50", PHOTO_SIZES), ("train@28-224", PHOTO_SIZES), ("mid2rest", (28, 56))],
)
def test_a_scenario_must_divide_the_sizes(name: str, sizes: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="cannot divide the object sizes 28, "):
        Scenario(name).train_sizes(sizes)


def test_layouts_are_checked() -> None:
    assert Layout.of(224, [28, 224, 56]).sizes == (224, 56, 28)
    assert Layout(112, (224, 28)).canvas == 112  # a larger object is shown in part
    for canvas, sizes in ((0, (1,)), (64, ()), (64, (0,)), (64, (3, 5, 4)), (64, (5, 5))):
        with pytest.raises(OptionError):
            Layout(canvas, sizes)
    with pytest.raises(OptionError, match="do not fit on a canvas of 64"):
        Layout.of(sizes=[65])

from __future__ import annotations

import pytest

from equiscale.core.errors import OptionError
from equiscale.core.spec import OBJECT_SIZES, Scenario, Split


def test_sizes_of_every_scenario() -> None:
    assert Scenario("mid2rest").train_sizes == tuple(range(33, 49))
    assert Scenario("mid2rest").test_sizes == (*range(17, 33), *range(49, 65))
    assert Scenario("small2large").test_sizes == tuple(range(33, 65))
    assert Scenario("large2small").test_sizes == tuple(range(17, 49))
    assert Scenario("all2all").test_sizes == tuple(sorted(OBJECT_SIZES))


@pytest.mark.parametrize("scenario", Scenario)
def test_a_split_may_be_named_by_its_text(scenario: Scenario) -> None:
    for split in Split:
        assert scenario.sizes(split.value) == scenario.sizes(split)
    assert scenario.sizes("test") == scenario.test_sizes
    with pytest.raises(OptionError, match="did you mean 'test'"):
        scenario.sizes("tests")

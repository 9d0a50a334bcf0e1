from __future__ import annotations

import pytest

from equiscale.core.errors import DuplicateNameError, UnknownNameError
from equiscale.core.registry import Registry


@pytest.fixture
def fruits() -> Registry[int]:
    registry: Registry[int] = Registry("fruit")
    registry.add("apple", 1)
    registry.add("pear", 2)
    return registry


def test_entries_come_back_in_order(fruits: Registry[int]) -> None:
    assert list(fruits) == ["apple", "pear"]
    assert fruits["pear"] == 2
    assert "apple" in fruits
    assert len(fruits) == 2


def test_unknown_name_lists_near_matches(fruits: Registry[int]) -> None:
    with pytest.raises(UnknownNameError, match=r"fruit 'aple'; did you mean 'apple'\?"):
        fruits["aple"]


def test_duplicate_name_raises_and_keeps_the_first(fruits: Registry[int]) -> None:
    with pytest.raises(DuplicateNameError, match="already registered"):
        fruits.add("apple", 3)
    assert fruits["apple"] == 1

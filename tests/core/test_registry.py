from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from equiscale.core.errors import (
    DuplicateNameError,
    MissingExtraError,
    OptionError,
    UnknownNameError,
)
from equiscale.core.registry import Registry


@pytest.fixture
def fruits() -> Registry[int]:
    registry: Registry[int] = Registry("fruit")
    registry.add("apple", 1)
    registry.add("pear", 2)
    return registry


def test_unknown_name_lists_near_matches(fruits: Registry[int]) -> None:
    with pytest.raises(UnknownNameError, match=r"fruit 'aple'; did you mean 'apple'\?"):
        fruits["aple"]


def test_duplicate_name_raises_and_keeps_the_first(fruits: Registry[int]) -> None:
    with pytest.raises(DuplicateNameError, match="already registered"):
        fruits.add("apple", 3)
    assert fruits["apple"] == 1


@pytest.mark.parametrize("name", ["a/b", "my apple", "", None])
def test_names_are_plain_words(fruits: Registry[int], name: str) -> None:
    with pytest.raises(OptionError, match="plain word such as 'my_fruit'"):
        fruits.register(name)(3)


def test_an_entry_may_need_a_package(fruits: Registry[int]) -> None:
    fruits.register("fig", requires=("no_such_package", "figs"))(3)
    assert "fig" in fruits
    with pytest.raises(MissingExtraError, match=r"'no_such_package'.*equiscale\[figs\]"):
        fruits["fig"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fruits: Registry[int]) -> Iterator[Path]:
    """A directory of installed packages, which import the registry from the module `orchard`."""
    orchard = ModuleType("orchard")
    orchard.fruits = fruits  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "orchard", orchard)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - before:
        del sys.modules[module]


def install(site: Path, package: str, source: str) -> None:
    """Put a package with an entry point on disk, as an installer does."""
    (site / f"{package}.py").write_text(source)
    information = site / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[equiscale.fruits]\nany = {package}\n")


def test_other_packages_are_imported_when_an_entry_is_missing(
    site: Path, fruits: Registry[int]
) -> None:
    install(site, "good_plugin", "from orchard import fruits\nfruits.add('plum', 3)\n")
    assert fruits["apple"] == 1
    assert "good_plugin" not in sys.modules
    assert fruits["plum"] == 3
    assert list(fruits) == ["apple", "pear", "plum"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import a_package_that_is_missing", "ModuleNotFoundError"),
        ("from orchard import fruits\nfruits.add('pear', 3)", "'pear' is already registered"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_broken_package_gives_one_warning(
    site: Path, fruits: Registry[int], source: str, message: str
) -> None:
    install(site, "bad_plugin", source)
    with pytest.warns(RuntimeWarning, match=f"package 'bad_plugin' are not .*{message}") as found:
        assert "plum" not in fruits
    assert len(found) == 1
    assert list(fruits) == ["apple", "pear"]

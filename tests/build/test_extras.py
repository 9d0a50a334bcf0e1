from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from equiscale.build.extras import SystemLibraryError, import_cairosvg
from equiscale.core.errors import MissingExtraError


def fail_with(error: Exception) -> object:
    def fail(name: str) -> None:
        raise error

    return fail


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'equiscale\[build\]'"):
        import_cairosvg()


def test_missing_system_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", fail_with(OSError("no library libcairo")))
    with pytest.raises(SystemLibraryError, match="apt-get install libcairo2"):
        import_cairosvg()

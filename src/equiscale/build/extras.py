"""The libraries of the extra `build`, imported when a builder first needs them."""

from __future__ import annotations

import importlib
from typing import Any

from equiscale.core.errors import EquiscaleError, MissingExtraError


class SystemLibraryError(EquiscaleError, ImportError):
    """A library of the operating system is not installed."""


def import_extra(module: str, package: str, extra: str = "build") -> Any:  # noqa: ANN401 - the module asked for
    """Import a module of a package that an extra installs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(package, extra) from None


def import_cairosvg() -> Any:  # noqa: ANN401 - an untyped package
    """Import CairoSVG, which also needs the Cairo library of the system."""
    try:
        return import_extra("cairosvg", "cairosvg")
    except OSError as error:
        raise SystemLibraryError(
            "the Cairo library was not found: install it (Debian, Ubuntu: apt-get install "
            "libcairo2, macOS: brew install cairo); the emoji dataset comes with the package and "
            "need not be built"
        ) from error

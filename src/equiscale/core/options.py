"""Checks of options that several rooms share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from numbers import Real

from equiscale.core.errors import OptionError

LARGEST_NUMBER = sys.float_info.max
"""Python's integers have no end: `math.isfinite(10**400)` raises `OverflowError`."""


def check_positive(**sizes: int) -> None:
    """Raise `OptionError` unless every argument is an integer of at least 1."""
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"{name} must be an integer of at least 1, got {value!r}")


def check_positive_numbers(**values: object) -> None:
    """Raise `OptionError` unless every argument is a finite number above 0."""
    for name, value in values.items():
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not known or not 0 < value <= LARGEST_NUMBER:  # type: ignore[operator]
            raise OptionError(f"{name} must be a number above 0, got {value!r}")


def check_numbers(name: str, values: object) -> None:
    """Raise `OptionError` unless the option is a list, tuple or range of finite numbers, not empty.

    Examples:
        >>> check_numbers("scales", (1.0, 2.0))
    """
    used_up = isinstance(values, Iterator)  # a generator would be empty behind this check
    numbers = list(values) if isinstance(values, Iterable) and not used_up else []
    finite = (isinstance(n, Real) and abs(n) <= LARGEST_NUMBER for n in numbers)  # type: ignore[operator]
    if not numbers or not all(finite):
        raise OptionError(f"{name} must be a list of numbers, got {values!r}")

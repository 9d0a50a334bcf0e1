"""One small generic registry: duplicates raise, unknown names list the near matches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

from equiscale.core.errors import DuplicateNameError, OptionError, UnknownNameError

T = TypeVar("T")


def unknown_name_message(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that `name` is no `kind`, with the near matches first and then all that exist.

    Examples:
        >>> unknown_name_message("model", "standart", ["standard", "xu"])
        "unknown model 'standart'; did you mean 'standard'? Known: standard, xu"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names) or 'none'}"


def check_name(kind: str, name: object, known: Iterable[str]) -> None:
    """Raise `OptionError` with `unknown_name_message` unless the name is known."""
    names = list(known)
    if name not in names:
        raise OptionError(unknown_name_message(kind, name, names))


class Registry(dict[str, T]):
    """Entries of one kind by name, in the order in which they were added.

    Args:
        kind: What an entry is, for messages.
        hint: Said of a name that is not known.

    Examples:
        >>> colours: Registry[int] = Registry("colour")
        >>> colours.add("red", 0xFF0000)
        >>> colours["red"] == 0xFF0000
        True
    """

    def __init__(self, kind: str, hint: str = "") -> None:
        super().__init__()
        self.kind = kind
        self._hint = f"; {hint}" if hint else ""

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name that exists raises `DuplicateNameError`."""
        if name in self:
            raise DuplicateNameError(
                f"{self.kind} {name!r} is already registered; choose another name"
            )
        self[name] = entry

    def __missing__(self, name: str) -> T:
        raise UnknownNameError(f"{unknown_name_message(self.kind, name, self)}{self._hint}")

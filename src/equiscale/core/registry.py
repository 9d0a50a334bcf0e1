"""One small generic registry: duplicates raise, unknown names list the near matches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from equiscale.core.errors import DuplicateNameError, UnknownNameError

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


class Registry(Generic[T]):
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
        self.kind = kind
        self._hint = f"; {hint}" if hint else ""
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name that exists raises `DuplicateNameError`."""
        if name in self._entries:
            raise DuplicateNameError(
                f"{self.kind} {name!r} is already registered; choose another name"
            )
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            message = unknown_name_message(self.kind, name, self._entries)
            raise UnknownNameError(f"{message}{self._hint}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

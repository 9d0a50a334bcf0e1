"""One registry for models, datasets, measurements, launchers and trackers."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from equiscale.core.errors import (
    DuplicateNameError,
    MissingExtraError,
    OptionError,
    UnknownNameError,
)

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


class Registry(Generic[T]):
    """Entries of one kind by name, in the order in which they were added.

    An entry is added by a decorator in its own file. A lookup that needs more than the files
    imported so far imports the others: those of this package, by their names, and the modules that
    other packages name in the entry-point group `equiscale.<kind>s`. `home` is how the full names
    of this package's modules with entries begin, `hint` is advice for an unknown name.

    Examples:
        >>> colours: Registry[int] = Registry("colour")
        >>> colours.add("red", 0xFF0000)
        >>> colours["red"] == 0xFF0000
        True
    """

    def __init__(self, kind: str, home: str = "", hint: str = "") -> None:
        self.kind = kind
        self._home = home
        self._hint = f"; {hint}" if hint else ""
        self._entries: dict[str, T] = {}
        self._required: dict[str, tuple[str, str]] = {}
        self._loaded = False

    def add(self, name: str, entry: T) -> None:
        """Add an entry; a name that exists raises `DuplicateNameError`."""
        if not isinstance(name, str) or not name.isidentifier():
            raise OptionError(
                f"a {self.kind}'s name must be a plain word such as 'my_{self.kind}', got {name!r}"
            )
        if name in self._entries:
            raise DuplicateNameError(
                f"{self.kind} {name!r} is already registered; choose another name"
            )
        self._entries[name] = entry

    def register(self, name: str, *, requires: tuple[str, str] | None = None) -> Callable[[T], T]:
        """Return a decorator that adds an entry; `requires` is a package and the extra with it."""

        def add(entry: T) -> T:
            self.add(name, entry)
            if requires is not None:
                self._required[name] = requires
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self:
            message = unknown_name_message(self.kind, name, self._entries)
            raise UnknownNameError(f"{message}{self._hint}")
        package, extra = self._required.get(name, ("", ""))
        if package and importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        """Import all modules that register entries, once."""
        if self._loaded:
            return
        self._loaded = True
        if self._home:
            self._import_home()
        for entry in entry_points(group=f"equiscale.{self.kind}s"):
            try:
                entry.load()
            except (Exception, SystemExit) as error:  # a plugin must not break the package
                package = entry.dist.name if entry.dist is not None else entry.value
                warnings.warn(
                    f"the {self.kind}s of the package {package!r} are not available: loading its "
                    f"entry point {entry.name!r} ({entry.value}) raised "
                    f"{type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _import_home(self) -> None:
        package, _, prefix = self._home.rpartition(".")
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if module.name.startswith(prefix):
                importlib.import_module(f"{package}.{module.name}")

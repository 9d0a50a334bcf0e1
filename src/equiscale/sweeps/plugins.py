"""Launchers and trackers: each is one file with one decorator, imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from equiscale.core.errors import MissingExtraError, OptionError
from equiscale.core.registry import unknown_name_message

T = TypeVar("T")


class Plugins(Generic[T]):
    """Classes of one kind by name.

    A name is known if there is a module `equiscale.sweeps.<prefix>_<name>`, or an entry point of
    that name in the group `equiscale.<kind>s` that names a module. Importing the module must
    register the class.

    Args:
        kind: What a class is, for messages and the name of the group.
        prefix: How the names of our own modules start.
    """

    def __init__(self, kind: str, prefix: str) -> None:
        self.kind, self.prefix = kind, prefix
        self._found: dict[str, tuple[type[T], tuple[str, str] | None]] = {}

    def register(
        self, name: str, *, requires: tuple[str, str] | None = None
    ) -> Callable[[type[T]], type[T]]:
        """Return a decorator that adds a class.

        Args:
            name: Its name on the command line.
            requires: Package that it imports, and the extra of equiscale that installs it.
        """

        def add(found: type[T]) -> type[T]:
            self._found[name] = (found, requires)
            return found

        return add

    def names(self) -> list[str]:
        """Return the names of all that can be found, without importing them."""
        return sorted({*self._modules(), *self._found})

    def find(self, name: str) -> type[T]:
        """Return the class of this name.

        Raises:
            OptionError: There is none.
            MissingExtraError: The package that it requires is not installed.
        """
        modules = self._modules()
        if name not in self._found and name in modules:
            importlib.import_module(modules[name])
        if name not in self._found:
            raise OptionError(unknown_name_message(self.kind, name, self.names()))
        found, requires = self._found[name]
        if requires is not None and importlib.util.find_spec(requires[0]) is None:
            raise MissingExtraError(*requires)
        return found

    def _modules(self) -> dict[str, str]:
        package: Any = importlib.import_module(__package__)
        start = f"{self.prefix}_"
        ours = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith(start)]
        others = entry_points(group=f"equiscale.{self.kind}s")
        return {entry.name: entry.value for entry in others} | {
            name.removeprefix(start): f"{__package__}.{name}" for name in ours
        }

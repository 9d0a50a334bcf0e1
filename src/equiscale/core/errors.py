"""The errors a user can meet. Each message says what was given, what is possible and what to do."""

from __future__ import annotations


class EquiscaleError(Exception):
    """Base of every error that equiscale raises on purpose."""


class ShapeError(EquiscaleError, ValueError):
    """A tensor or array has the wrong rank, size or number of channels."""


class OptionError(EquiscaleError, ValueError):
    """An argument has a value, or stands in a combination, that is not possible."""


class UnknownNameError(EquiscaleError, LookupError):
    """No entry of a registry has this name."""


class DuplicateNameError(EquiscaleError, ValueError):
    """A registry already holds an entry of this name."""


class MissingExtraError(EquiscaleError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed: "
            f"pip install 'equiscale[{extra}]'"
        )


class FileContentError(EquiscaleError, ValueError):
    """A file is missing, is not what it should be, or holds something else than expected."""

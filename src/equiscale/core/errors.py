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


class InputFileError(EquiscaleError, ValueError):
    """A file or directory from outside is not what it has to be.

    Attributes:
        path: What was read.
        found: What it holds.
        expected: What it has to hold.
    """

    def __init__(self, path: object, found: str, expected: str, advice: str = "") -> None:
        self.path = path
        self.found = found
        self.expected = expected
        self.advice = advice
        super().__init__(f"{path}: found {found}, expected {expected}" + (advice and f"; {advice}"))

    def __reduce__(self) -> tuple[type[InputFileError], tuple[object, str, str, str]]:
        return type(self), (self.path, self.found, self.expected, self.advice)


class DatasetFormatError(InputFileError):
    """A dataset file breaks the STIR format."""


class StorageError(EquiscaleError, OSError):
    """A file cannot be written or read: no space, no permission, no such directory."""

    @classmethod
    def from_os_error(cls, doing: str, path: object, error: OSError) -> StorageError:
        """Say what failed (`"write"`, `"read"`) and why; the cause's number and text are kept."""
        found = cls(f"cannot {doing} {path}: {error.strerror or error}")
        found.errno, found.strerror = error.errno, error.strerror
        return found

    def __str__(self) -> str:
        return str(self.args[0])


class DatasetNotFoundError(EquiscaleError, FileNotFoundError):
    """A dataset is not on this machine; the message says how to get it."""


class DownloadError(EquiscaleError, OSError):
    """A published file cannot be fetched, or is not the published one."""


class SourceError(InputFileError):
    """A source of a build is missing, damaged or not the expected one."""


class TooFewInstancesError(SourceError):
    """A class has fewer objects than a dataset needs."""

"""The errors of records and of the store that keeps them."""

from __future__ import annotations

from pathlib import Path

from equiscale.core.errors import EquiscaleError


class RunsError(EquiscaleError):
    """The runs directory cannot be read or written."""

    @classmethod
    def missing(cls, path: Path) -> RunsError:
        """Say that there is no such directory, and how to make one."""
        return cls(
            f"there is no runs directory {str(path)!r}: give it with --runs, or make one "
            "with `equiscale train` or `equiscale sweep`"
        )

    @classmethod
    def from_os_error(cls, path: Path, error: OSError) -> RunsError:
        """Say which directory failed, why, and that finished records are intact."""
        reason = "it is a file" if path.is_file() else error.strerror or error
        return cls(
            f"cannot use the runs directory {str(path)!r}: {reason}. "
            "Finished records are intact; make it writable or free some space and start again"
        )


class RecordError(EquiscaleError):
    """A record cannot be used."""


class CorruptRecordError(RecordError):
    """A record's bytes are not those that were written."""


class NewerRecordError(RecordError):
    """A record is intact, but a newer version of equiscale wrote it."""

    @classmethod
    def for_record(cls, source: str, reason: object) -> NewerRecordError:
        """Say which record cannot be read, why, and what to do."""
        return cls(
            f"{source} was written by a newer version of equiscale ({reason}); "
            "pip install --upgrade equiscale"
        )

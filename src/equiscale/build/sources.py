"""What all sources have in common: directories that must exist, zip archives, their members."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from equiscale.build.photos import Photo
from equiscale.core.errors import SourceError, StorageError


def checked_directory(path: Path) -> Path:
    """Return a directory that exists, or say that it does not."""
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise SourceError(path, found, "a directory")
    return path


def find_files(directory: Path, pattern: str, expected: str) -> list[Path]:
    """Return the files below a directory that match a pattern, sorted; there must be one."""
    found = sorted(path for path in checked_directory(directory).rglob(pattern) if path.is_file())
    if not found:
        raise SourceError(directory, f"no {pattern}", expected)
    return found


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip archive for reading."""
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise SourceError(path, f"a damaged archive ({error})", "a zip file") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def list_members(path: Path) -> list[str]:
    """Return the names of an archive's members."""
    with open_archive(path) as archive:
        return archive.namelist()


def index_members(archives: Iterable[Path], suffix: str) -> dict[str, Photo]:
    """Return the members of archives that end so, by their stem, without reading them."""
    return {
        PurePosixPath(member).stem: Photo(path, member)
        for path in archives
        for member in list_members(path)
        if member.endswith(suffix)
    }


def read_text(path: Path | Photo) -> str:
    """Return the content of a text file, or of a text in an archive."""
    place = path if isinstance(path, Photo) else Photo(path)
    try:
        with place.open() as file:
            return file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(path, f"no text ({error.reason})", "UTF-8") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(path, f"a damaged text ({error})", "one that can be unpacked") from error
    except OSError as error:
        raise SourceError(path, f"nothing readable ({error.strerror})", "a text file") from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(path, f"broken JSON ({error})", "a JSON file") from error

"""Canonical JSON, content hashes, atomic writes, the cache directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from equiscale.core.errors import EquiscaleError, StorageError

CACHE_VARIABLE = "EQUISCALE_DATA"
_CHUNK = 1 << 20
_PAUSES = (0.01, 0.05, 0.2, 0.5) if os.name == "nt" else ()


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN.

    Examples:
        >>> canonical_json({"b": 1, "a": [1.0, None]})
        '{"a":[1.0,null],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def content_hash(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """Return the hash of a file's bytes, in hexadecimal."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under `path` complete or not at all.

    The bytes go to a temporary file beside it, reach the disk, and are then renamed into place.
    If the block raises, `path` is as it was. `StorageError` says why it cannot be written.
    """
    try:
        with _replacing(path) as file:
            yield file
    except OSError as error:
        if isinstance(error, EquiscaleError):
            raise
        raise StorageError.from_os_error("write", path, error) from error


def check_writable(path: Path) -> None:
    """Raise `StorageError` now if a file could not be written later; its directory is made."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        probe = path.with_name(f".{path.name}.write-test")
        with _replacing(probe):
            pass
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError.from_os_error("write", path, error) from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        replace_file(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_temporaries(path: Path) -> None:
    """Remove what killed writers of a file left beside it; nobody may be writing it now."""
    for left in path.parent.glob(f"*.{path.name}.*.tmp"):
        left.unlink(missing_ok=True)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file over another; on Windows, first wait a little for readers to close it."""
    for pause in _PAUSES:
        with contextlib.suppress(PermissionError):
            source.replace(target)
            return
        time.sleep(pause)
    source.replace(target)


def write_json(path: Path, value: object) -> None:
    """Write a value atomically as indented JSON that a person can read."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the content of a JSON file; `ValueError` if it is not JSON, or nested too deeply."""
    return parse_json(path.read_bytes())


def parse_json(data: bytes) -> Any:  # noqa: ANN401
    """Return the value of a JSON text; `ValueError` if it is not JSON, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def cache_directory() -> Path:
    """Return where datasets are kept: `$EQUISCALE_DATA`, or the platform's cache directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("equiscale"))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def sync_directory(path: Path) -> None:
    """Make a rename durable, where the platform lets a directory be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

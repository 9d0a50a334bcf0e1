"""Read MNIST's idx files, gzipped or not, and check that they are the real ones."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equiscale.build.sources import checked_directory
from equiscale.core.errors import SourceError, StorageError
from equiscale.data.schema import Images

MAX_BYTES = 64 << 20
_UNSIGNED_BYTES = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


class IdxFormatError(SourceError):
    """A file is not in the idx format, or its header and its length disagree."""


class ChecksumError(SourceError):
    """A file is not the one that the recipe names."""


@dataclass(frozen=True)
class IdxImages:
    """Images [N, 28, 28] with their labels [N]."""

    images: Images
    labels: Images


def read_pair(directory: Path, part: str, checksums: Mapping[str, str]) -> IdxImages:
    """Read the images and labels of a part ("train" or "t10k").

    Args:
        directory: Holds `PART-images-idx3-ubyte` and `PART-labels-idx1-ubyte`, `.gz` or not.
        part: First word of the file names.
        checksums: MD5 of the uncompressed bytes by file name.
    """
    pair = []
    for name, axes in ((f"{part}-images-idx3-ubyte", 3), (f"{part}-labels-idx1-ubyte", 1)):
        path = _find(directory, name)
        content = read_bytes(path)
        _check_md5(path, content, checksums[name])
        pair.append(parse_idx(content, axes, path))
    return IdxImages(*pair)


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return a file's bytes, unzipped if it is gzipped."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            content = (gzip.GzipFile(fileobj=file) if zipped else file).read(max_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise IdxFormatError(path, f"damaged gzip data ({error})", "a complete file") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > max_bytes:
        raise IdxFormatError(path, f"more than {max_bytes} bytes", "an idx file of MNIST's size")
    return content


def parse_idx(content: bytes, axes: int, path: Path) -> Images:
    """Return the array of an idx file of unsigned bytes with so many axes."""
    magic = bytes([0, 0, _UNSIGNED_BYTES, axes])
    if content[:4] != magic:
        raise IdxFormatError(path, f"the magic number {content[:4].hex()}", magic.hex())
    start = 4 + 4 * axes
    if len(content) < start:
        raise IdxFormatError(path, f"{len(content)} bytes", f"a header of {start} bytes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise IdxFormatError(
            path, f"{len(content) - start} bytes of data", f"{shape}, by its header"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _find(directory: Path, name: str) -> Path:
    for candidate in (checked_directory(directory) / name, directory / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise SourceError(directory, f"neither {name} nor {name}.gz", "the four idx files")


def _check_md5(path: Path, content: bytes, expected: str) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ChecksumError(path, f"the MD5 {found}", f"{expected} (of the uncompressed bytes)")

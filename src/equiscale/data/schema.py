"""The file format of all datasets: read, validate, write.

A dataset is an npz file without pickled objects, exactly as published. With s object sizes, n
classes, m instances per class and a canvas of c pixels; the splits are train, valid, test:

| key        | shape                                  | dtype   | meaning                  |
| ---------- | -------------------------------------- | ------- | ------------------------ |
| `imgs`     | (3, s, n, m, c, c), colour (…, c, c, 3) | uint8   | the images               |
| `lbls`     | (3, s, n, m)                           | integer | class index              |
| `scls`     | (3, s, n, m)                           | integer | object size              |
| `psts`     | (3, s, n, m, 2)                        | integer | box's distance left, top |
| `metadata` | (6, 2)                                 | text    | name and value           |
| `lbldata`  | (n,)                                   | text    | class names              |

Canvas and object sizes are properties of a file; the published ones have 64 pixels and the sizes
64 down to 17. The object size is the longer side of an object's box. Published aerial boxes are
not square, and objects may be larger than the canvas: the square of that size at `psts` can reach
beyond the canvas, so only `psts` itself is checked.

Images of more than `STORED_BYTES` are not compressed, so that they can be mapped into memory.
"""

from __future__ import annotations

import hashlib
import lzma
import math
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from equiscale.core.errors import DatasetFormatError, OptionError, StorageError
from equiscale.core.files import atomic_write, canonical_json
from equiscale.core.spec import STIR_LAYOUT, Layout, Split
from equiscale.data.catalog import SUFFIX

METADATA_KEYS = ("title", "description", "author", "license", "version", "date")
KEYS = ("imgs", "lbls", "scls", "psts", "metadata", "lbldata")
MAX_BYTES = 8 << 30
"""Largest size that is unpacked: ten times the largest published file."""

STORED_BYTES = 1 << 30
"""Images of more bytes are stored uncompressed; published files have fewer."""

_MAX_TEXT_BYTES = 16 << 20
_CHUNK = 1 << 20
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,  # a place outside the file
    LookupError,
    ValueError,
    OverflowError,
    RuntimeError,  # an encrypted member
    NotImplementedError,  # an unknown compression
)

Images = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StirArrays:
    """The contents of one dataset file, validated at construction.

    Attributes:
        images: uint8 [3, s, n, m, c, c] or [3, s, n, m, c, c, 3]; mapped if stored uncompressed.
        labels: int64 [3, s, n, m].
        object_sizes: int64 [3, s, n, m].
        positions: int64 [3, s, n, m, 2], the box's distance from the left and the top edge.
        class_names: One name per class.
        metadata: Title, description, author, license, version and date.
        path: The file they came from, for messages.
    """

    images: Images
    labels: Integers
    object_sizes: Integers
    positions: Integers
    class_names: tuple[str, ...]
    metadata: Mapping[str, str]
    path: Path | None = None

    def __post_init__(self) -> None:
        origin = self.path or "arrays in memory"
        headers = {key: _Header(array.shape, array.dtype) for key, array in self.members().items()}
        _check_shapes(headers, origin)
        _check_values(self, origin)

    @classmethod
    def assemble(
        cls,
        images: Images,
        positions: Integers,
        class_names: Sequence[str],
        metadata: Mapping[str, str],
        sizes: Sequence[int] = STIR_LAYOUT.sizes,
    ) -> StirArrays:
        """Add the labels and object sizes that the axes imply."""
        shape = images.shape[:4]
        return cls(
            images=images,
            labels=np.broadcast_to(np.arange(shape[2])[:, None], shape).copy(),
            object_sizes=np.broadcast_to(np.array(sizes)[:, None, None], shape).copy(),
            positions=positions.astype(np.int64),
            class_names=tuple(class_names),
            metadata=dict(metadata),
        )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.images.shape[2])

    @property
    def num_instances(self) -> int:
        """Number of instances of each class, in each split and at each object size."""
        return int(self.images.shape[3])

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return 3 if self.images.ndim == 7 else 1

    @property
    def canvas(self) -> int:
        """Side of an image in pixels."""
        return int(self.images.shape[4])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Object sizes in file order."""
        return tuple(map(int, self.object_sizes[0, :, 0, 0]))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of arrays, shapes and class names; compression and metadata have no part."""
        digest = hashlib.sha256(canonical_json(list(self.class_names)).encode())
        for name in ("images", "labels", "object_sizes", "positions"):
            array = np.ascontiguousarray(getattr(self, name))
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def members(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the file by their keys."""
        return {
            "imgs": self.images,
            "lbls": self.labels,
            "scls": self.object_sizes,
            "psts": self.positions,
            "metadata": np.array(list(self.metadata.items())),
            "lbldata": np.array(self.class_names),
        }


@dataclass(frozen=True)
class _Header:
    """Shape and dtype that a member of an npz declares."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_arrays(path: Path, max_bytes: int = MAX_BYTES) -> StirArrays:
    """Read and validate a dataset file; nothing is allocated before its headers were checked.

    Args:
        path: An npz in the STIR format, from here or as published.
        max_bytes: Refuse files that unpack to more than this.

    Raises:
        DatasetFormatError: The file breaks the format, is damaged or declares too much.
        StorageError: The file cannot be opened.
    """
    path = Path(path)
    with _opened(path) as file, _reading(path), zipfile.ZipFile(file) as archive:
        headers = _read_headers(archive, path)
        _check_declared_size(headers, archive, path, max_bytes)
        if headers["lbls"].shape[3:] == ():  # early files of one instance lack that axis
            for key in ("imgs", "lbls", "scls", "psts"):
                shape, dtype = headers[key].shape, headers[key].dtype
                headers[key] = _Header((*shape[:3], 1, *shape[3:]), dtype)
        _check_shapes(headers, path)
        arrays = {key: _read_member(archive, key, file) for key in KEYS}
    shape = headers["lbls"].shape
    return StirArrays(
        images=arrays["imgs"].reshape(headers["imgs"].shape),
        labels=arrays["lbls"].reshape(shape).astype(np.int64),
        object_sizes=arrays["scls"].reshape(shape).astype(np.int64),
        positions=arrays["psts"].reshape(*shape, 2).astype(np.int64),
        class_names=tuple(map(str, arrays["lbldata"])),
        metadata={str(name): str(value) for name, value in arrays["metadata"]},
        path=path,
    )


def check_target(path: Path, force: bool) -> None:
    """Refuse a file that cannot or must not be written, before hours go into its contents.

    Args:
        path: File to be written.
        force: Whether an existing one may be replaced.

    Raises:
        StorageError: It exists and `force` is false, or its directory cannot be written.
    """
    if path.suffix != SUFFIX:
        raise StorageError(f"{path}: give a file name that ends in {SUFFIX}")
    if path.is_dir():
        raise StorageError(f"{path} is a directory; give the name of a file")
    if path.exists() and not force:
        raise StorageError(f"{path} exists already; add --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(f"cannot write {path}: {path.parent} is not a directory") from error
    except OSError as error:
        raise StorageError.from_os_error("write", path, error) from error


def write_arrays(path: Path, arrays: StirArrays) -> None:
    """Write a dataset file atomically, as the published loader reads it.

    Raises:
        StorageError: The file cannot be written; whatever was there before is untouched.
    """
    metadata = np.array([[key, arrays.metadata[key]] for key in METADATA_KEYS])
    members = arrays.members() | {"metadata": metadata}
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for key, array in members.items():
            info = zipfile.ZipInfo(f"{key}.npy")
            mapped = array.nbytes > STORED_BYTES
            info.compress_type = zipfile.ZIP_STORED if mapped else zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise StorageError.from_os_error("read", path, error) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except DatasetFormatError:
        raise
    except _UNREADABLE as error:
        raise DatasetFormatError(
            path,
            f"a damaged or foreign file ({error})",
            "an npz file in the STIR format",
            "fetch or build it again",
        ) from error


def _read_headers(archive: zipfile.ZipFile, path: Path) -> dict[str, _Header]:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    keys = sorted(names), sorted(KEYS)
    _require(keys[0] == keys[1], path, f"the keys {keys[0]}", f"the keys {keys[1]}")
    return {key: _read_header(archive, key, path) for key in KEYS}


def _read_header(archive: zipfile.ZipFile, key: str, path: Path) -> _Header:
    with archive.open(f"{key}.npy") as member:
        header = _parse_npy_header(member)
        declared = archive.getinfo(f"{key}.npy").file_size - member.tell()
    _require(not header.dtype.hasobject, path, f"pickled objects in '{key}'", "numbers or text")
    found, expected = f"{declared} bytes of data in '{key}'", f"{header.num_bytes}, by its header"
    _require(header.num_bytes == declared, path, found, expected)
    return header


def _parse_npy_header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    if version not in _NPY_HEADERS:
        raise ValueError(f"npy format version {version}")
    try:
        shape, by_columns, dtype = _NPY_HEADERS[version](member)
    except Exception as error:  # NumPy's parser lets out whatever Python's own parser raises
        raise ValueError(f"npy header: {error}") from error
    if by_columns and len(shape) > 1:
        raise ValueError("an array in Fortran order")
    return _Header(shape, dtype)


def _read_member(archive: zipfile.ZipFile, key: str, file: IO[bytes]) -> npt.NDArray[Any]:
    with archive.open(f"{key}.npy") as member:
        array: npt.NDArray[Any]
        if _is_mapped(archive, key):
            header = _parse_npy_header(member)
            start = _data_offset(archive, key, file) + member.tell()
            array = np.memmap(file, header.dtype, "c", start, header.shape)
        else:
            array = np.lib.format.read_array(member, allow_pickle=False)
        while member.read(_CHUNK):  # reaching the end makes zipfile compare the checksum
            pass
    return array


def _is_mapped(archive: zipfile.ZipFile, key: str) -> bool:
    """Tell whether a member is mapped into memory: only large images are not compressed."""
    return key == "imgs" and archive.getinfo(f"{key}.npy").compress_type == zipfile.ZIP_STORED


def _data_offset(archive: zipfile.ZipFile, key: str, file: IO[bytes]) -> int:
    """Return where the bytes of a stored member start, behind its local header."""
    offset = archive.getinfo(f"{key}.npy").header_offset
    file.seek(offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return int(offset + 30 + name + extra)


def _require(holds: bool, path: Path | str, found: str, expected: str) -> None:
    if not holds:
        raise DatasetFormatError(path, found, expected)


def _check_declared_size(
    headers: Mapping[str, _Header], archive: zipfile.ZipFile, path: Path, max_bytes: int
) -> None:
    declared = sum(headers[key].num_bytes for key in KEYS if not _is_mapped(archive, key))
    _require(declared <= max_bytes, path, f"{declared} declared bytes", f"at most {max_bytes}")
    for key in ("metadata", "lbldata"):
        length = headers[key].num_bytes
        found = f"{length} bytes of text in '{key}'"
        _require(length <= _MAX_TEXT_BYTES, path, found, "a few names")


def _check_shapes(headers: Mapping[str, _Header], path: Path | str) -> None:
    kinds = {"imgs": ("u", "uint8"), "metadata": ("U", "text"), "lbldata": ("U", "text")}
    for key in KEYS:
        dtype, (kind, expected) = headers[key].dtype, kinds.get(key, ("iu", "integers"))
        good = dtype.kind in kind and (key != "imgs" or dtype == np.uint8)
        _require(good, path, f"'{key}' of type {dtype}", expected)
    images = headers["imgs"].shape
    colour = (3,) if len(images) == 7 else ()
    square = len(images) in (6, 7) and images[4] == images[5]
    good = square and 0 not in images and images[0] == len(Split) and images[6:] == colour
    expected = "(3, sizes, classes, instances, canvas, canvas) or (…, 3), none of them empty"
    _require(good, path, f"'imgs' of shape {images}", expected)
    grid = images[:4]
    expected_shapes = {
        "lbls": grid,
        "scls": grid,
        "psts": (*grid, 2),
        "metadata": (len(METADATA_KEYS), 2),
        "lbldata": (images[2],),
    }
    for key, shape in expected_shapes.items():
        found = headers[key].shape
        _require(found == shape, path, f"'{key}' of shape {found}", str(shape))


def _check_values(arrays: StirArrays, path: Path | str) -> None:
    labels, positions, names = arrays.labels, arrays.positions, arrays.class_names
    _require(
        bool((labels == np.arange(arrays.num_classes)[:, None]).all()),
        path,
        f"labels {labels.min()}…{labels.max()} out of order",
        f"the class index 0…{arrays.num_classes - 1} along the third axis",
    )
    _require(
        bool((arrays.object_sizes == np.array(arrays.sizes)[:, None, None]).all()),
        path,
        "object sizes that differ in one row",
        "one size along the second axis",
    )
    try:
        Layout(arrays.canvas, arrays.sizes)
    except OptionError as error:
        expected = "object sizes ≥ 1, descending or ascending"
        raise DatasetFormatError(path, str(error), expected) from error
    low, high = positions.min(), positions.max()
    inside = 0 <= low <= high < arrays.canvas
    _require(inside, path, f"positions {low}…{high}", f"0…{arrays.canvas - 1}")
    keys = sorted(arrays.metadata)
    known = sorted(METADATA_KEYS)
    _require(keys == known, path, f"metadata on {keys}", f"on {known}")
    distinct = len(set(names)) == arrays.num_classes and "" not in names
    _require(distinct, path, "class names that repeat or are empty", "one name each")

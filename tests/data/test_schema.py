from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equiscale.core.errors import DatasetFormatError, StorageError
from equiscale.data.schema import (
    KEYS,
    METADATA_KEYS,
    StirArrays,
    check_target,
    read_arrays,
    write_arrays,
)

Arrays = dict[str, npt.NDArray[Any]]


def grey_members(classes: int = 1, instances: int = 1) -> Arrays:
    shape = (3, 48, classes, instances)
    return {
        "imgs": np.zeros((*shape, 64, 64), np.uint8),
        "lbls": np.broadcast_to(np.arange(classes)[:, None], shape).copy(),
        "scls": np.broadcast_to(np.arange(64, 16, -1)[:, None, None], shape).copy(),
        "psts": np.zeros((*shape, 2), np.int64),
        "metadata": np.array([[key, "text"] for key in METADATA_KEYS]),
        "lbldata": np.array([f"class {index}" for index in range(classes)]),
    }


def save(path: Path, members: Arrays) -> Path:
    np.savez_compressed(path, **members)  # type: ignore[arg-type]
    return path


def test_written_file_reads_back_equal(tmp_path: Path, small_arrays: StirArrays) -> None:
    path = tmp_path / "noise.npz"
    write_arrays(path, small_arrays)
    written, again = path.read_bytes(), read_arrays(path)
    assert np.array_equal(again.images, small_arrays.images)
    assert again.class_names == ("cat", "dog")
    assert again.metadata == small_arrays.metadata
    assert again.content_hash == small_arrays.content_hash
    write_arrays(path, again)
    assert path.read_bytes() == written


def test_file_has_the_published_layout(tmp_path: Path, small_arrays: StirArrays) -> None:
    path = tmp_path / "noise.npz"
    write_arrays(path, small_arrays)
    with np.load(path) as file:  # as the published loader does, allow_pickle being off
        assert set(file.files) == set(KEYS)
        assert {key: file[key].shape for key in KEYS} == {
            "imgs": (3, 48, 2, 2, 64, 64, 3),
            "lbls": (3, 48, 2, 2),
            "scls": (3, 48, 2, 2),
            "psts": (3, 48, 2, 2, 2),
            "metadata": (6, 2),
            "lbldata": (2,),
        }
        assert dict(file["metadata"])["title"] == "the title"
        assert (file["scls"][:, 64 - 32] == 32).all()


def test_content_hash_ignores_compression_and_metadata(
    tmp_path: Path, small_arrays: StirArrays
) -> None:
    compressed, stored = tmp_path / "a.npz", tmp_path / "b.npz"
    write_arrays(compressed, small_arrays)
    with np.load(compressed) as file:
        members = {key: file[key] for key in KEYS}
    members["lbls"] = members["lbls"].astype(np.uint8)
    members["metadata"][:, 1] = "other"
    np.savez(stored, **members)
    assert read_arrays(stored).content_hash == small_arrays.content_hash


def test_arrays_in_memory_are_hashed_and_checked(small_arrays: StirArrays) -> None:
    images = small_arrays.images.copy()
    images[0, 0, 0, 0, 0, 0, 0] ^= 1
    assert replace(small_arrays, images=images).content_hash != small_arrays.content_hash
    renamed = replace(small_arrays, class_names=("cat", "cow"))
    assert renamed.content_hash != small_arrays.content_hash
    with pytest.raises(DatasetFormatError, match="arrays in memory: found class names that repeat"):
        replace(small_arrays, class_names=("cat", "cat"))


def test_early_files_without_instance_axis_are_read(tmp_path: Path) -> None:
    members = grey_members()
    for key in ("imgs", "lbls", "scls", "psts"):
        members[key] = members[key][:, :, :, 0]
    arrays = read_arrays(save(tmp_path / "early.npz", members))
    assert arrays.images.shape == (3, 48, 1, 1, 64, 64)
    assert arrays.positions.shape == (3, 48, 1, 1, 2)


def _without(key: str) -> Callable[[Arrays], Arrays]:
    return lambda members: {name: array for name, array in members.items() if name != key}


def _with(key: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda members: {**members, key: change(members.get(key))}


BROKEN = {
    "missing key": (_without("psts"), "the keys"),
    "extra key": (_with("more", lambda _: np.zeros(3)), "the keys"),
    "images of floats": (_with("imgs", lambda a: a.astype(np.float32)), "uint8"),
    "labels of floats": (_with("lbls", lambda a: a.astype(float)), "integers"),
    "names of numbers": (_with("lbldata", lambda a: np.arange(2)), "text"),
    "canvas not square": (_with("imgs", lambda a: a[..., :32]), "canvas, canvas"),
    "missing size": (_with("imgs", lambda a: a[:, 1:]), "(3, 47, 2, 1)"),
    "no classes": (_with("imgs", lambda a: a[:, :, :0]), "none of them empty"),
    "sizes out of order": (_with("scls", lambda a: a % 60 + 1), "descending or ascending"),
    "size of zero": (_with("scls", lambda a: a - 17), "object sizes ≥ 1"),
    "sizes of splits": (_with("scls", lambda a: a + np.indices(a.shape)[0]), "one size along"),
    "label too large": (_with("lbls", lambda a: a + 1), "the class index 0…1"),
    "label negative": (_with("lbls", lambda a: a - 1), "the class index 0…1"),
    "position outside": (_with("psts", lambda a: a + 64), "0…63"),
    "positions of one": (_with("psts", lambda a: a[..., :1]), "(3, 48, 2, 1, 2)"),
    "too few names": (_with("lbldata", lambda a: a[:1]), "(2,)"),
    "equal names": (_with("lbldata", lambda a: np.array(["a", "a"])), "one name each"),
    "unknown metadata": (_with("metadata", lambda a: np.char.add(a, "?")), "license"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused_with_found_and_expected(case: str, tmp_path: Path) -> None:
    change, expected = BROKEN[case]
    path = save(tmp_path / "broken.npz", change(grey_members(classes=2)))
    with pytest.raises(DatasetFormatError) as caught:
        read_arrays(path)
    assert caught.value.path == path
    assert expected in caught.value.expected
    assert str(caught.value).startswith(f"{path}: found ")


def test_pickled_arrays_are_refused_without_running_them(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    members = grey_members()
    members["metadata"] = np.array([Trap()], dtype=object)
    path = save(tmp_path / "trap.npz", members)
    with pytest.raises(DatasetFormatError, match="pickled"):
        read_arrays(path)
    assert not (tmp_path / "sprung").exists()


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, small_arrays: StirArrays) -> None:
    path = tmp_path / "noise.npz"
    write_arrays(path, small_arrays)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (whole[:-1000], flipped, b"", b"PK", b"not a zip at all" * 100):
        path.write_bytes(content)
        with pytest.raises(DatasetFormatError, match="damaged or foreign"):
            read_arrays(path)


def _bomb(path: Path, shape: tuple[int, ...], declared_bytes: int) -> Path:
    """A file whose images declare a shape, and whose zip entry says it has so many bytes."""
    members = grey_members()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("imgs.npy", "w") as member:
            member.write(header.getvalue())
            member.write(bytes(declared_bytes))
        for key in KEYS[1:]:
            with archive.open(f"{key}.npy", "w") as member:
                np.lib.format.write_array(member, members[key])
    return path


def test_declared_sizes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "lie.npz", (3, 48, 10**6, 10**6, 64, 64), 1000)
    with pytest.raises(DatasetFormatError, match="1000 bytes of data in 'imgs'"):
        read_arrays(path)
    shape = (3, 48, 40, 1, 64, 64)
    path = _bomb(tmp_path / "bomb.npz", shape, int(np.prod(shape)))
    assert path.stat().st_size < 100_000
    with pytest.raises(DatasetFormatError, match="declared bytes, expected at most 1000000"):
        read_arrays(path, max_bytes=1_000_000)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.npz", tmp_path):
        with pytest.raises(StorageError, match="cannot read"):
            read_arrays(path)


def test_target_is_checked_first(tmp_path: Path) -> None:
    there = tmp_path / "there.npz"
    there.touch()
    check_target(there, force=True)
    with pytest.raises(StorageError, match="--force"):
        check_target(there, force=False)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(StorageError, match="is a directory"):
        check_target(tmp_path / "folder.npz", force=True)
    with pytest.raises(StorageError, match=r"ends in \.npz"):
        check_target(tmp_path / "a.npy", force=True)
    with pytest.raises(StorageError, match="cannot write"):
        check_target(there / "below" / "a.npz", force=False)
    check_target(tmp_path / "new" / "a.npz", force=False)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.fixture(scope="module")
def valid_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save(tmp_path_factory.mktemp("fuzz") / "valid.npz", grey_members()).read_bytes()


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6),
    length=st.none() | st.integers(0, 1 << 16),
)
def test_mutated_files_raise_only_our_errors(
    changes: list[tuple[int, int]],
    length: int | None,
    valid_bytes: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content = bytearray(valid_bytes)
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "mutated.npz"
    path.write_bytes(content[:length])
    with contextlib.suppress(DatasetFormatError):
        assert read_arrays(path, max_bytes=1 << 20).images.shape == (3, 48, 1, 1, 64, 64)


@settings(max_examples=150, deadline=None)
@given(
    descr=st.sampled_from(["|u1", "<i8", "|O", "<U5", "<f4", "|V3", "|u1\n", "x", "<M8[s]"]),
    shape=st.lists(st.integers(-2, 2**70), max_size=8),
    tail=st.binary(max_size=40),
)
def test_strange_headers_raise_only_our_errors(
    descr: str, shape: list[int], tail: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + tail
    path = tmp_path_factory.getbasetemp() / "strange.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in KEYS:
            archive.writestr(f"{key}.npy", header)
    with pytest.raises(DatasetFormatError):
        read_arrays(path)

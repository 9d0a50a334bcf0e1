from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equiscale.build.idx import IdxFormatError, parse_idx, read_bytes, read_pair
from equiscale.core.errors import SourceError, StorageError

HEADER = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3])
PATH = Path("some-idx3-ubyte")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "magic number"),
        (bytes([0, 0, 8, 1]) + HEADER[4:], "the magic number 00000801, expected 00000803"),
        (bytes([0, 0, 13, 3]) + HEADER[4:], "the magic number 00000d03"),
        (HEADER[:9], "9 bytes, expected a header of 16 bytes"),
        (HEADER + bytes(5), r"5 bytes of data, expected \(2, 1, 3\)"),
        (HEADER + bytes(7), r"7 bytes of data, expected \(2, 1, 3\)"),
    ],
)
def test_a_wrong_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(IdxFormatError, match=message):
        parse_idx(content, 3, PATH)


def test_truncated_gzip_and_gzip_bomb_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes(1000))[:-10])
    with pytest.raises(IdxFormatError, match="damaged gzip"):
        read_bytes(path)
    path.write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(IdxFormatError, match="more than 1000 bytes"):
        read_bytes(path, max_bytes=1000)


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="neither train-images-idx3-ubyte nor"):
        read_pair(tmp_path, "train", {})
    with pytest.raises(SourceError, match="found nothing, expected a directory"):
        read_pair(tmp_path / "absent", "train", {})
    with pytest.raises(StorageError, match="cannot read"):
        read_bytes(tmp_path)


@settings(max_examples=2000, deadline=None)
@example(head=HEADER, tail=bytes(range(6)), axes=3)
@given(
    head=st.binary(max_size=20) | st.just(HEADER),
    tail=st.binary(max_size=30),
    axes=st.sampled_from([1, 3]),
)
def test_any_bytes_give_an_array_or_our_error(head: bytes, tail: bytes, axes: int) -> None:
    try:
        array = parse_idx(head + tail, axes, PATH)
    except IdxFormatError:
        return
    if axes == 3 and (head, tail[:6]) == (HEADER, bytes(range(6))):
        assert array.tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    assert array.ndim == axes
    assert array.nbytes == len(head + tail) - 4 - 4 * axes

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from equiscale.core.errors import DownloadError, OptionError, StorageError
from equiscale.data.catalog import dataset_path
from equiscale.data.dataset import load_dataset
from equiscale.data.download import download_dataset
from equiscale.data.schema import StirArrays


class Record:
    """What the server plays: a record with one good file, and ways to spoil it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.checksum = "md5:" + hashlib.md5(content).hexdigest()
        self.requests: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.failures = 0  # so many file requests fail first
        self.length: int | None = None  # send only so many bytes
        self.pause = 0.0  # seconds before the file is sent
        self.key = "key"  # "filename" in the other interface
        self.answer: bytes | None = None  # instead of the record
        self.url = ""

    def description(self) -> bytes:
        entry = {self.key: "mnist.npz", "checksum": self.checksum}
        entry |= {"links": {"self": f"{self.url}/files/mnist.npz"}}  # type: ignore[dict-item]
        return json.dumps({"id": 6578038, "files": [entry]}).encode()


class Handler(BaseHTTPRequestHandler):
    record: Record

    def do_GET(self) -> None:
        record = self.record
        record.requests[self.path] += 1
        record.agents.add(self.headers["User-Agent"])
        if self.path == "/record":
            self._send(record.answer if record.answer is not None else record.description())
        elif record.requests[self.path] <= record.failures:
            self.send_error(503)
        else:
            time.sleep(record.pause)
            self._send(record.content, record.length)

    def _send(self, content: bytes, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:length])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def record(small_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    record = Record(small_file.read_bytes())
    handler = type("RecordHandler", (Handler,), {"record": record})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    record.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("EQUISCALE_RECORD", f"{record.url}/record")
    yield record
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def contents(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def test_file_arrives_and_the_agent_identifies_itself(record: Record, root: Path) -> None:
    path = download_dataset("mnist", root)
    assert path == root / "mnist.npz"
    assert path.read_bytes() == record.content
    assert contents(root) == ["mnist.npz"]
    download_dataset("mnist", root)
    assert record.requests["/files/mnist.npz"] == 1
    assert all(agent.startswith("equiscale/") for agent in record.agents)


def test_the_other_interface_of_the_record_is_understood(record: Record, root: Path) -> None:
    record.key = "filename"
    record.checksum = record.checksum.removeprefix("md5:")
    assert download_dataset("mnist", root).exists()


def test_loading_fetches_what_is_missing(
    record: Record, root: Path, small_arrays: StirArrays
) -> None:
    dataset = load_dataset("mnist", root=root)
    assert dataset.content_hash == small_arrays.content_hash
    load_dataset("mnist", root=root)
    assert record.requests == {"/record": 1, "/files/mnist.npz": 1}


def test_failed_transfer_is_tried_again(record: Record, root: Path) -> None:
    record.failures = 1
    assert download_dataset("mnist", root, retries=1).exists()
    assert record.requests["/files/mnist.npz"] == 2


SPOILED = ["tampered", "truncated", "slow", "failing", "no record", "offline"]


@pytest.mark.parametrize("spoil", SPOILED)
def test_spoiled_transfer_says_the_manual_way_and_leaves_nothing(
    spoil: str, record: Record, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spoil == "tampered":
        record.content = record.content[:-1] + b"!"
    elif spoil == "truncated":
        record.length = len(record.content) // 2
    elif spoil == "slow":
        record.pause = 1.0
    elif spoil == "failing":
        record.failures = 9
    elif spoil == "offline":
        monkeypatch.setenv("EQUISCALE_RECORD", "http://127.0.0.1:9/record")
    else:
        record.answer = b"<html>maintenance</html>"
    with pytest.raises(DownloadError) as caught:
        download_dataset("mnist", root, retries=0, timeout=0.3)
    message = str(caught.value)
    assert "get mnist.npz from https://zenodo.org/records/6578038" in message
    assert f"put it into {root}" in message
    assert "equiscale data build mnist" in message
    assert contents(root) == []


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"files": []}', b'{"files": [7]}', b"null"])
def test_strange_record_is_reported(answer: bytes, record: Record, root: Path) -> None:
    record.answer = answer
    with pytest.raises(DownloadError, match="By hand"):
        download_dataset("mnist", root, retries=0)


def test_a_file_that_was_built_is_replaced_only_on_request(record: Record, root: Path) -> None:
    path = dataset_path("mnist", root)
    root.mkdir()
    path.write_bytes(b"built here")
    with pytest.raises(DownloadError, match="--force"):
        download_dataset("mnist", root)
    good, record.content = record.content, b"tampered"
    with pytest.raises(DownloadError):
        download_dataset("mnist", root, force=True, retries=0)
    assert path.read_bytes() == b"built here"
    record.content = good
    download_dataset("mnist", root, force=True)
    assert path.read_bytes() == good
    assert contents(root) == ["mnist.npz"]


def test_a_file_in_place_of_the_directory_is_named_before_asking(
    record: Record, tmp_path: Path
) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(StorageError, match=r"data is not a directory; name another one"):
        download_dataset("mnist", tmp_path / "data")
    with pytest.raises(OptionError, match="equiscale data build signs"):
        download_dataset("signs", tmp_path)
    assert not record.requests

from __future__ import annotations

import http.client
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from equiscale.report import server


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(server._Handler, "timeout", server._Handler.timeout / 50)
    with server.PageServer(tmp_path, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield int(serving.url.rstrip("/").rpartition(":")[2])
        serving.shutdown()
        thread.join()


def test_only_this_machine_is_answered(port: int) -> None:
    """Another host's name that leads here is a page elsewhere that wants to read ours."""
    answers = {}
    ours, others = ("127.0.0.1", "localhost"), ("evil.example", "127.0.0.1.evil.example", "[::1]")
    for host in (*ours, *others, *(f"{name}:{port}" for name in (*ours, *others))):
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("GET", "/version", headers={"Host": host})
        answers[host] = client.getresponse().status
        client.close()
    assert list(answers.values()) == [200, 200, 403, 403, 403] * 2


def test_clients_that_stop_halfway_do_no_harm(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert client.recv(100) == b"", "dropped"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert b"equiscale" in answer.read()
    assert capsys.readouterr().err == ""

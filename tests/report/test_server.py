from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from equiscale.report import server


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.2)
    with server.PageServer(tmp_path, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield int(serving.url.rstrip("/").rpartition(":")[2])
        serving.close()
        thread.join()


def test_only_this_machine_is_answered(port: int) -> None:
    """Another host's name that leads here is a page elsewhere that wants to read ours."""
    answers = {}
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"evil.example:{port}", "evil.example"):
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("GET", "/version", headers={"Host": host})
        answers[host] = client.getresponse().status
        client.close()
    assert list(answers.values()) == [200, 200, 403, 403]


def test_a_client_that_sends_half_a_request_is_dropped(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert client.recv(100) == b""

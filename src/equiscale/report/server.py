"""Serves the page on this machine and keeps it up to date while a sweep runs."""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from equiscale.analysis.runs import RunsReader
from equiscale.core.errors import EquiscaleError, StorageError
from equiscale.report.page import render_page

LOOK_SECONDS = 2.0
_log = logging.getLogger(__name__)

# A script reloads: a refresh by <meta> of an address with a fragment only jumps to the fragment.
_WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><title>equiscale report</title>
<script>setTimeout(() => location.reload(), 2000);</script>
<body style="font-family:sans-serif;margin:3em">
<h1>Nothing to show yet</h1><p>{reason}</p><p>This page looks again every two seconds.</p>"""


class LivePage:
    """The page of a runs directory, which need not exist yet; made again when runs finish."""

    def __init__(self, directory: Path) -> None:
        self._reader = RunsReader(directory)
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._version, self._text = 0, ""

    def current(self) -> tuple[int, str]:
        """Return the version, which grows with every change, and the page's text."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
                self._looked = time.monotonic()
            return self._version, self._text

    def _look(self) -> None:
        try:
            if self._version and not self._reader.has_news():
                return
            text = render_page(self._reader.read(), self._version + 1)
            self._version += 1
        except EquiscaleError as error:
            text = _WAITING.format(reason=html.escape(str(error)))
        self._text = text


class PageServer(ThreadingHTTPServer):
    """A web server on the loopback interface only: `/` is the page, `/version` its number."""

    def __init__(self, directory: Path, port: int) -> None:
        self.page = LivePage(directory)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise StorageError(
                f"cannot serve on port {port}: {error.strerror or error}; choose another --port"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Ignore clients that closed the connection before they had their answer."""
        if isinstance(sys.exc_info()[1], ConnectionError):
            _log.debug("%s went away", client_address)
        else:
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10.0  # for a client to send its request

    def do_GET(self) -> None:
        # Another name for this address is a page elsewhere that wants to read ours.
        host = self.headers.get("Host", "").partition(":")[0]  # without a port, 80 is meant
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(403, "wrong host")
            return
        version, text = self.server.page.current()
        bodies = {"/": (text, "text/html; charset=utf-8"), "/version": (str(version), "text/plain")}
        path = self.path.partition("?")[0]
        if path not in bodies:
            self.send_error(404)
            return
        body, kind = bodies[path]
        content = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        _log.debug(format, *arguments)

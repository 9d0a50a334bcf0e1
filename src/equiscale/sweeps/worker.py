"""A worker process: takes run after run until none is left.

It reads its work as one line of JSON from standard input and stops when that pipe closes, so no
worker outlives the one who started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from equiscale.runs.errors import RunsError
from equiscale.runs.key import RunKey
from equiscale.sweeps.job import JobSettings, Watcher, run_job
from equiscale.training.loop import InterruptedRunError

EXIT_INTERRUPTED = 130
GRACE_SECONDS = 5.0
EXIT_STORE = 3
"""The runs directory cannot be written; the last line of the output, if any, says why."""


def work(
    keys: Iterable[RunKey], settings: JobSettings, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Compute every run that nobody else has. Whatever others do meanwhile, none is done twice."""
    for key in keys:
        run_job(key, settings.store, settings, Watcher(should_stop=should_stop))


def stop_on_signals(*signals: signal.Signals) -> threading.Event:
    """Return an event that is set when one of the signals arrives."""
    event = threading.Event()
    for number in signals:
        signal.signal(number, lambda *_: event.set())
    return event


def encode_work(keys: Iterable[RunKey], settings: JobSettings) -> bytes:
    """Return the line that a worker reads."""
    content = {"keys": [key.to_json() for key in keys], "settings": settings.to_json()}
    return json.dumps(content).encode() + b"\n"


def _decode_work(line: bytes) -> tuple[list[RunKey], JobSettings]:
    content: dict[str, Any] = json.loads(line)
    keys = [RunKey.from_json(key) for key in content["keys"]]
    return keys, JobSettings.from_json(content["settings"])


def _stop_with_parent(event: threading.Event) -> None:
    """Set the event when the other end of standard input is closed, and soon end the process."""

    def watch() -> None:
        # Reads below Python's buffer, whose lock would be held at exit.
        while os.read(sys.stdin.fileno(), 1):
            pass
        event.set()
        time.sleep(GRACE_SECONDS)
        os._exit(EXIT_INTERRUPTED)  # in a long step or test; no worse than being killed

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Work through what standard input asks for; return the exit code."""
    keys, settings = _decode_work(sys.stdin.buffer.readline())
    event = stop_on_signals(signal.SIGINT, signal.SIGTERM)
    _stop_with_parent(event)
    try:
        work(keys, settings, event.is_set)
    except InterruptedRunError:
        return EXIT_INTERRUPTED
    except RunsError as error:
        with contextlib.suppress(OSError):  # standard error may be a file on the same full disk
            os.write(sys.stderr.fileno(), f"{error}\n".encode())
        return EXIT_STORE
    return 0


if __name__ == "__main__":
    sys.exit(main())

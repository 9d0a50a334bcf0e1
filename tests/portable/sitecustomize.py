"""Hides from equiscale and its tests what Windows lacks; `make portable` puts it on PYTHONPATH.

Python imports this file at start, in worker processes too. What it pretends:

- There is no /proc, no `fork` and no module or function that only POSIX has.
- A file that is open or mapped cannot be renamed, replaced or removed, nor its directory.
- New processes are spawned.

The standard library and other packages keep everything.
"""

from __future__ import annotations

import builtins
import errno
import multiprocessing
import os
import pathlib
import signal
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
FUNCTIONS = {
    os: """chown fork forkpty geteuid getloadavg getpgid getuid killpg link mkfifo nice
        sched_getaffinity setsid symlink sysconf uname wait waitpid""",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGSTOP SIGUSR1 SIGUSR2 alarm pthread_sigmask",
}
OURS = ("equiscale", "tests")

_import = builtins.__import__
_link, _listdir, _readlink, _stat = os.link, os.listdir, os.readlink, os.stat


def _kill(pid: int, number: int) -> None:
    raise AssertionError(f"os.kill({pid}, {number}) ends a process on Windows")


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no hard links")


def _without(module: types.ModuleType, names: str, **changed: object) -> types.ModuleType:
    poorer = types.ModuleType(module.__name__)
    kept = {name: item for name, item in vars(module).items() if name not in names.split()}
    vars(poorer).update(kept, **changed)
    return poorer


def _import_on_windows(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of `__import__`
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> types.ModuleType:
    if globals and str(globals.get("__package__") or globals.get("__name__")).startswith(OURS):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in POORER:
            return POORER[name]
    return _import(name, globals, locals, fromlist or (), level)


def _open_files() -> set[str]:
    """Return the paths that this process has open or mapped."""
    found = set()
    for number in _listdir("/proc/self/fd"):
        with _quiet():
            found.add(_readlink(f"/proc/self/fd/{number}"))
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - ours hides /proc
        found |= {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return found


class _quiet:  # noqa: N801 - contextlib would be imported in every process
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, OSError)


def _refusing(function: Callable[..., None]) -> Callable[..., None]:
    def guarded(*paths: Any, **options: Any) -> None:
        for path in paths:
            place = None if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
            if place and any(f == place or f.startswith(f"{place}/") for f in _open_files()):
                raise PermissionError(errno.EACCES, "in use by this process", str(place))
        function(*paths, **options)

    return guarded


def _hiding_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(path: pathlib.Path, *arguments: Any, **options: Any) -> Any:
        if path.parts[:2] == ("/", "proc"):
            raise FileNotFoundError(errno.ENOENT, "hidden", str(path))
        return function(path, *arguments, **options)

    return guarded


for name in ("open", "readlink", "stat"):
    setattr(pathlib.Path, name, _hiding_proc(getattr(pathlib.Path, name)))
for name in ("remove", "rename", "replace", "unlink"):
    setattr(os, name, _refusing(getattr(os, name)))
POORER = {
    "os": _without(os, FUNCTIONS[os], name="nt", kill=_kill, link=_no_links),
    "signal": _without(signal, FUNCTIONS[signal]),
}
builtins.__import__ = _import_on_windows
multiprocessing.set_start_method("spawn", force=True)

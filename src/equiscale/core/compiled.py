"""Small C sources compiled on the machine they run on, once, where there is a compiler."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SWITCH = "EQUISCALE_NATIVE"
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_SECONDS = 120
_log = logging.getLogger(__name__)


def compiled_code_is_wanted() -> bool:
    """Whether compiled code may be used: unless `$EQUISCALE_NATIVE` is 0."""
    return os.environ.get(SWITCH, "1") != "0"


@cache
def load_compiled(source: Path, *definitions: str) -> ctypes.CDLL | None:
    """Return the library made from a C file and macros, or None where it cannot be had.

    It is compiled for this processor and kept in the user's cache directory, so that this happens
    once; a compiler is looked for in `$CC` and on the path. That there is none, or that it fails,
    is no error: whoever asks has another way.
    """
    try:
        flags = (*_FLAGS, _own_flag(), *(f"-D{definition}" for definition in definitions))
        library = _library_path(source, flags)
        with contextlib.suppress(OSError):  # there is none yet, or it is damaged
            return ctypes.CDLL(str(library))
        _compile(source, library, flags)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("%s is not used as compiled code: %s", source.name, error)
        return None


def _library_path(source: Path, flags: Sequence[str]) -> Path:
    """Return where the library is kept; its name follows from all that it depends on."""
    import platformdirs

    made_of = (source.read_bytes(), " ".join(flags).encode(), _processor().encode())
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("equiscale")) / "native" / f"{source.stem}-{digest}.so"


def _own_flag() -> str:
    """Return how a compiler is told to use all instructions of this processor."""
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _processor() -> str:
    """Return what tells processors apart that take different instructions."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    features = [line for line in lines if line.lower().startswith(("flags", "features"))]
    return f"{platform.system()} {platform.machine()} {platform.processor()} {features[:1]}"


def _compile(source: Path, library: Path, flags: Sequence[str]) -> None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if compiler is None:
        raise FileNotFoundError("there is no C compiler")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [*compiler.split(), *flags, "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.replace(library)

"""Small C sources compiled on the machine they run on, once, where there is a compiler."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from equiscale.core.files import atomic_write

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
    once; the compiler is what `$CC` names, or one on the path. That there is none, or that it
    fails, is no error: whoever asks has another way. The log says why.
    """
    try:
        flags = (*_FLAGS, _own_flag(), *(f"-D{definition}" for definition in definitions))
        name = f"{source.stem}-{_digest_of_inputs(source, flags)}"
        library = _find(name) or _compile(source, flags, name)
        return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        reason = f"{error}: {error.stderr.decode(errors='replace').strip()}"
    except (OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
        reason = str(error)
    _log.info("%s is not used as compiled code: %s", source.name, reason)
    return None


def _own_flag() -> str:
    """Return how a compiler is told to use all instructions of this processor."""
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _digest_of_inputs(source: Path, flags: Sequence[str]) -> str:
    """Return a digest of all that a library depends on."""
    parts = (" ".join(flags), os.environ.get("CC", ""), _processor())
    made_of = (source.read_bytes(), *(part.encode() for part in parts))
    return _digest(b"\0".join(made_of))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _processor() -> str:
    """Return what tells processors apart that take different instructions."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    features = [line for line in lines if line.lower().startswith(("flags", "features"))]
    return f"{platform.system()} {platform.machine()} {platform.processor()} {features[:1]}"


def _directory() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("equiscale")) / "native"


def _find(name: str) -> Path | None:
    """Return a library of this name that is whole: loading a damaged one would end the process."""
    for library in sorted(_directory().glob(f"{name}-*.so")):
        if library.stem == f"{name}-{_digest(library.read_bytes())}":
            return library
    return None


def _compile(source: Path, flags: Sequence[str], name: str) -> Path:
    """Make a library whose name ends in the digest of its content."""
    chosen = shlex.split(os.environ.get("CC", ""))
    compiler = chosen or [found for found in _COMPILERS if shutil.which(found)][:1]
    if not compiler:
        raise FileNotFoundError("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "library.so"
        command = [*compiler, *flags, "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        content = made.read_bytes()
    library = _directory() / f"{name}-{_digest(content)}.so"
    with atomic_write(library) as file:
        file.write(content)
    return library

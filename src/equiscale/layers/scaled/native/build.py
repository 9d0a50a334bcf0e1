"""Compiles the library of the scaled convolution: `python build.py DIRECTORY`.

Called when a wheel is built or the package is installed from source. Needs a C compiler, nothing
of Python or torch. Uses the standard library alone.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
# Not always this machine's: a Mac builds for both of its processors, one after the other.
PLATFORM = sysconfig.get_platform().replace("universal2", platform.machine())
IS_WINDOWS = PLATFORM.startswith("win")
LIBRARY = "libscaled_conv." + {"win": "dll", "mac": "dylib"}.get(PLATFORM[:3], "so")
TYPES = {"f32": ("float", "int32_t"), "f64": ("double", "int64_t")}
EXPORTED = "dllexport" if IS_WINDOWS else 'visibility("default")'
FLAGS = (
    "-O3 -fvisibility=hidden -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi "
    f"-DEXPORTED=__attribute__(({EXPORTED})) {'' if IS_WINDOWS else '-fPIC'}"
)
INSTRUCTIONS = {"baseline": (16, "")}
if PLATFORM.endswith(("x86_64", "amd64")):
    INSTRUCTIONS |= {
        "avx2": (32, "-mavx2 -mfma"),
        "avx512": (64, "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mprefer-vector-width=512"),
    }
# torch brings the OpenMP runtime of GCC on Linux, so that the library uses torch's own threads.
OPENMP = "-fopenmp" if PLATFORM.startswith("linux") else ""
# GCC does not align the stack for AVX on Windows.
COMPILERS = ("clang",) if IS_WINDOWS else ("gcc", "cc", "clang")


class CompilerError(RuntimeError):
    """There is no C compiler, or it fails."""


def find_compiler() -> list[str]:
    """Return the command of `$CC`, or of a compiler on the path."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise CompilerError(f"there is no C compiler ({' or '.join(COMPILERS)})")


def build(directory: Path, extra_flags: str = "") -> Path:
    """Compile the library into a directory and return its path.

    Args:
        directory: Where it goes.
        extra_flags: For the compiler and the linker, such as those of sanitizers.
    """
    compiler = find_compiler()
    target = directory / LIBRARY
    extra = [*os.environ.get("ARCHFLAGS", "").split(), *extra_flags.split()]
    with tempfile.TemporaryDirectory() as folder:
        units = [(HERE / "processor.c", Path(folder) / "processor.o", FLAGS)]
        for number, (real, whole) in TYPES.items():
            for name, (num_bytes, flags) in INSTRUCTIONS.items():
                macros = f"-DREAL={real} -DWHOLE={whole} -DBYTES={num_bytes} -DNAME={number}_{name}"
                target_flags = f"{FLAGS} {OPENMP} {flags} {macros}"
                units.append((HERE / "kernel.c", Path(folder) / f"{number}_{name}.o", target_flags))

        def compile_unit(unit: tuple[Path, Path, str]) -> None:
            source, made, flags = unit
            _run([*compiler, *flags.split(), *extra, "-c", str(source), "-o", str(made)])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_unit, units))
        made = Path(folder) / LIBRARY
        objects = [str(unit[1]) for unit in units]
        _run([*compiler, "-shared", *extra, "-o", str(made), *objects])
        _check_loads(made)
        directory.mkdir(parents=True, exist_ok=True)
        staged = target.with_suffix(".new")  # a process may be using the old one
        shutil.copy(made, staged)
        try:
            staged.replace(target)
        except PermissionError as error:
            raise CompilerError(f"{target} is in use: end the processes that use it") from error
    return target


def _check_loads(library: Path) -> None:
    """Raise if loading a library kills the process, as half of one does."""
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(library)], capture_output=True)
    if done.returncode < 0:
        raise CompilerError(f"the compiler made a broken library (signal {-done.returncode})")


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise CompilerError(f"{command[0]} cannot be started: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CompilerError(f"{shlex.join(command)} failed:\n{error.stderr}") from error


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]), ' '.join(sys.argv[2:]))}\n")

"""Where a run ran: device, versions, commit. No host name, no path."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equiscale import __version__
from equiscale.core.errors import OptionError
from equiscale.layers.scaled.native import load_library


def choose_device(name: str | None = None) -> torch.device:
    """Return the device of this name, or the fastest there is: cuda, mps, cpu."""
    if name is None or name == "auto":
        return torch.device(_fastest())
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError(
            f"device {name!r} cannot be used here ({reason}); leave it out to use {_fastest()!r}"
        ) from error
    return device


def count_gpus(name: str | None = None) -> int:
    """Return how many GPUs runs on this device can be dealt over; 0 if it is not CUDA."""
    return torch.cuda.device_count() if choose_device(name).type == "cuda" else 0


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what a record says about its surroundings."""
    return {
        "equiscale": __version__,
        "commit": product_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device.type,
        "device_name": _device_name(device),
        "threads": torch.get_num_threads(),
        "compiled": device.type == "cpu" and load_library() is not None,
    }


@cache
def product_commit() -> str | None:
    """Return the commit of a checkout of equiscale, marked if changed; None if installed."""
    package = Path(__file__).resolve().parents[1]
    if not (package.parents[1] / ".git").exists():
        return None
    commit = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{commit}+changes" if commit and changed else commit


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _fastest() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@cache
def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())

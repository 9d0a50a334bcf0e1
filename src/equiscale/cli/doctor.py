"""`equiscale doctor`: what is installed and in use, and what could be."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata

from rich.console import Console
from rich.table import Table

from equiscale import __version__

_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra == ['\"](\w+)['\"]")
_NOT_FOR_USERS = ("all", "dev")


def doctor() -> None:
    """Show versions, compiled code, devices, extras and directories, and what to install."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    advice = []
    for name, found, missing in _findings():
        table.add_row(name, found)
        if missing:
            advice.append(missing)
    console = Console()
    console.print(table)
    for line in advice:
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)


def _findings() -> Iterator[tuple[str, str, str | None]]:
    """Yield what was looked at, what was found and, if something can be done, what."""
    import torch

    from equiscale.core.files import cache_directory

    yield "equiscale", f"{__version__}, Python {platform.python_version()}", None
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads", None
    yield "devices", ", ".join(_devices()), None
    yield _compiled_code()
    for extra, packages in _extras().items():
        lacking = [package for package in packages if not _is_installed(package)]
        found = f"lacks {', '.join(lacking)}" if lacking else "installed"
        command = f"pip install 'equiscale[{extra}]'"
        yield f"extra {extra}", found, f"{command} for the extra {extra}" if lacking else None
    yield "datasets", str(cache_directory()), None
    yield "records", os.environ.get("EQUISCALE_RUNS", "runs"), None


def _devices() -> Iterator[str]:
    import torch

    yield platform.machine()
    for index in range(torch.cuda.device_count()):
        yield torch.cuda.get_device_name(index)
    if torch.backends.mps.is_available():
        yield "mps"


def _compiled_code() -> tuple[str, str, str | None]:
    from equiscale.layers.scaled.native import SWITCH, load_library

    name = "compiled code"
    library = load_library()
    if library is not None:
        return name, f"in use, for {library.instructions}", None
    if os.environ.get(SWITCH) == "0":
        return name, f"off by {SWITCH}=0", f"unset {SWITCH} to use compiled code"
    return name, "not in use", "install a C compiler and then equiscale again for compiled code"


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra, from the metadata of the installation."""
    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("equiscale") or ():
        if found := _REQUIREMENT.match(requirement):
            package, extra = found.groups()
            if extra not in _NOT_FOR_USERS:
                extras.setdefault(extra, []).append(package)
    return extras


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True

"""Export a dataset and a model in child processes that are killed after each file operation.

Run by test_export.py. After every death each file that can be seen must be complete, the metadata
of a dataset only beside all of its files, and the next export must succeed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from equiscale import create_model
from equiscale.build.export import METADATA_FILE, export_parquet
from equiscale.core.files import file_hash
from equiscale.data.schema import METADATA_KEYS, StirArrays
from equiscale.models import Classifier
from equiscale.runs.record import _weights_hash

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 3, 2, 1, 16, 16), np.uint8)
ARRAYS = StirArrays.assemble(
    IMAGES,
    np.zeros((3, 3, 2, 1, 2), np.int64),
    ("cat", "dog"),
    dict.fromkeys(METADATA_KEYS, "text"),
    (4, 8, 16),
)


OPERATIONS = {"open", "write", "fsync", "__exit__", "chmod", "rename", "replace", "unlink", "mkdir"}


def die_after(count: int) -> None:
    """Die when so many file operations have returned: a file may be open and still empty."""
    seen = 0

    def hook(_: FrameType, event: str, function: Any) -> None:
        nonlocal seen
        if event == "c_return" and function.__name__ in OPERATIONS:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)


def read(directory: Path) -> dict[str, object]:
    """Return a hash of each file that can be seen; metadata of weights may be in any order."""
    paths = [path for path in directory.iterdir() if path.name[0] != "."]
    hashes = {".safetensors": lambda path: _weights_hash(path.read_bytes())}
    return {path.name: hashes.get(path.suffix, file_hash)(path) for path in paths}


def count_deaths(export: Callable[[Path], object], root: Path) -> int:
    export(root)
    whole, deaths = read(root), 0
    while True:
        directory = root / f".killed{deaths}"
        if (child := os.fork()) == 0:
            die_after(deaths + 1)
            export(directory)
            os._exit(0)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            return deaths
        deaths += 1
        found = read(directory) if directory.exists() else {}
        assert found.items() <= whole.items(), sorted(found)
        assert METADATA_FILE not in found or found == whole, sorted(found)
        export(directory)
        assert read(directory) == whole
        leftovers = sorted(path.name for path in directory.iterdir() if path.name[0] == ".")
        assert not leftovers, leftovers


def main(root: Path) -> None:
    def export_data(directory: Path) -> None:
        export_parquet(ARRAYS, "noise", directory, force=True)

    model = create_model("standard", in_channels=1, num_classes=2)
    assert isinstance(model, Classifier)
    sys.stdout.write(f"dataset {count_deaths(export_data, root / 'data')}\n")
    sys.stdout.write(f"model {count_deaths(model.save_pretrained, root / 'model')}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

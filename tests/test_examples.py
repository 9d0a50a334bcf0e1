"""The examples run in seconds, and their notebooks are those scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from examples.make_notebooks import list_examples, notebook_path, render_notebook

ROOT = Path(__file__).parents[1]
SAYS = {
    "convert_resnet": "SConv2d(1, 8, kernel_size=7, kernel_sizes=(7, 9, 11,",
    "kernel_selection": "ring: kernels",
    "robustness": "trained sizes",
    "scale_channels": "49 to 60",
}
RUN_CELLS = """
import json, pathlib, sys
for cell in json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), globals())
"""
"""Does what a kernel does: cell after cell in one module that no file belongs to."""


def run(directory: Path, *arguments: str) -> str:
    """Run Python in a directory with warnings as errors; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    assert SAYS.get(script.stem, "") in run(tmp_path, str(script))


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_notebook_runs(script: Path, tmp_path: Path) -> None:
    assert SAYS.get(script.stem, "") in run(tmp_path, "-c", RUN_CELLS, str(notebook_path(script)))


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_notebook_follows_its_script(script: Path) -> None:
    written = notebook_path(script).read_text(encoding="utf-8")
    assert written == render_notebook(script.read_text(encoding="utf-8")), (
        "run `python examples/make_notebooks.py`"
    )
    cells = json.loads(written)["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")


def test_no_notebook_is_left_behind() -> None:
    notebooks = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert notebooks == {path.stem for path in list_examples()}

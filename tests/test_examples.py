"""The examples run in seconds, and their notebooks are those scripts."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SAYS.get(script.stem, "") in done.stdout


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_notebook_follows_its_script(script: Path) -> None:
    written = notebook_path(script).read_text(encoding="utf-8")
    assert written == render_notebook(script.read_text(encoding="utf-8")), (
        "run `python examples/make_notebooks.py`"
    )
    cells = json.loads(written)["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")


@pytest.mark.parametrize("script", list_examples(), ids=lambda path: path.stem)
def test_notebook_does_what_its_script_does(script: Path) -> None:
    # So that running the script, above, stands for running the notebook.
    cells = json.loads(notebook_path(script).read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    statements = [statement for cell in code for statement in ast.parse(cell).body]
    whole = ast.parse(script.read_text(encoding="utf-8"))
    assert [*map(ast.dump, statements)] == [*map(ast.dump, whole.body)]
    names = {node.id for node in ast.walk(whole) if isinstance(node, ast.Name)}
    assert not names & {"__file__", "__name__", "argv"}, "a notebook has none of these"


def test_no_notebook_is_left_behind() -> None:
    notebooks = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert notebooks == {path.stem for path in list_examples()}

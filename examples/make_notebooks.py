"""Write the notebooks of all examples: `python examples/make_notebooks.py`.

The scripts are the source. `# %%` begins a cell of code, `# %% [markdown]` one of text, as editors
and Jupytext understand it; a test sees to it that the notebooks follow.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOTEBOOKS = HERE / "notebooks"
_CELL = re.compile(r"^# %%(?P<kind> \[markdown\])?\n(?P<body>.*?)(?=^# %%|\Z)", re.M | re.S)


def list_examples() -> list[Path]:
    """Return the scripts that are examples."""
    return sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)


def render_notebook(script: str) -> str:
    """Return a script as a notebook without outputs."""
    cells = [_cell(number, match) for number, match in enumerate(_CELL.finditer(script))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def notebook_path(script: Path) -> Path:
    """Return where the notebook of a script is."""
    return NOTEBOOKS / f"{script.stem}.ipynb"


def _cell(number: int, match: re.Match[str]) -> dict[str, Any]:
    body = match["body"].strip("\n")
    cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
    if match["kind"]:
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
        return {**cell, "cell_type": "markdown", "source": text.splitlines(keepends=True)}
    source = body.splitlines(keepends=True)
    return {
        **cell,
        "cell_type": "code",
        "source": source,
        "execution_count": None,
        "outputs": [],
    }


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for path in list_examples():
        notebook_path(path).write_text(render_notebook(path.read_text()))

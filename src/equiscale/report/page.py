"""The page: one self-contained HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
import html
import json
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from equiscale.analysis.study import Study
from equiscale.core.files import atomic_write
from equiscale.report.page_data import page_data
from equiscale.report.style import PAPER_DARK, PAPER_LIGHT, TEXT_DARK, TEXT_LIGHT


def write_page(study: Study, path: Path) -> None:
    """Write the page atomically.

    Raises:
        StorageError: The file cannot be written.
    """
    content = render_page(study).encode()
    with atomic_write(path) as file:
        file.write(content)


def render_page(study: Study, live_version: int | None = None) -> str:
    """Return the page as text.

    Args:
        study: What it shows.
        live_version: Version of a page that polls its server for a newer one; None for a page
            that makes no request.
    """
    data = page_data(study)
    page = Template(asset("page.html"))
    return page.substitute(
        connect="'none'" if live_version is None else "'self'",
        version="" if live_version is None else str(live_version),
        style=palette(data["models"]) + asset("page.css"),
        script=asset("charts.js") + asset("page.js"),
        summary=html.escape(_summary(data)),
        data=packed(data),
    )


def packed(data: dict[str, Any]) -> str:
    """Return data as compressed base64, so that no name in it is read as HTML."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def palette(models: list[dict[str, Any]]) -> str:
    """Return the colours of models as CSS variables, for a light and a dark screen."""
    light = {"paper": PAPER_LIGHT, "ink": TEXT_LIGHT}
    dark = {"paper": PAPER_DARK, "ink": TEXT_DARK}
    for index, model in enumerate(models):
        light[f"m{index}"], dark[f"m{index}"] = model["light"], model["dark"]
    auto = (
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme='light']) {_rule(dark)} }}"
    )
    return f":root {_rule(light)}\n{auto}\n:root[data-theme='dark'] {_rule(dark)}\n"


def _rule(colours: dict[str, str]) -> str:
    return "{ " + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + " }"


def _summary(data: dict[str, Any]) -> str:
    facts = data["provenance"]
    datasets = ", ".join(dataset["label"] for dataset in data["datasets"])
    shown = {cell["model"] for cell in data["cells"]}
    variants = {model["key"] for model in data["models"] if model["variant"]} & shown
    models = _counted(len(shown - variants), "model")
    if variants:
        models += f" and {_counted(len(variants), 'variant')}"
    return (
        f"{_counted(facts['runs'], 'run')} of {models} on {datasets}, collected {facts['made_at']}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def asset(name: str) -> str:
    """Return a file of the pages."""
    path = resources.files("equiscale.report") / "assets" / name
    return path.read_text(encoding="utf-8")

"""The page of a probe: one self-contained HTML file, with the pictures that the networks saw."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import asdict, replace
from string import Template
from typing import Any

from equiscale import __version__
from equiscale.analysis.summaries import ModelKey
from equiscale.build.extras import import_extra
from equiscale.probing.networks import Preprocess
from equiscale.probing.pictures import BACKGROUNDS, Pixels, Renderer
from equiscale.probing.report import Finding, ProbeReport
from equiscale.report.page import asset, packed, palette
from equiscale.report.style import ModelStyle, style_models

EXAMPLES = 6
_SMALL = 96  # canvases up to this side are embedded without loss
_BEHIND = {
    "own": "their own surroundings; beyond the picture, its edge",
    "edge": "their edge, repeated",
    "blur": "a blur of the object",
    "plain": "plain grey",
}


def style_networks(report: ProbeReport) -> dict[str, ModelStyle]:
    """Return the style of each network; its label is its name."""
    keys = [ModelKey(finding.name) for finding in report.findings]
    styles = style_models(keys)
    return {key.model: replace(styles[key], label=key.model) for key in keys}


def render_probe_page(report: ProbeReport) -> str:
    """Return the page as text."""
    data = probe_page_data(report)
    return Template(asset("probe.html")).substitute(
        style=palette(data["models"]) + asset("page.css"),
        script=asset("charts.js") + asset("probe.js"),
        summary=html.escape(data["summary"]),
        data=packed(data),
    )


def probe_page_data(report: ProbeReport) -> dict[str, Any]:
    """Return everything that the page shows, as plain JSON."""
    styles = style_networks(report)
    return {
        "summary": _summary(report),
        "labelled": report.labelled,
        "in_pixels": len({f.subject.rendering.canvas for f in report.findings}) == 1,
        "models": [
            {
                **asdict(styles[finding.name]),
                "rows": finding.rows,
                "usable": finding.usable_range,
            }
            for finding in report.findings
        ],
        "examples": _examples(report),
        "confusions": report.confusions,
        "notes": list(report.notes),
        "facts": _facts(report),
    }


def _summary(report: ProbeReport) -> str:
    pictures = report.pictures
    classes = (
        f" of {len(pictures.shown_classes)} classes" if report.labelled else ", without labels"
    )
    networks = ", ".join(finding.name for finding in report.findings)
    return f"{networks} on {len(pictures.objects)} objects{classes}"


def _examples(report: ProbeReport) -> list[dict[str, Any]]:
    """Show some objects at every size as the first network sees them, with all answers."""
    rendering = report.findings[0].subject.rendering
    renderer = Renderer(report.pictures, rendering)
    examples = []
    objects = report.pictures.objects
    for index in range(0, len(objects), -(-len(objects) // EXAMPLES)):
        item = objects[index]
        rendered = renderer.render(item)
        if rendered is not None:
            examples.append(
                {
                    "label": item.label or item.photo.path.name,
                    "sizes": rendering.sizes,
                    "images": [_data_address(images[0]) for images in rendered],
                    "answers": [_answers(finding, index) for finding in report.findings],
                }
            )
    return examples


def _answers(finding: Finding, index: int) -> list[dict[str, Any]]:
    """Return the answers about an object at every size, each at the first place."""
    right = finding.agrees if finding.hits is None else finding.hits
    predicted, confidence = finding.answers.predicted, finding.answers.confidence
    return [
        {
            "name": finding.name_output(int(predicted[index, column, 0])),
            "confidence": float(confidence[index, column, 0]),
            "right": bool(right[index, column, 0]),
        }
        for column in range(predicted.shape[1])
    ]


def _data_address(image: Pixels) -> str:
    pillow: Any = import_extra("PIL.Image", "pillow")
    kind = "png" if len(image) <= _SMALL else "jpeg"
    buffer = io.BytesIO()
    pillow.fromarray(image.squeeze()).save(buffer, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _facts(report: ProbeReport) -> dict[str, str]:
    rendering, pictures = report.findings[0].subject.rendering, report.pictures
    background = rendering.background
    behind = _BEHIND[background] if background in BACKGROUNDS else f"pictures of {background}"
    kind = "cut-outs" if pictures.cutouts else "objects"
    facts = {
        "Made with": f"equiscale {__version__}",
        "Pictures": f"{len(pictures.objects)} {kind} from {pictures.source}",
        "Around the objects": behind,
        "Random places at each size": f"{rendering.places}; at full size in the middle; seed "
        f"{rendering.seed}",
    }
    for finding in report.findings:
        preprocess = finding.subject.network.preprocess
        facts[finding.name] = f"{finding.outputs} outputs; {describe_preprocess(preprocess)}"
    return facts


def describe_preprocess(preprocess: Preprocess) -> str:
    """Return a preprocessing as text."""
    mean, std = (
        ", ".join(f"{value:.3g}" for value in values)
        for values in (preprocess.mean, preprocess.std)
    )
    crop = f", crop {preprocess.crop:g}" if preprocess.crop < 1 else ""
    return f"canvas {preprocess.canvas} pixels{crop}, mean {mean}, std {std} ({preprocess.origin})"

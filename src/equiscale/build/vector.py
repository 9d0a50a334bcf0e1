"""Render vector drawings at a given pixel size with Cairo."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from equiscale.build.extras import import_cairosvg, import_extra
from equiscale.core.errors import SourceError
from equiscale.data.schema import Images


class DrawingError(SourceError):
    """A vector drawing cannot be rendered."""


def render_svg(svg: bytes, name: str, **options: int) -> Images:
    """Render a drawing to RGBA [h, w, 4].

    Args:
        svg: The file's bytes.
        name: Its name, for messages.
        **options: Those of `cairosvg.svg2png` that set the size.
    """
    cairosvg: Any = import_cairosvg()
    pillow: Any = import_extra("PIL.Image", "pillow")
    try:
        png = cairosvg.svg2png(bytestring=svg, **options)
    except Exception as error:  # CairoSVG documents none, and any kind comes out of bad drawings
        raise DrawingError(name, f"a bad drawing ({error})", "an SVG file") from error
    with pillow.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGBA"))

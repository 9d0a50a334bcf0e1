"""Render vector drawings at a given pixel size with Cairo."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from equiscale.core.errors import EquiscaleError, MissingExtraError

if TYPE_CHECKING:
    import numpy.typing as npt


class CairoMissingError(EquiscaleError, ImportError):
    """The Cairo library of the system is not installed."""


def render_svg(svg: bytes, **options: Any) -> npt.NDArray[np.uint8]:  # noqa: ANN401 - CairoSVG's
    """Render a drawing to RGBA [h, w, 4]; the options are those of `cairosvg.svg2png`."""
    from PIL import Image

    png = _cairosvg().svg2png(bytestring=svg, **options)
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGBA"))


def _cairosvg() -> Any:  # noqa: ANN401 - an untyped package
    try:
        import cairosvg
    except ImportError:
        raise MissingExtraError("cairosvg", "build") from None
    except OSError as error:
        raise CairoMissingError(
            "the Cairo library was not found: install it "
            "(Debian: apt-get install libcairo2, macOS: brew install cairo)"
        ) from error
    return cairosvg

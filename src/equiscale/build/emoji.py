"""The emoji dataset: Font Awesome's faces, rendered from the vector at every size."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equiscale.build.canvas import collect_instances, draw_positions, paste
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.build.vector import render_svg
from equiscale.core.errors import MissingExtraError
from equiscale.core.spec import STIR_LAYOUT, Layout, Split
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
from equiscale.data.schema import Images, Integers, StirArrays

_PACKAGE = "fontawesome-free"
_FOLDER = Path("static", "fontawesome_free", "svgs", "regular").parts


_NAMES = (
    "tired surprise smile-wink smile-beam sad-tear sad-cry meh-rolling-eyes meh-blank laugh-wink "
    "laugh-squint laugh-beam laugh kiss-wink-heart kiss-beam kiss grin-wink grin-tongue-wink "
    "grin-tongue-squint grin-tongue grin-tears grin-stars grin-squint-tears grin-squint "
    "grin-hearts grin-beam-sweat grin-beam grin-alt grin grimace frown-open flushed dizzy angry "
    "smile meh frown"
)


@dataclass(frozen=True)
class _Task:
    name: str
    svg: bytes
    positions: Integers  # [3, s, 2]
    layout: Layout


@register_dataset(
    "emoji",
    title="Scaled and Translated Image Recognition (STIR): emoji",
    description="36 icons of faces, white on black, rendered from the vector at every size.",
    class_names=tuple(_NAMES.split()),
    license="CC BY 4.0; icons: Font Awesome Free 5.15.3 by @fontawesome, CC BY 4.0",
    source="https://fontawesome.com, icons of PyPI fontawesome-free 5.15.3",
    citation=STIR_CITATION,
    date="2022-05-24",
    published=True,
    content_hash="20d3d4c27eda50f0f6c9735bbc2ea4b251ae7cb3f0115fbba902941e84f0aadc",
)
def build_emoji(
    layout: Layout = STIR_LAYOUT, workers: int = 1, progress: Progress = no_progress
) -> StirArrays:
    """Build the dataset from the installed icons, with the published rendering and positions.

    The arguments are those of every builder, see `equiscale.build`.
    """
    card = CARDS["emoji"]
    icons = find_icons()
    positions = draw_positions(card.num_classes, 1, layout)
    tasks = [
        _Task(name, icons[name].read_bytes(), positions[:, :, label, 0], layout)
        for label, name in enumerate(card.class_names)
    ]
    results = map_in_order(_render, tasks, workers, progress)
    images = collect_instances(results, card.num_classes, 1, 1, layout)
    return StirArrays.assemble(images, positions, card.class_names, card.metadata(), layout.sizes)


def find_icons() -> dict[str, Path]:
    """Return the files of Font Awesome's regular icons by name.

    The package cannot be imported (its folder has a hyphen), so its file list is asked.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(_PACKAGE, "build") from None
    chosen = [file for file in files if file.parts[1:-1] == _FOLDER]
    return {Path(file).stem: Path(str(file.locate())) for file in chosen}


def _render(task: _Task) -> Images:
    """Render one icon at every size and put it at its places: [3, s, c, c]."""
    sizes, canvas = task.layout.sizes, task.layout.canvas
    images = np.zeros((len(Split), len(sizes), canvas, canvas), np.uint8)
    for row, size in enumerate(sizes):
        alpha = render_svg(task.svg, task.name, parent_width=size, parent_height=size)[:, :, 3]
        for split in range(len(Split)):
            left, top = task.positions[split, row]
            paste(images[split, row], alpha, left, top)
    return images

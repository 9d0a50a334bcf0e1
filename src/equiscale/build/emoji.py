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
from equiscale.data.catalog import CARDS
from equiscale.data.schema import Images, Integers, StirArrays

_PACKAGE = "fontawesome-free"
_FOLDER = Path("static", "fontawesome_free", "svgs", "regular").parts


@dataclass(frozen=True)
class _Task:
    name: str
    svg: bytes
    positions: Integers  # [3, s, 2]
    layout: Layout


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

"""Traffic signs in colour, rendered from vector drawings: a colour task free of resampling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from equiscale.build.canvas import collect_instances, draw_positions, paste
from equiscale.build.options import SignBackground, check_num_instances
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.build.sources import checked_directory
from equiscale.build.vector import render_svg
from equiscale.core.errors import SourceError
from equiscale.core.seeding import numpy_generator
from equiscale.core.spec import STIR_LAYOUT, Layout, Split
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
from equiscale.data.schema import Images, Integers, StirArrays

SIGN_FILES = {
    "stop": "regulatory--stop--g1",
    "yield": "regulatory--yield--g1",
    "priority-road": "regulatory--priority-road--g1",
    "maximum-speed-limit-50": "regulatory--maximum-speed-limit-50--g1",
    "no-overtaking": "regulatory--no-overtaking--g1",
    "no-parking": "regulatory--no-parking--g1",
    "keep-right": "regulatory--keep-right--g1",
    "roundabout": "regulatory--roundabout--g1",
    "bicycles-only": "regulatory--bicycles-only--g1",
    "parking": "information--parking--g1",
    "gas-station": "information--gas-station--g1",
    "pedestrians-crossing": "information--pedestrians-crossing--g1",
    "children": "warning--children--g1",
    "traffic-signals": "warning--traffic-signals--g1",
    "roadworks": "warning--roadworks--g1",
    "railroad-crossing": "warning--railroad-crossing--g1",
}
"""The drawing of each class, by its name in Mapillary's taxonomy."""

_PLACES = ("", "package_signs", "package/package_signs")  # as unpacked from npm, or inside it


@dataclass(frozen=True)
class _Task:
    name: str
    svg: bytes
    positions: Integers  # [3, s, 2]
    colours: Images  # [3, s, 3]
    layout: Layout


@register_dataset(
    "signs",
    title="STIR recipe: drawings of traffic signs",
    description="16 traffic signs in colour, rendered from the vector at every size.",
    class_names=tuple(SIGN_FILES),
    channels=3,
    license="MIT; drawings: mapillary_sprite_source, Copyright 2015 mapillary, MIT",
    source="npm pack @rapideditor/mapillary_sprite_source@1.8.0, package_signs",
    citation=STIR_CITATION,
    date="2026-11-15",
    content_hash="4bbdcd632f9da460476e7743b15569dc7016246c47dc6a974fdf51d6b1386713",
)
def build_signs(
    source: Path,
    background: Annotated[
        SignBackground, "Behind the signs: black or random colours."
    ] = SignBackground.PLAIN,
    num_instances: int | None = None,
    layout: Layout = STIR_LAYOUT,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the dataset from the drawings of npm's `@rapideditor/mapillary_sprite_source`.

    `source` is the unpacked package, or its folder of drawings; `background` is black, or one
    random colour per image. The other arguments are those of every builder, see `equiscale.build`.
    """
    card = CARDS["signs"]
    count = card.num_instances if num_instances is None else num_instances
    check_num_instances(count)
    positions = draw_positions(card.num_classes, count, layout)
    colours = _draw_colours(positions.shape[:-1], background)
    drawings = _read_drawings(source)
    tasks = [
        _Task(
            name,
            drawings[name],
            positions[:, :, label, instance],
            colours[:, :, label, instance],
            layout,
        )
        for label, name in enumerate(card.class_names)
        for instance in range(count)
    ]
    results = map_in_order(_render, tasks, workers, progress)
    images = collect_instances(results, card.num_classes, count, 3, layout)
    description = f"{card.description} Background: {background.value}."
    metadata = card.metadata() | {"description": description}
    return StirArrays.assemble(images, positions, card.class_names, metadata, layout.sizes)


def _read_drawings(source: Path) -> dict[str, bytes]:
    folders = [checked_directory(source) / place for place in _PLACES]
    for folder in folders:
        if all((folder / f"{file}.svg").is_file() for file in SIGN_FILES.values()):
            return {
                name: (folder / f"{file}.svg").read_bytes() for name, file in SIGN_FILES.items()
            }
    raise SourceError(
        source,
        "not all of the drawings",
        f"{', '.join(SIGN_FILES.values())} (.svg)",
        "npm pack @rapideditor/mapillary_sprite_source@1.8.0 brings them",
    )


def _draw_colours(shape: tuple[int, ...], background: SignBackground) -> Images:
    if background is SignBackground.PLAIN:
        return np.zeros((*shape, 3), np.uint8)
    return numpy_generator("signs", "background").integers(0, 256, (*shape, 3), np.uint8)


def _render(task: _Task) -> Images:
    """Render one sign at every size and put it at its places: [3, s, c, c, 3]."""
    sizes, canvas = task.layout.sizes, task.layout.canvas
    images = np.empty((len(Split), len(sizes), canvas, canvas, 3), np.uint8)
    images[:] = task.colours[:, :, None, None]
    for row, size in enumerate(sizes):
        drawing = render_svg(task.svg, task.name, output_width=size, output_height=size)
        for split in range(len(Split)):
            left, top = task.positions[split, row]
            paste(images[split, row], _blend(drawing, task.colours[split, row]), left, top)
    return images


def _blend(drawing: Images, colour: Images) -> Images:
    """Put RGBA [h, w, 4] over a colour [3]: [h, w, 3]."""
    alpha = drawing[:, :, 3:].astype(np.uint32)
    mixed = drawing[:, :, :3] * alpha + colour * (255 - alpha)
    return np.asarray(((mixed + 127) // 255).astype(np.uint8))

"""The pictures of a probe: found in a folder, and shown at any object size on a canvas."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiscale.build.annotations import (
    detect_format,
    find_backgrounds,
    pictures_below,
    read_annotations,
)
from equiscale.build.extras import import_extra
from equiscale.build.options import SourceFormat
from equiscale.build.photos import (
    BadPictureError,
    Box,
    PhotoObject,
    decode,
    decode_cutout,
    draw_offset,
    fitted_background,
)
from equiscale.build.sources import checked_directory
from equiscale.core.errors import OptionError, SourceError
from equiscale.core.registry import check_name
from equiscale.core.seeding import numpy_generator

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
OWN, EDGE, BLUR, PLAIN = BACKGROUNDS = ("own", "edge", "blur", "plain")
LEAST_SIDE = 32
_GREY = (127, 127, 127)
_REDUCING_GAP = 3.0  # shrink a large photo by an integer first, as long as nobody can tell
_BLUR_SIDE = 6  # pixels to which the blurred background is reduced


@dataclass(frozen=True)
class Pictures:
    """The objects to show to a network.

    Attributes:
        source: Directory of the pictures.
        class_names: All classes of the source, in order; empty without labels.
        objects: The objects.
        upright: Whether pictures are turned as their EXIF data says.
        boxed: Whether objects have boxes; otherwise whole pictures are objects.
        cutouts: Whether objects are cut out along their transparency or masks.
        skip_bad: Whether to leave out damaged pictures instead of stopping.
        too_small: Number of objects that were left out because they are too small.
        damaged: Number of pictures that were left out because they are damaged.
    """

    source: Path
    class_names: tuple[str, ...]
    objects: tuple[PhotoObject, ...] = field(repr=False)
    upright: bool
    boxed: bool = False
    cutouts: bool = False
    skip_bad: bool = False
    too_small: int = 0
    damaged: int = 0

    @property
    def labels(self) -> list[int]:
        """Index of each object's class; empty without labels."""
        index = {name: number for number, name in enumerate(self.class_names)}
        return [index[item.label] for item in self.objects] if index else []

    @property
    def shown_classes(self) -> list[str]:
        """The classes that have objects, in order."""
        present = {item.label for item in self.objects}
        return [name for name in self.class_names if name in present]

    def count_enlarged(self, size: int) -> int:
        """Return how many objects have fewer pixels than `size`, so that they are enlarged."""
        return sum(max(item.box.width, item.box.height) < size for item in self.objects)


def read_pictures(
    source: str | Path,
    source_format: SourceFormat | str = SourceFormat.AUTO,
    *,
    labelled: bool | None = None,
    cutouts: bool = False,
    masks: str | Path | None = None,
    limit: int | None = None,
    least_side: int = LEAST_SIDE,
    skip_bad: bool = False,
) -> Pictures:
    """Find the objects in a directory of pictures.

    Args:
        source: Directory with one sub-folder per class, COCO or YOLO boxes, or pictures only.
        source_format: `"auto"`, `"folders"`, `"coco"` or `"yolo"`.
        labelled: Whether folders or boxes name classes; None means yes, unless there are no
            sub-folders with pictures.
        cutouts: Objects are what is not transparent.
        masks: Directory of masks, each with the name of its picture; implies `cutouts`.
        limit: Take at most so many objects, evenly from all classes.
        least_side: Leave out objects whose longer side has fewer pixels.
        skip_bad: Leave out damaged pictures and boxes outside their picture.

    Raises:
        SourceError: There are no pictures, or only one class.
    """
    root = checked_directory(Path(source))
    if limit is not None and limit < 1:
        raise OptionError(f"limit must be at least 1, got {limit}")
    if labelled is None:
        labelled = not _is_flat(root)
    check_name("format", source_format, [known.value for known in SourceFormat])
    chosen_format = SourceFormat(source_format)
    if chosen_format is SourceFormat.AUTO:
        chosen_format = detect_format(root)
    outlined = cutouts or masks is not None
    found = read_annotations(
        root, chosen_format, skip_bad, outlined, Path(masks) if masks else None, labelled
    )
    large = [o for o in found.objects if max(o.box.width, o.box.height) >= least_side]
    if not large:
        count = f"{len(found.objects)} too small, {len(found.damaged)} damaged"
        raise SourceError(root, f"no objects ({count})", f"pictures from {least_side} pixels on")
    if labelled and len({item.label for item in large}) == 1:
        advice = "or probe without labels (--unlabelled, labelled=False)"
        raise SourceError(root, f"one class, {large[0].label!r}", "at least two", advice)
    return Pictures(
        source=root,
        class_names=found.class_names if labelled else (),
        objects=tuple(_spread(large)[:limit]),
        upright=found.upright,
        boxed=chosen_format is not SourceFormat.FOLDERS,
        cutouts=outlined,
        skip_bad=skip_bad,
        too_small=len(found.objects) - len(large),
        damaged=len(found.damaged),
    )


def _is_flat(root: Path) -> bool:
    """Whether a directory holds pictures, but no folders of pictures and no annotations."""
    folders = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    annotated = any(root.glob("*.json")) or any(map(pictures_below, folders))
    return not annotated and bool(pictures_below(root))


def _spread(objects: Sequence[PhotoObject]) -> list[PhotoObject]:
    """Order objects so that any first few of them come from all classes and many pictures."""
    classes: dict[str, list[PhotoObject]] = defaultdict(list)
    for item in objects:
        classes[item.label].append(item)
    for label, members in classes.items():
        numpy_generator("probe", label).shuffle(members)
    rounds = itertools.zip_longest(*classes.values())
    return [item for turn in rounds for item in turn if item is not None]


@dataclass(frozen=True)
class Rendering:
    """How objects are shown.

    Attributes:
        canvas: Side of the images in pixels.
        sizes: Object sizes in pixels, ascending. The last is the full size, which is shown once,
            in the middle; it may exceed the canvas, which then shows its central part.
        places: Number of random places at each other size.
        background: What is around the object: `"own"` surroundings as far as the picture goes and
            its edge beyond, the object's own `"edge"`, a `"blur"` of the object, `"plain"` grey,
            or the pictures of a directory.
        channels: 3, or 1 for grey images.
        seed: Decides places and backgrounds.
    """

    canvas: int
    sizes: tuple[int, ...]
    places: int
    background: str
    channels: int = 3
    seed: int = 0

    def count_places(self, size: int) -> int:
        """Return how many images show an object at this size."""
        return 1 if size == self.sizes[-1] else self.places


def check_background(background: str | Path | None, pictures: Pictures) -> str:
    """Return a background that suits the pictures.

    None takes grey for cut-outs, own surroundings for boxes, and a blur for whole pictures, whose
    repeated edges would be more conspicuous than a small object.

    Raises:
        OptionError: It is neither a known name nor a directory, or not possible with cut-outs.
        SourceError: The directory has no pictures.
    """
    if background is None:
        return PLAIN if pictures.cutouts else OWN if pictures.boxed else BLUR
    name = str(background)
    if name not in BACKGROUNDS:
        if not Path(name).is_dir():
            known = ", ".join(BACKGROUNDS)
            raise OptionError(f"background {name!r}: expected {known}, or a directory of pictures")
        find_backgrounds(Path(name))
    elif pictures.cutouts and name != PLAIN:
        raise OptionError(
            f"cut-outs have no surroundings for background {name!r}: choose 'plain' or a "
            "directory of pictures"
        )
    return name


class Renderer:
    """Shows objects at all sizes and places of a rendering.

    The same object, size and place give the same image, whatever else is shown.
    """

    def __init__(self, pictures: Pictures, rendering: Rendering) -> None:
        self._pictures, self._rendering = pictures, rendering
        named = rendering.background in BACKGROUNDS
        self._backgrounds = () if named else find_backgrounds(Path(rendering.background))
        self._pillow: Any = import_extra("PIL.Image", "pillow")

    def render(self, item: PhotoObject) -> list[Pixels] | None:
        """Return `[places, H, W, C]` for each size; None if it is damaged and may be skipped."""
        pictures = self._pictures
        try:
            read = decode_cutout if pictures.cutouts else decode
            image = read(item.photo, pictures.upright)
        except BadPictureError:
            if pictures.skip_bad:
                return None
            raise
        return [
            np.stack([self._to_pixels(view) for view in self._show(image, item, size)])
            for size in self._rendering.sizes
        ]

    def _to_pixels(self, view: Image) -> Pixels:
        if self._rendering.channels == 3:
            return np.asarray(view)
        return np.asarray(view.convert("L"))[:, :, None]

    def _show(self, image: Image, item: PhotoObject, size: int) -> Iterator[Image]:
        rendering, box = self._rendering, item.box
        generator = numpy_generator(str(rendering.seed), f"{item.key} at {size}")
        centred = size == rendering.sizes[-1]
        count = rendering.count_places(size)
        if rendering.background == OWN:
            patch = image
        else:  # the content of the box
            zoom = size / max(box.width, box.height)
            sides = max(1, round(box.width * zoom)), max(1, round(box.height * zoom))
            edges = (box.left, box.top, box.right, box.bottom)
            patch, box = self._resize(image, sides, edges), Box(0, 0, *sides)
        if rendering.background in (OWN, EDGE):
            for _ in range(count):
                yield self._surrounded(patch, box, size, centred, generator)
        else:
            for behind in itertools.islice(self._behind(image, item), count):
                yield self._pasted(patch, behind, centred, generator)

    def _behind(self, image: Image, item: PhotoObject) -> Iterator[Image]:
        """Yield the background of each place: the same at every size."""
        canvas, pillow, box = self._rendering.canvas, self._pillow, item.box
        if self._backgrounds:
            generator = numpy_generator(str(self._rendering.seed), f"{item.key} background")
            while True:
                chosen = self._backgrounds[generator.integers(len(self._backgrounds))]
                yield fitted_background(chosen, canvas).copy()
        few = pillow.new("RGB", (1, 1), _GREY)
        if self._rendering.background == BLUR:
            edges = (box.left, box.top, box.right, box.bottom)
            few = image.resize((_BLUR_SIDE, _BLUR_SIDE), pillow.Resampling.BOX, box=edges)
        while True:
            yield few.resize((canvas, canvas), pillow.Resampling.BICUBIC)

    def _resize(
        self, image: Image, sides: tuple[int, int], edges: tuple[float, float, float, float]
    ) -> Image:
        lanczos = self._pillow.Resampling.LANCZOS
        return image.resize(sides, lanczos, box=edges, reducing_gap=_REDUCING_GAP)

    def _pasted(
        self, patch: Image, behind: Image, centred: bool, generator: np.random.Generator
    ) -> Image:
        place = [
            free // 2 if centred or free <= 0 else int(generator.integers(free + 1))
            for free in (self._rendering.canvas - side for side in patch.size)
        ]
        behind.paste(patch, (place[0], place[1]), patch if patch.mode == "RGBA" else None)
        return behind

    def _surrounded(
        self, image: Image, box: Box, size: int, centred: bool, generator: np.random.Generator
    ) -> Image:
        """Show a box with what is around it; beyond the picture its edge is repeated.

        The edge is repeated on the canvas, not in the picture, so that memory does not depend on
        how small the object is shown.
        """
        canvas = self._rendering.canvas
        zoom = size / max(box.width, box.height)
        spans = []
        for start, end, side in (
            (box.left, box.right, image.width),
            (box.top, box.bottom, image.height),
        ):
            offset = (canvas - (end - start) * zoom) / 2
            if not centred and offset > 0:
                offset = draw_offset(start, end, zoom, side, canvas, generator)
            spans.append(_visible_span(start - offset / zoom, zoom, side, canvas))
        (left, right, x0, x1), (top, bottom, y0, y1) = spans
        part = self._resize(image, (x1 - x0, y1 - y0), (left, top, right, bottom))
        margins = ((y0, canvas - y1), (x0, canvas - x1), (0, 0))
        shown: Image = self._pillow.fromarray(np.pad(np.asarray(part), margins, mode="edge"))
        return shown


def _visible_span(
    start: float, zoom: float, side: int, canvas: int
) -> tuple[float, float, int, int]:
    """Return what a window that begins at `start` shows of a picture, and where, along one axis.

    The picture's ends are rounded to whole pixels of the canvas.
    """
    first = min(max(round(-start * zoom), 0), canvas - 1)
    last = max(min(round((side - start) * zoom), canvas), first + 1)
    return max(start + first / zoom, 0.0), min(start + last / zoom, float(side)), first, last

"""Cut objects out of photos at every object size, over their real surroundings."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from equiscale.build.extras import import_extra
from equiscale.build.options import Background
from equiscale.core.errors import SourceError
from equiscale.core.seeding import numpy_generator
from equiscale.core.spec import STIR_LAYOUT, Layout
from equiscale.data.schema import Images, Integers

if TYPE_CHECKING:
    from PIL.Image import Image

_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_ORIENTATION = 0x0112
_QUARTER_TURNS = {5, 6, 7, 8}
_LANCZOS_REACH = 3
_PIXELS_AT_ONCE, _ROWS_AT_ONCE = 1 << 24, 128  # of an extended photo
_EPSILON = 1e-6
_EIGHT_BIT_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}


Edges = tuple[float, float, float, float]


class BadPictureError(SourceError):
    """A picture cannot be decoded."""


class BoxError(SourceError):
    """An object's box does not lie inside its picture."""


@dataclass(frozen=True, order=True)
class Photo:
    """Where a picture is: a file, or a member of a zip archive; perhaps with a mask."""

    path: Path
    member: str = ""
    mask: Path | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the encoded bytes."""
        if not self.member:
            with self.path.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            yield file


@dataclass(frozen=True)
class Box:
    """A rectangle in the pixels of a photo."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Extent from left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """Extent from top to bottom."""
        return self.bottom - self.top

    def square_hull(self) -> Box:
        """Return the smallest square around the same centre that holds this box."""
        half = max(self.width, self.height) / 2
        x, y = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        return Box(x - half, y - half, x + half, y + half)


@dataclass(frozen=True)
class PhotoObject:
    """One object: its photo, its box there, its class and a key that is its own."""

    photo: Photo
    box: Box
    label: str
    key: str


@dataclass(frozen=True)
class Cutting:
    """How objects are cut out.

    Attributes:
        seed: Text from which, with an object's key, its positions are drawn.
        layout: Canvas and object sizes.
        stretch: Make both sides of a box the object size; otherwise the longer one.
        background: What is shown beyond the photo's border.
        upright: Turn photos as their EXIF data says.
        skip_bad: Leave out pictures that cannot be decoded instead of stopping.
        channels: 3, or 1 for grey.
        cutouts: Take an object's outline from its transparency or mask.
        backgrounds: Pictures behind cut-outs, one for each object; none means black.
    """

    seed: str
    layout: Layout = STIR_LAYOUT
    stretch: bool = False
    background: Background = Background.EDGE
    upright: bool = False
    skip_bad: bool = False
    channels: int = 3
    cutouts: bool = False
    backgrounds: tuple[Photo, ...] = ()


@dataclass(frozen=True)
class Cutouts:
    """One object at every size: images [s, c, c, …] and positions [s, 2]."""

    images: Images
    positions: Integers


@dataclass(frozen=True)
class PhotoTask:
    """The objects that are cut out of one photo."""

    photo: Photo
    objects: tuple[PhotoObject, ...]
    cutting: Cutting


def cut_photo(task: PhotoTask) -> list[Cutouts] | None:
    """Decode a photo once and cut its objects out; None if it is damaged and may be skipped."""
    try:
        read = decode_cutout if task.cutting.cutouts else decode
        image = read(task.photo, task.cutting.upright)
    except BadPictureError:
        if task.cutting.skip_bad:
            return None
        raise
    return [cut_object(image, item, task.cutting) for item in task.objects]


def decode(photo: Photo, upright: bool = False) -> Image:
    """Decode a photo to RGB; transparent parts become black.

    Args:
        photo: Where it is.
        upright: Turn it as its EXIF data says.
    """
    with _opened(photo) as image:
        return _flatten(_oriented(image, photo, upright))


def decode_cutout(photo: Photo, upright: bool = False) -> Image:
    """Decode a photo to RGBA; its mask, if it has one, becomes the alpha channel."""
    if photo.mask is None:
        with _opened(photo) as image:
            return _oriented(image, photo, upright).convert("RGBA")
    picture = decode(photo, upright)
    mask = decode(Photo(photo.mask), upright).convert("L")
    if mask.size != picture.size:
        raise BadPictureError(photo.mask, f"a mask of {mask.size} pixels", f"{picture.size}")
    levels = mask.getextrema()[1] == 255  # otherwise class indices: any but 0 is the object
    picture.putalpha(mask if levels else mask.point([0] + [255] * 255))
    return picture


def find_outline(photo: Photo, upright: bool) -> Box:
    """Return the box around what is not transparent in a cut-out."""
    alpha = decode_cutout(photo, upright).getchannel("A")
    box = alpha.getbbox()
    if box is None:
        raise BadPictureError(photo, "a picture that is all transparent", "an object")
    if photo.mask is None and alpha.getextrema()[0] == 255:
        advice = "give masks (--masks DIR), or do without cut-outs"
        raise BadPictureError(photo, "no transparency", "a cut-out", advice)
    return Box(*box)


def read_header(photo: Photo) -> tuple[int, int, str]:
    """Return width, height and Pillow's mode of a photo without decoding it."""
    with _opened(photo) as image:
        return image.width, image.height, image.mode


def read_sides(photo: Photo, upright: bool) -> tuple[int, int]:
    """Return width and height of a photo, as it lies or turned as its EXIF data says."""
    with _opened(photo) as image:
        turned = upright and image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
        return (image.height, image.width) if turned else image.size


@contextmanager
def _opened(photo: Photo) -> Iterator[Image]:
    """Open a photo; any error becomes a `BadPictureError`.

    So does a photo of more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, which Pillow warns of: a small
    file may take gigabytes.
    """
    pillow: Any = import_extra("PIL.Image", "pillow")
    bomb: Any = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    try:
        with photo.open() as file, _open_checked(pillow, file) as image:
            yield image
    except BadPictureError:
        raise
    except (*_DAMAGE, *bomb) as error:
        unknown = isinstance(error, pillow.UnidentifiedImageError)  # its message shows an object
        reason = "of no known format" if unknown else error
        raise BadPictureError(
            photo, f"a damaged picture ({reason})", "one that can be decoded"
        ) from error


def _open_checked(pillow: Any, file: IO[bytes]) -> Image:  # noqa: ANN401 - a module
    with warnings.catch_warnings():
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        opened: Image = pillow.open(file)
    return opened


def cut_object(image: Image, item: PhotoObject, cutting: Cutting) -> Cutouts:
    """Show one object at every size, each time at a random place of the canvas."""
    generator = numpy_generator(cutting.seed, item.key)
    canvas, sizes = cutting.layout.canvas, cutting.layout.sizes
    colour = (3,) if cutting.channels == 3 else ()
    images = np.empty((len(sizes), canvas, canvas, *colour), np.uint8)
    positions = np.empty((len(sizes), 2), np.int64)
    if cutting.cutouts:
        shown = paste_cutouts(image, item.box, cutting, generator)
    else:
        shown = cut_views(image, item.box, cutting, generator)
    for row, (view, left, top) in enumerate(shown):
        images[row] = np.asarray(view.convert("RGB" if colour else "L"))
        positions[row] = left, top
    return Cutouts(images, positions)


def cut_views(
    image: Image, box: Box, cutting: Cutting, generator: np.random.Generator
) -> Iterator[tuple[Image, int, int]]:
    """Yield an object over its own surroundings with its left and top, at every size."""
    canvas = cutting.layout.canvas
    for size in cutting.layout.sizes:
        zoom_x, zoom_y = _zooms(box, size, stretch=cutting.stretch)
        left = draw_offset(box.left, box.right, zoom_x, image.width, canvas, generator)
        top = draw_offset(box.top, box.bottom, zoom_y, image.height, canvas, generator)
        x, y = box.left - left / zoom_x, box.top - top / zoom_y
        window = Box(x, y, x + canvas / zoom_x, y + canvas / zoom_y)
        yield resample(image, window, canvas, cutting.background), left, top


def paste_cutouts(
    image: Image, box: Box, cutting: Cutting, generator: np.random.Generator
) -> Iterator[tuple[Image, int, int]]:
    """Yield a cut-out over one background with its left and top, at every size.

    The square `box` is drawn anywhere on the canvas; edges are blended by the cut-out's alpha.
    """
    pillow: Any = import_extra("PIL.Image", "pillow")
    canvas = cutting.layout.canvas
    behind: Image = pillow.new("RGB", (canvas, canvas))
    if cutting.backgrounds:
        chosen = cutting.backgrounds[generator.integers(len(cutting.backgrounds))]
        behind = fitted_background(chosen, canvas)
    hull = (math.floor(box.left), math.floor(box.top), math.ceil(box.right), math.ceil(box.bottom))
    cutout = image.crop(hull)  # transparent beyond the picture
    for size in cutting.layout.sizes:
        left, top = map(int, generator.integers(0, canvas - size + 1, 2))
        patch = cutout.resize((size, size), pillow.Resampling.LANCZOS)
        view = behind.copy()
        view.paste(patch, (left, top), patch)
        yield view, left, top


@lru_cache(maxsize=64)
def fitted_background(photo: Photo, canvas: int) -> Image:
    """Return the central square of a picture on the canvas."""
    image = decode(photo, upright=True)
    fitted: Image = import_extra("PIL.ImageOps", "pillow").fit(image, (canvas, canvas))
    return fitted


def draw_offset(
    start: float, end: float, zoom: float, side: int, canvas: int, generator: np.random.Generator
) -> int:
    """Draw where an object starts on the canvas, along one axis.

    The canvas stays inside the photo or, where the photo is too small, the photo on the canvas.

    Args:
        start: Where the object starts in the photo.
        end: Where it ends.
        zoom: Canvas pixels per photo pixel.
        side: Length of the photo.
        canvas: Length of the canvas.
        generator: Draws the offset.
    """
    fitting = canvas - math.ceil((end - start) * zoom - _EPSILON)
    bounds = (
        math.ceil(canvas - (side - start) * zoom - _EPSILON),
        math.floor(start * zoom + _EPSILON),
    )  # the other way round where the photo is too small
    lowest, highest = (min(max(bound, 0), fitting) for bound in sorted(bounds))
    return int(generator.integers(lowest, highest + 1))


def resample(image: Image, window: Box, canvas: int, background: Background) -> Image:
    """Show a window of a photo on the canvas, antialiased."""
    pillow: Any = import_extra("PIL.Image", "pillow")
    overhang = max(
        -window.left, -window.top, window.right - image.width, window.bottom - image.height
    )
    if overhang > _EPSILON:
        return _resample_extended(image, window, canvas, background, overhang)
    edges = (
        max(window.left, 0.0),
        max(window.top, 0.0),
        min(window.right, float(image.width)),
        min(window.bottom, float(image.height)),
    )
    shown: Image = image.resize((canvas, canvas), pillow.Resampling.LANCZOS, box=edges)
    return shown


def _oriented(image: Image, photo: Photo, upright: bool) -> Image:
    if image.mode not in _EIGHT_BIT_MODES:
        raise BadPictureError(photo, f"mode {image.mode}", "8 bits per channel")
    if upright:
        image = import_extra("PIL.ImageOps", "pillow").exif_transpose(image)
    return image


def _flatten(image: Image) -> Image:
    """Return a decoded copy in RGB."""
    if "A" in image.getbands() or "transparency" in image.info:
        pillow: Any = import_extra("PIL.Image", "pillow")
        opaque = image.convert("RGBA")
        black = pillow.new("RGBA", opaque.size, (0, 0, 0, 255))
        flat: Image = pillow.alpha_composite(black, opaque).convert("RGB")
        return flat
    return image.convert("RGB")


def _zooms(box: Box, object_size: int, stretch: bool) -> tuple[float, float]:
    if stretch:
        return object_size / box.width, object_size / box.height
    zoom = object_size / max(box.width, box.height)
    return zoom, zoom


def _resample_extended(
    image: Image, window: Box, canvas: int, background: Background, overhang: float
) -> Image:
    """Show a window that reaches beyond the photo, on the canvas."""
    reach = math.ceil(_LANCZOS_REACH * max(window.width, window.height) / canvas) + 1
    left, top = (max(0, math.floor(edge) - reach) for edge in (window.left, window.top))
    right = min(image.width, math.ceil(window.right) + reach)
    bottom = min(image.height, math.ceil(window.bottom) + reach)
    margin = math.ceil(overhang) + reach
    part = image.crop((left, top, right, bottom))
    x, y = margin - left, margin - top
    edges = (window.left + x, window.top + y, window.right + x, window.bottom + y)
    mode = "edge" if background is Background.EDGE else "constant"
    if (part.width + 2 * margin) * (part.height + 2 * margin) > _PIXELS_AT_ONCE:
        return _resample_rows_first(part, margin, edges, canvas, mode)
    return _lanczos(_pad(np.asarray(part), margin, margin, mode), (canvas, canvas), edges)


def _resample_rows_first(part: Image, margin: int, edges: Edges, canvas: int, mode: str) -> Image:
    """Extend and resize some rows at a time, then all columns.

    Pillow does the same, in the same order unless a photo is much taller than wide. But the whole
    extended photo may be a hundred times as large as the photo.
    """
    pixels, (left, top, right, bottom) = np.asarray(part), edges
    narrow = []
    for start in range(0, len(pixels), _ROWS_AT_ONCE):
        rows = _pad(pixels[start : start + _ROWS_AT_ONCE], 0, margin, mode)
        resized = _lanczos(rows, (canvas, len(rows)), (left, 0, right, len(rows)))
        narrow.append(np.asarray(resized))
    columns = _pad(np.concatenate(narrow), margin, 0, mode)
    return _lanczos(columns, (canvas, canvas), (0, top, canvas, bottom))


def _pad(pixels: Images, rows: int, columns: int, mode: Any) -> Images:  # noqa: ANN401 - numpy's
    return np.pad(pixels, ((rows, rows), (columns, columns), (0, 0)), mode=mode)


def _lanczos(pixels: Images, size: tuple[int, int], edges: Edges) -> Image:
    pillow: Any = import_extra("PIL.Image", "pillow")
    resized: Image = pillow.fromarray(pixels).resize(size, pillow.Resampling.LANCZOS, box=edges)
    return resized

"""Cut objects out of photos at every object size, over their real surroundings."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from equiscale.build.extras import import_extra
from equiscale.build.options import Background
from equiscale.core.errors import SourceError
from equiscale.core.seeding import numpy_generator
from equiscale.core.spec import CANVAS, OBJECT_SIZES
from equiscale.data.schema import Images, Integers

if TYPE_CHECKING:
    from PIL.Image import Image

_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_ORIENTATION = 0x0112
_QUARTER_TURNS = {5, 6, 7, 8}
_LANCZOS_REACH = 3
_EPSILON = 1e-6
_EIGHT_BIT_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}


class BadPictureError(SourceError):
    """A picture cannot be decoded."""


class BoxError(SourceError):
    """An object's box does not lie inside its picture."""


@dataclass(frozen=True, order=True)
class Photo:
    """Where a picture is: a file, or a member of a zip archive."""

    path: Path
    member: str = ""

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
        stretch: Make both sides of a box the object size; otherwise the longer one.
        background: What is shown beyond the photo's border.
        upright: Turn photos as their EXIF data says.
        skip_bad: Leave out pictures that cannot be decoded instead of stopping.
        channels: 3, or 1 for grey.
    """

    seed: str
    stretch: bool = False
    background: Background = Background.EDGE
    upright: bool = False
    skip_bad: bool = False
    channels: int = 3


@dataclass(frozen=True)
class Cutouts:
    """One object at every size: images [48, 64, 64, …] and positions [48, 2]."""

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
        image = decode(task.photo, upright=task.cutting.upright)
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
        if image.mode not in _EIGHT_BIT_MODES:
            raise BadPictureError(photo, f"mode {image.mode}", "8 bits per channel")
        if upright:
            image = import_extra("PIL.ImageOps", "pillow").exif_transpose(image)
        return _flatten(image)


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
    colour = (3,) if cutting.channels == 3 else ()
    images = np.empty((len(OBJECT_SIZES), CANVAS, CANVAS, *colour), np.uint8)
    positions = np.empty((len(OBJECT_SIZES), 2), np.int64)
    for row, size in enumerate(OBJECT_SIZES):
        zoom_x, zoom_y = _zooms(item.box, size, stretch=cutting.stretch)
        left = draw_offset(item.box.left, item.box.right, zoom_x, image.width, generator)
        top = draw_offset(item.box.top, item.box.bottom, zoom_y, image.height, generator)
        x, y = item.box.left - left / zoom_x, item.box.top - top / zoom_y
        window = Box(x, y, x + CANVAS / zoom_x, y + CANVAS / zoom_y)
        view = resample(image, window, cutting.background)
        images[row] = np.asarray(view if cutting.channels == 3 else view.convert("L"))
        positions[row] = left, top
    return Cutouts(images, positions)


def draw_offset(
    start: float, end: float, zoom: float, side: int, generator: np.random.Generator
) -> int:
    """Draw where an object starts on the canvas, along one axis.

    The canvas stays inside the photo or, where the photo is too small, the photo on the canvas.

    Args:
        start: Where the object starts in the photo.
        end: Where it ends.
        zoom: Canvas pixels per photo pixel.
        side: Length of the photo.
        generator: Draws the offset.
    """
    fitting = CANVAS - math.ceil((end - start) * zoom - _EPSILON)
    bounds = (
        math.ceil(CANVAS - (side - start) * zoom - _EPSILON),
        math.floor(start * zoom + _EPSILON),
    )  # the other way round where the photo is too small
    lowest, highest = (min(max(bound, 0), fitting) for bound in sorted(bounds))
    return int(generator.integers(lowest, highest + 1))


def resample(image: Image, window: Box, background: Background) -> Image:
    """Show a window of a photo on the canvas, antialiased."""
    pillow: Any = import_extra("PIL.Image", "pillow")
    image, window = _extended(image, window, background)
    edges = (
        max(window.left, 0.0),
        max(window.top, 0.0),
        min(window.right, float(image.width)),
        min(window.bottom, float(image.height)),
    )
    shown: Image = image.resize((CANVAS, CANVAS), pillow.Resampling.LANCZOS, box=edges)
    return shown


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


def _extended(image: Image, window: Box, background: Background) -> tuple[Image, Box]:
    """Return the photo, extended beyond its border if the window needs it, and the window there."""
    overhang = max(
        -window.left, -window.top, window.right - image.width, window.bottom - image.height
    )
    if overhang <= _EPSILON:
        return image, window
    pillow: Any = import_extra("PIL.Image", "pillow")
    reach = math.ceil(_LANCZOS_REACH * max(window.width, window.height) / CANVAS) + 1
    left, top = (max(0, math.floor(edge) - reach) for edge in (window.left, window.top))
    right = min(image.width, math.ceil(window.right) + reach)
    bottom = min(image.height, math.ceil(window.bottom) + reach)
    margin = math.ceil(overhang) + reach
    mode: Any = "edge" if background is Background.EDGE else "constant"
    pixels = np.asarray(image.crop((left, top, right, bottom)))
    padded = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode=mode)
    shift_x, shift_y = margin - left, margin - top
    shifted = Box(
        window.left + shift_x, window.top + shift_y, window.right + shift_x, window.bottom + shift_y
    )
    return pillow.fromarray(padded), shifted

"""Scale channels: one classifier with shared weights on several resized copies of the image."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers
from equiscale.core.registry import unknown_name_message
from equiscale.layers.channel_pool import (
    ChannelPool,
    check_channel_pool,
    check_dropout,
    draw_channels,
    pool_channels,
)
from equiscale.layers.scaled.kernel_scaling import (
    Interpolation,
    check_interpolation,
    resampling_matrix,
)


def scale_factors(smallest: float, largest: float, per_octave: int = 2) -> tuple[float, ...]:
    """Return a geometric sequence of factors, ascending, that contains 1 if it lies inside.

    Args:
        smallest: No factor is below it.
        largest: No factor is above it.
        per_octave: Factors per doubling.

    Examples:
        >>> [round(factor, 3) for factor in scale_factors(0.5, 1.5)]
        [0.5, 0.707, 1.0, 1.414]
    """
    if not 0 < smallest <= largest < math.inf or per_octave < 1:
        raise OptionError(
            f"needs 0 < smallest <= largest and at least one factor per octave, got {smallest}, "
            f"{largest}, {per_octave}"
        )
    tolerance = 1e-9
    first = math.ceil(math.log2(smallest) * per_octave - tolerance)
    last = math.floor(math.log2(largest) * per_octave + tolerance)
    if last < first:
        raise OptionError(f"no power of 2^(1/{per_octave}) lies between {smallest} and {largest}")
    return tuple(2 ** (step / per_octave) for step in range(first, last + 1))


Canvas = Literal["none", "zeros", "replicate"]
CANVASES: tuple[Canvas, ...] = get_args(Canvas)
"""What surrounds a reduced copy up to the size of the image: nothing, zeros, or its own border."""

FACTORS = scale_factors(0.35, 1.42)
"""Two octaves, the range of object sizes in STIR: an object of any size is shown at a size that
some copy of a training image has shown."""

TRAIN_FACTORS = scale_factors(0.125, 2.83)
"""What the model `scale_channels` is trained with: also copies so small or so large that little can
be told, meant to teach it to be unsure there."""

DROPOUT = 0.75
"""Of ten copies, two or three take part in a training step on average; of five, one or two."""


def resize_images(
    images: Tensor, factor: float, interpolation: Interpolation = "bicubic", blur: float = 0.0
) -> Tensor:
    """`[N, C, H, W] -> [N, C, round(H·factor), round(W·factor)]`, antialiased when it shrinks.

    Values are those of `torch.nn.functional.interpolate`, with `antialias=True` when it shrinks,
    written as two matrix products, which differentiate and export everywhere.

    Args:
        images: Images of any height and width.
        factor: New side over old side.
        interpolation: As for kernels.
        blur: Standard deviation of a Gaussian that is applied behind, in new pixels.

    Examples:
        >>> resize_images(torch.zeros(2, 3, 64, 48), 0.5).shape
        torch.Size([2, 3, 32, 24])
    """
    ((rows, columns),) = _resizing_matrices(*images.shape[2:], (factor,), interpolation, blur)
    return _resample(images, rows, columns)


def _cut(matrix: Tensor | None, size: int) -> Tensor | None:
    """Return `size` rows of a resizing matrix, from a random place on."""
    if matrix is None or len(matrix) <= size:
        return matrix
    first = int(torch.randint(len(matrix) - size + 1, ()))
    return matrix[first : first + size]


def _resample(images: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    resized = images if rows is None else rows.to(images) @ images
    return resized if columns is None else resized @ columns.to(images).T


def _surround(copy: Tensor, height: int, width: int, canvas: Canvas) -> Tensor:
    """Put a copy in the middle of a canvas of at least this size."""
    down, across = max(0, height - copy.shape[2]), max(0, width - copy.shape[3])
    if canvas == "none" or not (down or across):
        return copy
    margins = (across // 2, across - across // 2, down // 2, down - down // 2)
    return F.pad(copy, margins, mode="constant" if canvas == "zeros" else "replicate")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _resizing_matrices(
    height: int, width: int, factors: tuple[float, ...], interpolation: Interpolation, blur: float
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the matrices of rows and columns per factor, None where nothing changes."""

    def matrix(size: int, factor: float) -> Tensor | None:
        new_size = max(1, round(size * factor))
        resample = None if new_size == size else resampling_matrix(size, new_size, interpolation)
        if not blur:
            return resample
        smooth = _gaussian_matrix(new_size, blur)
        return smooth if resample is None else smooth @ resample

    return [(matrix(height, factor), matrix(width, factor)) for factor in factors]


def _gaussian_matrix(size: int, sigma: float) -> Tensor:
    """Return the `[size, size]` Gaussian filter whose rows sum to 1, at the border too."""
    position = torch.arange(size, dtype=torch.float64)
    weight = torch.exp(-(((position[:, None] - position) / sigma) ** 2) / 2)
    return weight / weight.sum(dim=1, keepdim=True)


class ImagePyramid(nn.Module):
    """`[N, C, H, W] -> {factor: [N, C, H·factor, W·factor]}`: resized copies of images.

    On a canvas, reduced copies are `[N, C, H, W]`.

    In training most of the copies can be left out of each step; and of copies larger than any that
    will be asked, a part of the size of the image is taken, at a place drawn anew for each step.

    Args:
        factors: Sizes of the copies, relative to the image.
        train_factors: Sizes of the copies in training, if they are to be others.
        dropout: Probability with which a copy is left out of a training step; at least one,
            drawn from torch's generator, always stays.
        interpolation: How images are resized.
        blur: Standard deviation of a Gaussian in each copy's own pixels, 0 for none; from about 1
            on, copies that were enlarged and copies that were shrunk are equally sharp.
        canvas: What surrounds reduced copies up to the size of the image: nothing (`"none"`),
            `"zeros"`, or the pixels of their border repeated (`"replicate"`).

    Examples:
        >>> copies = ImagePyramid((0.5, 1.0))(torch.zeros(1, 1, 64, 64))
        >>> {factor: copy.shape[2] for factor, copy in copies.items()}
        {0.5: 32, 1.0: 64}
    """

    canvas: Canvas = "none"  # also of modules that were pickled before there was one

    def __init__(
        self,
        factors: Sequence[float],
        train_factors: Sequence[float] | None = None,
        dropout: float = 0.0,
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
        canvas: Canvas = "none",
    ) -> None:
        super().__init__()
        self.factors = _check_factors("factors", factors)
        self.train_factors = (
            self.factors
            if train_factors is None
            else _check_factors("train_factors", train_factors)
        )
        check_dropout(dropout)
        _check_blur(blur)
        check_interpolation(interpolation)
        if canvas not in CANVASES:
            raise OptionError(unknown_name_message("canvas", canvas, CANVASES))
        self.dropout = dropout
        self.interpolation: Interpolation = interpolation
        self.blur = blur
        self.canvas = canvas

    def extra_repr(self) -> str:
        """Show the factors, the dropout and the canvas."""
        factors = ", ".join(f"{factor:.3g}" for factor in self.factors)
        return f"factors=({factors}), dropout={self.dropout:g}, canvas={self.canvas}"

    def forward(self, x: Tensor) -> dict[float, Tensor]:
        """`[N, C, H, W] -> {factor: [N, C, H·factor, W·factor]}`; see `copies`."""
        return self.copies(x, self._draw_factors() if self.training else self.factors)

    def copies(self, x: Tensor, factors: Sequence[float]) -> dict[float, Tensor]:
        """`[N, C, H, W] -> {factor: [N, C, H·factor, W·factor]}` for these factors.

        On a canvas, reduced copies are `[N, C, H, W]`.
        """
        if x.ndim != 4 or not x.is_floating_point():
            raise ShapeError(
                "a pyramid needs images [N, C, H, W] of floating-point numbers, got "
                f"{list(x.shape)} of {x.dtype}"
            )
        height, width = map(operator.index, x.shape[2:])  # numbers to a compiler, not symbols
        matrices = _resizing_matrices(height, width, tuple(factors), self.interpolation, self.blur)
        copies = {}
        for factor, (rows, columns) in zip(factors, matrices, strict=True):
            if factor > max(self.factors):
                rows, columns = _cut(rows, height), _cut(columns, width)
            copies[factor] = _surround(_resample(x, rows, columns), height, width, self.canvas)
        return copies

    def _draw_factors(self) -> tuple[float, ...]:
        """Return the factors of one training step."""
        if not self.dropout:
            return self.train_factors
        (kept,) = draw_channels(1, len(self.train_factors), self.dropout).tolist()
        return tuple(itertools.compress(self.train_factors, kept))


REFUSALS = (RuntimeError, ValueError, AssertionError)
"""What a network may raise that cannot take an image of some size."""


class ScaleChannels(nn.Module):
    """`[N, C, H, W] -> [N, K]`: any classifier, asked at several sizes of the image.

    The weights are shared, so that an object that has changed its size looks, in another
    channel, as it did before. In training most channels sit out each step: every channel then
    has to classify by itself, at all the sizes that the factors make of the training images.

    Args:
        backbone: Maps `[N, C, h, w]` to logits `[N, K]` for every size that a factor gives.
        factors: Sizes of the copies that are asked, relative to the image.
        train_factors: Sizes of the copies that are trained, if they are to be others: with
            smaller ones, the backbone learns when an object is too small to tell.
        pool: How the channels are combined; see `pool_channels`.
        dropout: Probability with which a channel sits out a training step.
        interpolation: How images are resized.
        blur: As for `ImagePyramid`.
        canvas: As for `ImagePyramid`. On one, a reduced object is surrounded as a small object
            is by its background, so that statistics and borders are those that training showed.

    Examples:
        >>> backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> ScaleChannels(backbone, factors=(0.5, 1.0))(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        backbone: nn.Module,
        factors: Sequence[float],
        train_factors: Sequence[float] | None = None,
        pool: ChannelPool = "mixture",
        dropout: float = 0.0,
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
        canvas: Canvas = "none",
    ) -> None:
        super().__init__()
        check_channel_pool(pool)
        if not isinstance(backbone, nn.Module):
            raise OptionError(f"the backbone must be a torch.nn.Module, got {backbone!r}")
        self.backbone = backbone
        self.pyramid = ImagePyramid(factors, train_factors, dropout, interpolation, blur, canvas)
        self.pool: ChannelPool = pool

    def extra_repr(self) -> str:
        """Show the pooling."""
        return f"pool={self.pool}"

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, K]`."""
        return pool_channels(self.channel_logits(x), self.pool)

    def channel_logits(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, S, K]`: what each channel says by itself."""
        answers = []
        for factor, copy in self.pyramid(x).items():
            try:
                logits = self.backbone(copy)
            except REFUSALS as error:
                if isinstance(error, torch.OutOfMemoryError) or not self._takes(x):
                    raise
                height, width = copy.shape[2:]
                raise ShapeError(
                    f"the backbone takes the image but not a copy of {height}×{width} pixels "
                    f"(factor {factor:.3g}): {error}. Leave such copies out, in factors and "
                    "train_factors; a network for images of one size can be asked at factors of "
                    'at most 1, on a canvas (canvas="replicate")'
                ) from error
            _check_logits(logits, copy)
            answers.append(logits)
        return torch.stack(answers, dim=1)

    def _takes(self, x: Tensor) -> bool:
        """Whether the backbone has an answer to the images as they are."""
        try:
            with torch.no_grad():
                self.backbone(x)
        except REFUSALS:
            return False
        return True


def _check_logits(logits: object, copy: Tensor) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != copy.shape[0]:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ShapeError(f"the backbone must return logits [{copy.shape[0]}, K], got {found}")


def _check_factors(name: str, factors: Sequence[float]) -> tuple[float, ...]:
    check_numbers(name, factors)
    numbers = tuple(float(factor) for factor in factors)
    different = {f"{factor:.3g}" for factor in numbers}  # as maps of channels are named
    if not all(factor > 0 for factor in numbers) or len(different) < len(numbers):
        raise OptionError(
            f"{name} must be positive numbers that differ in three digits, got {factors!r}"
        )
    return numbers


def _check_blur(blur: object) -> None:
    if isinstance(blur, bool) or not isinstance(blur, (int, float)) or not 0 <= blur < math.inf:
        raise OptionError(f"blur must be a number of pixels, at least 0, got {blur!r}")


def scale_channels(
    backbone: nn.Module,
    factors: Sequence[float] = FACTORS,
    train_factors: Sequence[float] | None = None,
    pool: ChannelPool = "mixture",
    dropout: float = DROPOUT,
    interpolation: Interpolation = "bicubic",
    blur: float = 0.0,
    canvas: Canvas = "replicate",
) -> ScaleChannels:
    """Wrap a classifier so that it keeps its accuracy when objects change their size.

    The defaults suit objects that measure between a quarter and the whole of the image; see
    `ScaleChannels` for what the arguments mean. The wrapped network is trained and used like
    the original one. Reduced copies stand on a canvas of the size of the image; a network for
    images of one size needs factors of at most 1, because copies may be enlarged. What it
    returns are log-probabilities, unless `pool` is another: one of two or more classes is right.

    Examples:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> robust = scale_channels(network)
        >>> robust.eval()(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 8])
    """
    return ScaleChannels(
        backbone, factors, train_factors, pool, dropout, interpolation, blur, canvas
    )

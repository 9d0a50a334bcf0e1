"""Scale channels: one network with shared weights, run on rescaled views of the image.

The answers of the views are pooled. `scale_channels(net)` and `ScaleChannels(net)` are the same.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers
from equiscale.core.registry import unknown_name_message
from equiscale.layers.precision import autocast_is_on, single, without_autocast
from equiscale.layers.scaled.kernel_scaling import (
    Interpolation,
    check_interpolation,
    resampling_matrix,
)
from equiscale.layers.wrapping import Wrapper

if TYPE_CHECKING:
    from equiscale.layers.random_views import RandomViews

Canvas = Literal["none", "zeros", "replicate"]
CANVASES: tuple[Canvas, ...] = get_args(Canvas)
ViewPool = Literal["vote", "mixture", "mean", "max", "logsumexp"]
VIEW_POOLS: tuple[ViewPool, ...] = get_args(ViewPool)


# --- Pooling --------------------------------------------------------------------------------------


def pool_views(logits: Tensor, mode: ViewPool, kept: Tensor | None = None) -> Tensor:
    """`[N, S, K] -> [N, K]`: pool the answers of S views.

    - `mixture`: the logarithm of the mean probability over views. An unsure view counts little,
      and no view can outvote the others by the height of its logits.
    - `vote`: the same, with each view weighted by the inverse of its perplexity: a view that
      hesitates between n classes has the n-th part of a vote.
    - `mean`, `max`: of the logits.
    - `logsumexp`: of the logits, minus log S, so that views that agree give what one of them gives.

    Mixture and vote return log-probabilities and need at least two classes. Half precision is
    pooled in float32.

    Args:
        logits: Answer of each view.
        mode: How to pool.
        kept: `[N, S]`, which views count; all by default, and at least one per sample.

    Examples:
        >>> pool_views(torch.tensor([[[0.0, 2.0], [1.0, 0.0]]]), "mean")
        tensor([[0.5000, 1.0000]])
        >>> sure, unsure = [4.0, 0.0], [0.0, 0.1]
        >>> pool_views(torch.tensor([[sure, unsure]]), "mixture").exp()
        tensor([[0.7285, 0.2715]])
        >>> pool_views(torch.tensor([[sure, unsure]]), "vote").exp()
        tensor([[0.8026, 0.1974]])
    """
    check_view_pool(mode)
    if mode in ("vote", "mixture") and logits.shape[2] == 1:
        raise ShapeError(
            f"pool={mode!r} mixes probabilities and needs at least two classes, got one logit per "
            'image: give the classifier one logit per class, or use pool="mean"'
        )
    pooled = _pool(single(logits), mode, kept)
    return pooled if autocast_is_on(logits) else pooled.to(logits.dtype)


def _pool(logits: Tensor, mode: ViewPool, kept: Tensor | None) -> Tensor:
    if mode == "mixture":
        return _pool(logits.log_softmax(dim=2), "logsumexp", kept)
    if kept is None:
        kept = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if mode == "vote":
        return _vote(logits.log_softmax(dim=2), kept)
    count, dropped = kept.sum(dim=1, keepdim=True), ~kept[:, :, None]
    if mode == "mean":
        return logits.masked_fill(dropped, 0).sum(dim=1) / count
    logits = logits.masked_fill(dropped, -math.inf)
    if mode == "max":
        return logits.max(dim=1).values
    return logits.logsumexp(dim=1) - count.to(logits.dtype).log()


def _vote(log_probabilities: Tensor, kept: Tensor) -> Tensor:
    """Mix probabilities, with each view weighted by the inverse of its perplexity."""
    finite = log_probabilities.clamp_min(torch.finfo(log_probabilities.dtype).min)
    negative_entropy = (log_probabilities.exp() * finite).sum(dim=2)
    log_weight = negative_entropy.masked_fill(~kept, -math.inf).log_softmax(dim=1)
    return (log_probabilities + log_weight[:, :, None]).logsumexp(dim=1)


def check_view_pool(mode: str) -> None:
    """Raise `OptionError` unless `mode` names a way to pool views."""
    if mode not in VIEW_POOLS:
        raise OptionError(unknown_name_message("pool", mode, VIEW_POOLS))


# --- Dropout of views -----------------------------------------------------------------------------


def check_dropout(dropout: object) -> None:
    """Raise `OptionError` unless the probability is a number from 0 to below 1."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise OptionError(f"dropout must be a number from 0 to below 1, got {dropout!r}")


def draw_views(num_samples: int, num_views: int, dropout: float) -> Tensor:
    """Return `[N, S]`: which views of which samples are kept; at least one per sample.

    Each is dropped with this probability. The numbers come from torch's global generator on the
    CPU, which a training loop seeds; their count does not depend on the outcome.
    """
    chances = torch.rand(num_samples, num_views)
    return (chances >= dropout) | (chances == chances.max(dim=1, keepdim=True).values)


def spread_views(logits: Sequence[Tensor], kept: Tensor) -> Tensor:
    """`S × [N_s, K], [N, S] -> [N, S, K]`: logits of the kept samples, and zeros elsewhere."""
    whole = logits[0].new_zeros(*kept.shape, logits[0].shape[1])
    for view, values in enumerate(logits):
        whole[kept[:, view], view] = values
    return whole


# --- Views ----------------------------------------------------------------------------------------


def scale_factors(smallest: float, largest: float, per_octave: int = 2) -> tuple[float, ...]:
    """Return all powers of 2^(1/per_octave) from `smallest` to `largest`, ascending.

    Args:
        smallest: Lower bound of the factors.
        largest: Upper bound of the factors.
        per_octave: Factors per doubling.

    Examples:
        >>> [round(factor, 3) for factor in scale_factors(0.5, 1.5)]
        [0.5, 0.707, 1.0, 1.414]
    """
    if not 0 < smallest <= largest < math.inf or per_octave < 1:
        raise OptionError(
            "scale_factors needs 0 < smallest <= largest and at least one factor per octave, got "
            f"{smallest}, {largest}, {per_octave}"
        )
    tolerance = 1e-9
    first = math.ceil(math.log2(smallest) * per_octave - tolerance)
    last = math.floor(math.log2(largest) * per_octave + tolerance)
    if last < first:
        raise OptionError(f"no power of 2^(1/{per_octave}) lies between {smallest} and {largest}")
    return tuple(2 ** (step / per_octave) for step in range(first, last + 1))


FACTORS = scale_factors(0.35, 1.42)
"""Two octaves, the range of object sizes in STIR."""

DROPOUT = 0.75
"""Of five views, one or two take part in a training step on average."""


def resize_images(
    images: Tensor, factor: float, interpolation: Interpolation = "bicubic", blur: float = 0.0
) -> Tensor:
    """`[N, C, H, W] -> [N, C, round(H·factor), round(W·factor)]`, antialiased when it shrinks.

    The values are those of `torch.nn.functional.interpolate`, with `antialias=True` when it
    shrinks, computed as two matrix products, which can be differentiated and exported.

    Args:
        images: Images of any height and width.
        factor: New side over old side.
        interpolation: As for kernels.
        blur: Standard deviation of a Gaussian filter applied afterwards, in new pixels.

    Examples:
        >>> resize_images(torch.zeros(2, 3, 64, 48), 0.5).shape
        torch.Size([2, 3, 32, 24])
    """
    ((rows, columns),) = _resizing_matrices(*images.shape[2:], (factor,), interpolation, blur)
    return apply_matrices(images, rows, columns)


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


def apply_matrices(images: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """`[N, C, H, W] -> [N, C, h, w]`: apply matrices to columns and rows, in float32 at least."""
    with without_autocast(images):
        resized = single(images)
        if rows is not None:
            resized = rows.to(resized) @ resized
        if columns is not None:
            resized = resized @ columns.to(resized).mT
    return resized.to(images.dtype)


def check_images(x: Tensor) -> None:
    """Raise `ShapeError` unless these are images of which views can be made."""
    if x.ndim != 4 or not x.is_floating_point():
        raise ShapeError(
            "views need images [N, C, H, W] of floating-point numbers, got "
            f"{list(x.shape)} of {x.dtype}"
        )


def _crop(matrix: Tensor | None, size: int) -> Tensor | None:
    """Return `size` consecutive rows of a resizing matrix, from a random one on."""
    if matrix is None or len(matrix) <= size:
        return matrix
    first = int(torch.randint(len(matrix) - size + 1, ()))
    return matrix[first : first + size]


def _surround(view: Tensor, height: int, width: int, canvas: Canvas) -> Tensor:
    """Put a view in the middle of a canvas of at least this size."""
    down, across = max(0, height - view.shape[2]), max(0, width - view.shape[3])
    if canvas == "none" or not (down or across):
        return view
    margins = (across // 2, across - across // 2, down // 2, down - down // 2)
    return F.pad(view, margins, mode="constant" if canvas == "zeros" else "replicate")


class RescaledViews(nn.Module):
    """`[N, C, H, W] -> {factor: [N, C, H·factor, W·factor]}`: rescaled views of images.

    On a canvas, reduced views are `[N, C, H, W]`. In training, views can be dropped from each step,
    and views larger than any used in evaluation are cropped to the size of the image, at a random
    place in each step.

    Args:
        factors: Sizes of the views, relative to the image.
        train_factors: Sizes of the views in training; None takes `factors`.
        dropout: Probability of dropping a view from a training step; at least one is kept.
        interpolation: How images are resized.
        blur: Standard deviation of a Gaussian filter in each view's own pixels, 0 for none. From
            about 1 on, enlarged and reduced views are equally sharp.
        canvas: What surrounds reduced views up to the size of the image: nothing (`"none"`),
            `"zeros"`, or their border pixels repeated (`"replicate"`).

    Examples:
        >>> views = RescaledViews((0.5, 1.0), canvas="none").eval()(torch.zeros(1, 1, 64, 64))
        >>> {factor: view.shape[2] for factor, view in views.items()}
        {0.5: 32, 1.0: 64}
    """

    def __init__(
        self,
        factors: Sequence[float] = FACTORS,
        train_factors: Sequence[float] | None = None,
        dropout: float = DROPOUT,
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
        canvas: Canvas = "replicate",
    ) -> None:
        super().__init__()
        self.factors = check_factors("factors", factors)
        self.train_factors = (
            self.factors if train_factors is None else check_factors("train_factors", train_factors)
        )
        check_dropout(dropout)
        _check_blur(blur)
        check_interpolation(interpolation)
        if canvas not in CANVASES:
            raise OptionError(unknown_name_message("canvas", canvas, CANVASES))
        self.dropout = dropout
        self.interpolation: Interpolation = interpolation
        self.blur = blur
        self.canvas: Canvas = canvas

    def extra_repr(self) -> str:
        """Show the factors, the dropout and the canvas."""
        factors = ", ".join(f"{factor:.3g}" for factor in self.factors)
        return f"factors=({factors}), dropout={self.dropout:g}, canvas={self.canvas!r}"

    def forward(self, x: Tensor) -> dict[float, Tensor]:
        """`[N, C, H, W] -> {factor: view}`; in training, the views of one step."""
        return self.make(x, self._draw_factors() if self.training else self.factors)

    def make(self, x: Tensor, factors: Sequence[float]) -> dict[float, Tensor]:
        """`[N, C, H, W] -> {factor: view}` for these factors."""
        check_images(x)
        height, width = map(operator.index, x.shape[2:])  # numbers to a compiler, not symbols
        matrices = _resizing_matrices(height, width, tuple(factors), self.interpolation, self.blur)
        views = {}
        for factor, (rows, columns) in zip(factors, matrices, strict=True):
            if factor > max(self.factors):
                rows, columns = _crop(rows, height), _crop(columns, width)
            views[factor] = _surround(apply_matrices(x, rows, columns), height, width, self.canvas)
        return views

    def _draw_factors(self) -> tuple[float, ...]:
        """Return the factors of one training step."""
        if not self.dropout:
            return self.train_factors
        (kept,) = draw_views(1, len(self.train_factors), self.dropout).tolist()
        return tuple(itertools.compress(self.train_factors, kept))


def check_factors(name: str, factors: Sequence[float]) -> tuple[float, ...]:
    """Return factors as numbers; raise `OptionError` unless they are positive and different."""
    check_numbers(name, factors)
    numbers = tuple(float(factor) for factor in factors)
    different = {f"{factor:.3g}" for factor in numbers}  # as in names of stages
    if not all(factor > 0 for factor in numbers) or len(different) < len(numbers):
        raise OptionError(
            f"{name} must be positive numbers that differ in three digits, got {factors!r}"
        )
    return numbers


def _check_blur(blur: object) -> None:
    if isinstance(blur, bool) or not isinstance(blur, (int, float)) or not 0 <= blur < math.inf:
        raise OptionError(f"blur must be a number of pixels, at least 0, got {blur!r}")


# --- The wrapper ----------------------------------------------------------------------------------

REFUSALS = (RuntimeError, ValueError, AssertionError)
"""What a network may raise if it cannot take an image of some size."""


class ScaleChannels(Wrapper):
    """`[N, C, H, W] -> [N, K]`: any classifier, run on several rescaled views of the image.

    The weights are shared, so an object that changes its size looks the same in another view. In
    training most views are dropped from each step: the network then learns to classify each view
    by itself, at all sizes that the factors make of the training images.

    The output is log-probabilities of K ≥ 2 classes with `pool="mixture"` or `"vote"`, and pooled
    logits otherwise. Train it with cross-entropy like the network itself. If the backbone has no
    classifier (its `num_classes` is 0), the output is the mean of the views' features.

    The default factors suit objects from a quarter to the whole of the image. Reduced views stand
    on a canvas of the size of the image, so that an object is surrounded by background as a small
    object is. A network for images of one size needs factors of at most 1. To find small objects
    with a trained network, without training it again, use `ObjectSearch`.

    The checkpoint is that of the backbone: see `Wrapper`.

    Args:
        backbone: Maps views `[N, C, h, w]` to logits `[N, K]`.
        factors: Sizes of the views, relative to the image.
        train_factors: Sizes of the views in training; None takes `factors`.
        pool: How answers are pooled, see `pool_views`.
        dropout: Probability of dropping a view from a training step.
        interpolation: How images are resized.
        blur: As for `RescaledViews`.
        canvas: As for `RescaledViews`.
        train_views: Random views to train with, bilinear and surrounded by the repeated border.
            `dropout` then has no meaning, and `interpolation`, `blur` and `canvas` only at
            inference. They are meant for photos, with `pool="logsumexp"`.

    Raises:
        OptionError: An option does not exist or has no meaning.
        ShapeError: In a call: the images are not `[N, C, H, W]`, the backbone does not return
            logits, or it takes the image but not one of its views.

    Examples:
        >>> backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> ScaleChannels(backbone).eval()(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        backbone: nn.Module,
        factors: Sequence[float] = FACTORS,
        train_factors: Sequence[float] | None = None,
        pool: ViewPool = "mixture",
        dropout: float = DROPOUT,
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
        canvas: Canvas = "replicate",
        train_views: RandomViews | None = None,
    ) -> None:
        super().__init__(backbone)
        check_view_pool(pool)
        if train_views is not None and train_factors is not None:
            raise OptionError("either train_factors or train_views: both say how to train")
        self.views = RescaledViews(factors, train_factors, dropout, interpolation, blur, canvas)
        self.train_views = train_views
        self.pool: ViewPool = pool

    def extra_repr(self) -> str:
        """Show the pooling."""
        return f"pool={self.pool!r}"

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, K]`."""
        has_classes = getattr(self.backbone, "num_classes", None) != 0
        return pool_views(self.view_logits(x), self.pool if has_classes else "mean")

    def view_logits(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, S, K]`: the answer of each view.

        At inference, views of one size are one batch. In training each view is its own, as batch
        normalisation would mix their statistics; random views are one batch, as they should mix.
        """
        if self.training and self.train_views is not None:
            logits = self._run(self.train_views(x), [1.0], x)
            return logits.unflatten(0, (self.train_views.draws, len(x))).transpose(0, 1)
        views = self.views(x)
        groups: dict[object, list[float]] = {}
        for factor, view in views.items():
            size = tuple(map(operator.index, view.shape[2:]))
            groups.setdefault(factor if self.training else size, []).append(factor)
        answers: dict[float, Tensor] = {}
        for factors in groups.values():
            logits = self._run(torch.cat([views[factor] for factor in factors]), factors, x)
            per_view = logits.unflatten(0, (len(factors), -1)).unbind()
            answers.update(zip(factors, per_view, strict=True))
        return torch.stack([answers[factor] for factor in views], dim=1)

    def _run(self, views: Tensor, factors: list[float], x: Tensor) -> Tensor:
        try:
            logits = self.backbone(views)
        except REFUSALS as error:
            if isinstance(error, torch.OutOfMemoryError) or not self._takes(x):
                raise
            height, width = views.shape[2:]
            raise ShapeError(
                f"the backbone takes the image but not its view of {height}×{width} pixels "
                f"(factor {factors[0]:.3g}): {error}. Remove such factors from factors and "
                "train_factors; a network for images of one size needs factors of at most 1 "
                'and a canvas (canvas="replicate")'
            ) from error
        check_logits(logits, views)
        return logits

    def _takes(self, x: Tensor) -> bool:
        """Whether the backbone takes the images as they are."""
        try:
            with torch.no_grad():
                self.backbone(x)
        except REFUSALS:
            return False
        return True


def check_logits(logits: object, view: Tensor) -> None:
    """Raise `ShapeError` unless the logits of a batch are `[N, K]`."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != view.shape[0]:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ShapeError(f"the backbone must return logits [{view.shape[0]}, K], got {found}")


def scale_channels(backbone: nn.Module, **options: Any) -> ScaleChannels:  # noqa: ANN401
    """Wrap a classifier so that it keeps its accuracy when objects change their size.

    The function form of `ScaleChannels`, with the same options, defaults and output.

    Examples:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> robust = scale_channels(network, dropout=0.5)
        >>> robust.eval()(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 8])
    """
    return ScaleChannels(backbone, **options)

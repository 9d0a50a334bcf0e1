"""Accuracy by object size, and the range of sizes at which a classifier can be used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers


class SizeAccuracy(NamedTuple):
    """Accuracy at each object size.

    Attributes:
        sizes: `[S]`, ascending.
        accuracy: `[S]`, float64 in [0, 1].
        counts: `[S]`, number of images, int64.
    """

    sizes: Tensor
    accuracy: Tensor
    counts: Tensor


class BucketAccuracy(NamedTuple):
    """Accuracy in each bucket of object sizes.

    Attributes:
        accuracy: `[B]`, float64 in [0, 1]; NaN in an empty bucket.
        counts: `[B]`, number of images, int64.
    """

    accuracy: Tensor
    counts: Tensor


def accuracy_by_size(predictions: Tensor, labels: Tensor, object_sizes: Tensor) -> SizeAccuracy:
    """Return the accuracy at each object size.

    Args:
        predictions: `[N]` classes, or `[N, K]` logits.
        labels: `[N]` true classes.
        object_sizes: `[N]` object sizes in pixels.

    Examples:
        >>> predictions = torch.tensor([0, 1, 1, 0])
        >>> labels = torch.tensor([0, 1, 0, 1])
        >>> object_sizes = torch.tensor([48, 32, 32, 64])
        >>> result = accuracy_by_size(predictions, labels, object_sizes)
        >>> dict(zip(result.sizes.tolist(), result.accuracy.tolist()))
        {32: 0.5, 48: 1.0, 64: 0.0}
    """
    hits = correct(predictions, labels, object_sizes)
    sizes, index = object_sizes.unique(return_inverse=True)
    counts, right = count_hits(hits, index, len(sizes))
    return SizeAccuracy(sizes, right / counts.double(), counts)


def accuracy_by_bucket(
    predictions: Tensor, labels: Tensor, object_sizes: Tensor, edges: Sequence[float]
) -> BucketAccuracy:
    """Return the accuracy in buckets of object sizes.

    Args:
        predictions: `[N]` classes, or `[N, K]` logits.
        labels: `[N]` true classes.
        object_sizes: `[N]` object sizes in pixels.
        edges: Ascending sizes at which a new bucket begins. `(32, 96)` makes three buckets:
            below 32, from 32 to below 96, and from 96.

    Examples:
        >>> predictions, labels = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 1])
        >>> accuracy_by_bucket(predictions, labels, torch.tensor([48, 32, 31, 8]), (32, 96))[0]
        tensor([0., 1., nan], dtype=torch.float64)
    """
    hits = correct(predictions, labels, object_sizes)
    index = bucket_index(object_sizes, edges)
    counts, right = count_hits(hits, index, len(edges) + 1)
    return BucketAccuracy(right / counts.double(), counts)


def check_keep(keep: float) -> None:
    """Raise `OptionError` unless `keep` is a share above 0."""
    if not 0 < keep <= 1:
        raise OptionError(f"keep must lie in (0, 1], got {keep}")


def usable_range(sizes: Tensor, accuracy: Tensor, keep: float = 0.95) -> tuple[float, float]:
    """Return the smallest and the largest object size of the usable range.

    The usable range holds the best size and its neighbours, as far as the accuracy stays at
    `keep` times the best or above. If several sizes are best, the widest range counts, and of
    equally wide ones that of the largest sizes.

    Args:
        sizes: `[S]` object sizes in any order.
        accuracy: `[S]` accuracy at each size. Sizes with NaN (no images) are ignored.
        keep: Share of the best accuracy, in (0, 1].

    Returns:
        Smallest and largest size; both NaN if the accuracy is nowhere above 0.

    Examples:
        >>> sizes = torch.tensor([16, 24, 32, 40, 48])
        >>> usable_range(sizes, torch.tensor([0.99, 0.6, 0.97, 1.0, 0.96]))
        (32, 48)
    """
    check_keep(keep)
    measured = sorted(
        (size, value)
        for size, value in zip(sizes.tolist(), accuracy.tolist(), strict=True)
        if not math.isnan(value)
    )
    best = max((value for _, value in measured), default=0)
    if best <= 0:
        return math.nan, math.nan
    ranges: list[list[tuple[float, float]]] = [[]]
    for size, value in measured:
        if value >= keep * best - 1e-12:  # 0.95 · 0.8 rounds to more than 19/25
            ranges[-1].append((size, value))
        else:
            ranges.append([])
    with_best = [found for found in ranges if any(value == best for _, value in found)]
    ends = [(found[0][0], found[-1][0]) for found in with_best]
    return max(ends, key=lambda end: (end[1] - end[0], end[1]))


def correct(predictions: Tensor, labels: Tensor, object_sizes: Tensor) -> Tensor:
    """`[N] or [N, K], [N], [N] -> [N]`: whether each prediction is right."""
    if predictions.ndim == 2:
        predictions = predictions.argmax(dim=1)
    if not predictions.shape == labels.shape == object_sizes.shape or labels.ndim != 1:
        raise ShapeError(
            "expected predictions [N] or logits [N, K], labels [N] and object_sizes [N], got "
            f"{list(predictions.shape)}, {list(labels.shape)} and {list(object_sizes.shape)}"
        )
    return predictions == labels


def bucket_index(object_sizes: Tensor, edges: Sequence[float]) -> Tensor:
    """`[N] -> [N]`: the bucket of each object size."""
    check_edges(edges)
    if object_sizes.isnan().any():
        raise OptionError("object sizes must be numbers, got NaN")
    boundaries = torch.tensor(list(edges), dtype=torch.float32, device=object_sizes.device)
    return torch.bucketize(object_sizes.float(), boundaries, right=True)


def check_edges(edges: Sequence[float]) -> None:
    """Raise `OptionError` unless the edges are ascending numbers, at least one."""
    check_numbers("edges", edges)
    if list(edges) != sorted(set(edges)):
        raise OptionError(f"edges must be ascending, got {tuple(edges)}")


def count_hits(hits: Tensor, index: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """`[N], [N] -> [length], [length]`: images, and images recognised, at each index."""
    return (
        torch.bincount(index, minlength=length),
        torch.bincount(index[hits], minlength=length),
    )

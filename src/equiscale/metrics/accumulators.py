"""Metrics that accumulate over batches and processes, for any training loop.

`compute` returns a dictionary of scalars, as `LightningModule.log_dict` takes it. The classes take
the options of `torchmetrics.Metric`, such as `sync_on_compute`, if it is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.options import check_positive
from equiscale.metrics.accuracy import (
    bucket_index,
    check_edges,
    check_keep,
    correct,
    count_hits,
    usable_range,
)
from equiscale.metrics.equivariance import equivariance_error

if TYPE_CHECKING:
    from equiscale.metrics.plain import Metric
else:
    try:
        from torchmetrics import Metric
    except ImportError:
        from equiscale.metrics.plain import Metric


class _HitCounts(Metric):
    """Counts images and hits at each of `length` indices."""

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    counts: Tensor
    hits: Tensor

    def __init__(self, length: int, **options: Any) -> None:  # noqa: ANN401 - those of torchmetrics
        super().__init__(**options)
        self.add_state("counts", torch.zeros(length, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("hits", torch.zeros(length, dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, hits: Tensor, index: Tensor) -> None:
        counts, right = count_hits(hits, index, len(self.counts))
        self.counts += counts
        self.hits += right


class AccuracyByBucket(_HitCounts):
    """Accuracy in buckets of object sizes; see `accuracy_by_bucket`.

    `compute` returns, for the edges `(32, 96)`, `accuracy_below_32`, `accuracy_32_to_96` (96 not
    included) and `accuracy_from_96`. Empty buckets are NaN.

    Args:
        edges: Ascending sizes at which a new bucket begins.

    Examples:
        >>> metric = AccuracyByBucket(edges=[32])
        >>> labels, object_sizes = torch.tensor([0, 1, 1]), torch.tensor([20, 30, 40])
        >>> metric.update(torch.tensor([0, 0, 1]), labels, object_sizes)
        >>> metric.compute()
        {'accuracy_below_32': tensor(0.5000), 'accuracy_from_32': tensor(1.)}
    """

    def __init__(self, edges: Sequence[float], **options: Any) -> None:  # noqa: ANN401
        check_edges(edges)
        super().__init__(len(edges) + 1, **options)
        self.edges = tuple(edges)
        # MetricCollection merges metrics whose states are equal after one batch: these differ.
        bounds = torch.tensor(self.edges, dtype=torch.float32)
        self.add_state("bounds", bounds, dist_reduce_fx="max")

    def update(self, predictions: Tensor, labels: Tensor, object_sizes: Tensor) -> None:
        """Add a batch: `[N]` classes or `[N, K]` logits, `[N]` labels, `[N]` object sizes."""
        hits = correct(predictions, labels, object_sizes)
        self._add(hits, bucket_index(object_sizes, self.edges))

    def compute(self) -> dict[str, Tensor]:
        """Return the accuracy in each bucket."""
        inner = [f"{low:g}_to_{high:g}" for low, high in pairwise(self.edges)]
        names = [f"below_{self.edges[0]:g}", *inner, f"from_{self.edges[-1]:g}"]
        accuracy = self.hits / self.counts
        return {f"accuracy_{name}": value for name, value in zip(names, accuracy, strict=True)}


class UsableRange(_HitCounts):
    """The range of object sizes that keeps most of the best accuracy; see `usable_range`.

    `compute` returns `usable_from` and `usable_to`, in pixels, and `best_accuracy`.

    Args:
        max_size: Largest object size in pixels, such as the side of the canvas. Object sizes
            are rounded to whole pixels.
        keep: Share of the best accuracy, in (0, 1].

    Examples:
        >>> metric = UsableRange(max_size=64)
        >>> labels, object_sizes = torch.tensor([0, 1, 1]), torch.tensor([20, 30, 40])
        >>> metric.update(torch.tensor([1, 1, 1]), labels, object_sizes)
        >>> metric.compute()
        {'usable_from': tensor(30.), 'usable_to': tensor(40.), 'best_accuracy': tensor(1.)}
    """

    def __init__(self, max_size: int, keep: float = 0.95, **options: Any) -> None:  # noqa: ANN401
        check_positive(max_size=max_size)
        check_keep(keep)
        super().__init__(max_size + 1, **options)
        self.keep = keep

    def update(self, predictions: Tensor, labels: Tensor, object_sizes: Tensor) -> None:
        """Add a batch: `[N]` classes or `[N, K]` logits, `[N]` labels, `[N]` object sizes."""
        hits = correct(predictions, labels, object_sizes)
        index = object_sizes.round().long() if object_sizes.is_floating_point() else object_sizes
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(self.counts):
            raise OptionError(
                f"object sizes must lie in 0…{len(self.counts) - 1} (max_size), "
                f"got {int(index.min())}…{int(index.max())}"
            )
        self._add(hits, index)

    def compute(self) -> dict[str, Tensor]:
        """Return both ends of the usable range and the best accuracy."""
        counts, hits = self.counts.cpu().double(), self.hits.cpu().double()
        sizes = counts.nonzero().flatten()
        accuracy = hits[sizes] / counts[sizes]
        first, last = usable_range(sizes, accuracy, self.keep)
        best = accuracy.max().item() if len(sizes) else float("nan")
        values = {"usable_from": first, "usable_to": last, "best_accuracy": best}
        return {name: self.counts.new_tensor(v, dtype=torch.float32) for name, v in values.items()}


class EquivarianceError(Metric):
    """Mean equivariance error over objects; see `equivariance_error`.

    `compute` returns `equivariance_error`, the mean over the objects for which it is finite (NaN
    if there is none), and `equivariance_undefined`, the number of other objects.

    Examples:
        >>> metric = EquivarianceError()
        >>> maps = torch.rand(2, 3, 5, 5)
        >>> metric.update(maps, 2 * maps)
        >>> metric.compute()["equivariance_error"]
        tensor(0.2500)
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    total: Tensor
    counts: Tensor

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of torchmetrics
        super().__init__(**options)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        maps_a: Tensor,
        maps_b: Tensor,
        boxes_a: Tensor | None = None,
        boxes_b: Tensor | None = None,
        canvas: int | None = None,
    ) -> None:
        """Add a batch of feature maps; the arguments are those of `equivariance_error`."""
        errors = equivariance_error(maps_a.detach(), maps_b.detach(), boxes_a, boxes_b, canvas)
        finite = errors.isfinite()
        self.total += errors[finite].sum()
        self.counts += torch.stack([finite.sum(), (~finite).sum()])

    def compute(self) -> dict[str, Tensor]:
        """Return the mean error and the number of objects without one."""
        finite, undefined = self.counts
        return {
            "equivariance_error": (self.total / finite).float(),
            "equivariance_undefined": undefined,
        }

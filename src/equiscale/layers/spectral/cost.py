"""How much arithmetic each way takes, in multiply-adds."""

from __future__ import annotations

from torch import Tensor

from equiscale.layers.spectral.plan import Plan


def forward_cost(plan: Plan, x: Tensor, weight: Tensor) -> int:
    """Multiply-adds of all kernel spectra, products and inverse transforms."""
    U, V = plan.rows.num_frequencies, plan.columns.num_frequencies
    O, C, k = weight.shape[:3]
    N = x.shape[0]
    per_scale = 4 * U * V * O * C * k + 8 * U * V * N * O * C
    inverses = (_inverse_cost(plan, index) for index in range(plan.num_scales))
    return plan.num_scales * per_scale + N * O * sum(inverses)


def dense_backward_cost(plan: Plan, x: Tensor, weight: Tensor, input_wanted: bool) -> int:
    """Multiply-adds of the transposed steps."""
    return forward_cost(plan, x, weight) * (2 if input_wanted else 1)


def sparse_backward_cost(x: Tensor, weight: Tensor, places: int, input_wanted: bool) -> int:
    """Multiply-adds of visiting so many pixels."""
    C, k = weight.shape[1:3]
    H, W = x.shape[2:]
    return places * C * k * W * (H + k) * (2 if input_wanted else 1)


def _inverse_cost(plan: Plan, scale_index: int) -> int:
    U, V = plan.rows.num_frequencies, plan.columns.num_frequencies
    h, w = plan.halves(scale_index)
    return 4 * h * V * (U + w)

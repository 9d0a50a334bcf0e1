"""The spectral method as custom operators of torch, forward and backward.

They are opaque to the compiler, because their work depends on the data: which scales win, and how
many pixels have a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.layers.scaled.geometry import Frame
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.spectral.adjoint import (
    Gradients,
    pixel_backward,
    slice_backward,
    stack_backward,
)
from equiscale.layers.scaled.spectral.analysis import make_problem
from equiscale.layers.scaled.spectral.cost import dense_backward_cost, sparse_backward_cost
from equiscale.layers.scaled.spectral.energy import winning_scales
from equiscale.layers.scaled.spectral.plan import Plan, make_plan
from equiscale.layers.scaled.spectral.pooling import (
    energy_forward,
    global_forward,
    pixel_forward,
    slice_forward,
    stack_forward,
)
from equiscale.layers.scaled.spectral.sparse import sparse_backward

NO_POOL = "none"


class Settings(NamedTuple):
    """Arguments of an operator besides its tensors, in types that its schema supports.

    Attributes:
        kernel_sizes: Sides of the rescaled kernels.
        output_size: See `Frame.output_size`; empty for None.
        zero_extended: See `Frame.zero_extended`.
        interpolation: How kernels are rescaled.
        groups: Number of groups.
        pool: a `PoolMode` or `"none"`.
    """

    kernel_sizes: Sequence[int]
    output_size: Sequence[int]
    zero_extended: bool
    interpolation: Interpolation
    groups: int
    pool: str

    def plan(self, x: Tensor, weight: Tensor) -> Plan:
        """Return the constants for an input and a weight."""
        cut = (self.output_size[0], self.output_size[1]) if self.output_size else None
        frame = Frame((x.shape[2], x.shape[3]), cut, self.zero_extended)
        sizes = tuple(self.kernel_sizes)
        return make_plan(frame, weight.shape[-1], sizes, self.interpolation, x.dtype, x.device)

    def aligned_size(self, x: Tensor) -> tuple[int, int]:
        """Return height and width of the aligned maps."""
        if self.output_size:
            return self.output_size[0], self.output_size[1]
        lost = self.kernel_sizes[0] - 1
        return x.shape[2] - lost, x.shape[3] - lost


def spectral_operator(
    x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, track: bool
) -> tuple[Tensor, Tensor]:
    """Apply the operator: `[N, C, H, W] -> [N, O, (S,) H', W']` and the chosen scale indices.

    Global pooling returns `[N, O]` and flat indices into `[S, H', W']`.

    Args:
        x: Input.
        weight: `[O, C/G, k, k]`.
        bias: `[O]` or None.
        settings: Everything else.
        track: Whether the indices are needed, by the caller or for a gradient. They are empty
            otherwise, and always without pooling.
    """
    values, choice = torch.ops.equiscale.spectral_forward(x, weight, bias, *settings, track)
    return values, choice


@torch.library.custom_op("equiscale::spectral_forward", mutates_args=())
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_sizes: Sequence[int],
    output_size: Sequence[int],
    zero_extended: bool,
    interpolation: str,
    groups: int,
    pool: str,
    track: bool,
) -> tuple[Tensor, Tensor]:
    settings = Settings(kernel_sizes, output_size, zero_extended, interpolation, groups, pool)  # type: ignore[arg-type]
    with torch.autocast(x.device.type, enabled=False):
        plan = settings.plan(x, weight)
        problem = make_problem(x, weight, plan, groups)
        choice: Tensor | None = None
        if pool == "pixel":
            values, choice = pixel_forward(problem, bias, track)
        elif pool == "global":
            values, choice = global_forward(problem, bias, track)
        elif pool == "slice":
            values, choice = slice_forward(problem, bias)
        elif pool in ("energy", "mean_energy"):
            winner = winning_scales(x, weight, bias, plan, groups, mean=pool == "mean_energy")
            values, choice = energy_forward(problem, bias, winner)
        else:
            values = stack_forward(problem, bias)
    dtype = _choice_type(pool)
    return values, x.new_empty(0, dtype=dtype) if choice is None else choice.to(dtype)


def _choice_type(pool: str) -> torch.dtype:
    """Positions in a stack need more bits than scale indices."""
    return torch.int64 if pool == "global" else torch.int16


@_forward.register_fake
def _forward_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any
) -> tuple[Tensor, Tensor]:
    *fields, track = arguments
    settings = Settings(*fields)
    N, O = x.shape[0], weight.shape[0]
    size = settings.aligned_size(x)
    value_shapes = {NO_POOL: (N, O, len(settings.kernel_sizes), *size), "global": (N, O)}
    choice_shapes = {NO_POOL: (0,), "pixel": (N, O, *size)}
    untracked = settings.pool in ("pixel", "global") and not track
    choice_shape = (0,) if untracked else choice_shapes.get(settings.pool, (N, O))
    return (
        x.new_empty(value_shapes.get(settings.pool, (N, O, *size))),
        x.new_empty(choice_shape, dtype=_choice_type(settings.pool)),
    )


@torch.library.custom_op("equiscale::spectral_backward", mutates_args=())
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    choice: Tensor,
    kernel_sizes: Sequence[int],
    output_size: Sequence[int],
    zero_extended: bool,
    interpolation: str,
    groups: int,
    pool: str,
    input_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    settings = Settings(kernel_sizes, output_size, zero_extended, interpolation, groups, pool)  # type: ignore[arg-type]
    with torch.autocast(x.device.type, enabled=False):
        plan = settings.plan(x, weight)
        if pool == "global":
            grad, choice = _at_places(grad, choice, plan)
            pool = "slice"
        grad = _inside(grad, choice, pool, plan)
        bias_grad = grad.sum(dim=[axis for axis in range(grad.ndim) if axis != 1])
        if _sparse_is_cheaper(grad, x, weight, plan, settings, input_wanted):
            everywhere = _per_pixel(choice, pool).expand_as(grad)
            x_grad, weight_grad = sparse_backward(x, weight, grad, everywhere, plan, input_wanted)
        else:
            gradients = Gradients(make_problem(x, weight, plan, groups), input_wanted)
            _add_dense(gradients, grad, choice, pool)
            x_grad, weight_grad = gradients.input(), gradients.weight()
    return x.new_empty(0) if x_grad is None else x_grad, weight_grad, bias_grad


def _add_dense(gradients: Gradients, grad: Tensor, choice: Tensor, pool: str) -> None:
    if pool == NO_POOL:
        stack_backward(gradients, grad)
    elif pool == "pixel":
        pixel_backward(gradients, grad, choice)
    else:
        slice_backward(gradients, grad, choice)


def _at_places(grad: Tensor, places: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """`[N, O] -> [N, O, H, W]`: put gradients at the maxima, and return their scale indices."""
    H, W = plan.output_size
    maps = grad.new_zeros(*grad.shape, H * W)
    maps.scatter_(2, (places % (H * W))[..., None], grad[..., None])
    return maps.unflatten(2, (H, W)), places // (H * W)


def _per_pixel(choice: Tensor, pool: str) -> Tensor:
    """Return scale indices that broadcast over pixels."""
    return choice if pool == "pixel" else choice[:, :, None, None]


def _inside(grad: Tensor, choice: Tensor, pool: str, plan: Plan) -> Tensor:
    """Drop gradients of the zeros around the smaller maps."""
    if pool == NO_POOL:
        indices = torch.arange(plan.num_scales, device=grad.device)[:, None, None]
    else:
        indices = _per_pixel(choice, pool)
    return torch.where(plan.scales_per_pixel(grad) > indices, grad, 0.0)


def _sparse_is_cheaper(
    grad: Tensor, x: Tensor, weight: Tensor, plan: Plan, settings: Settings, input_wanted: bool
) -> bool:
    if settings.pool == NO_POOL or settings.groups > 1:
        return False
    places = int(grad.count_nonzero())
    sparse = sparse_backward_cost(x, weight, places, input_wanted)
    return sparse < dense_backward_cost(plan, x, weight, input_wanted)


@_backward.register_fake
def _backward_shapes(
    grad: Tensor, x: Tensor, weight: Tensor, choice: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    input_wanted = arguments[-1]
    x_grad = torch.empty_like(x) if input_wanted else x.new_empty(0)
    return x_grad, torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, *fields, _ = inputs
    ctx.settings = Settings(*fields)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, choice = ctx.saved_tensors
    input_wanted = ctx.needs_input_grad[0]
    x_grad, weight_grad, bias_grad = torch.ops.equiscale.spectral_backward(
        grad, x, weight, choice, *ctx.settings, input_wanted
    )
    without_gradient = (None,) * (len(Settings._fields) + 1)
    return (
        x_grad if input_wanted else None,
        weight_grad,
        bias_grad if ctx.needs_input_grad[2] else None,
        *without_gradient,
    )


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise OptionError("the spectral method has no second derivatives; use method='direct'")


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
_backward.register_autograd(_refuse)

"""The spectral method as operators that torch can differentiate, compile and run anywhere.

Two operators, forward and backward, opaque to `torch.compile`. Both run in the compiled library
where it can be used, and in PyTorch operations elsewhere. The backward pass visits single pixels if
few of them carry a gradient; otherwise it is the transpose of the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.layers.scaled.geometry import Frame
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.native import Library, load_library
from equiscale.layers.scaled.spectral.cost import dense_backward_cost, sparse_backward_cost
from equiscale.layers.scaled.spectral.energy import winning_scales
from equiscale.layers.scaled.spectral.plan import Plan, make_plan
from equiscale.layers.scaled.spectral.pooling import maps_backward, pool_maps
from equiscale.layers.scaled.spectral.sparse import (
    Places,
    nonzero_places,
    peak_places,
    sparse_backward,
)
from equiscale.layers.scaled.spectral.transforms import Problem, from_basis, to_basis

NO_POOL = "none"


class Settings(NamedTuple):
    """Arguments of an operator besides its tensors, in types that its schema knows.

    Attributes:
        kernel_sizes: Sides of the rescaled kernels.
        stride: Step between the pixels that are kept, down and across.
        output_size: See `Frame.output_size`; empty for None.
        zero_extended: See `Frame.zero_extended`.
        interpolation: How kernels are rescaled.
        groups: Number of groups.
        pool: a `PoolMode` or `"none"`.
    """

    kernel_sizes: Sequence[int]
    stride: Sequence[int]
    output_size: Sequence[int]
    zero_extended: bool
    interpolation: Interpolation
    groups: int
    pool: str

    def plan(self, x: Tensor, weight: Tensor) -> Plan:
        """Return the constants for an input and a weight."""
        cut = (self.output_size[0], self.output_size[1]) if self.output_size else None
        stride = self.stride[0], self.stride[1]
        frame = Frame((x.shape[2], x.shape[3]), cut, self.zero_extended, stride)
        sizes = tuple(self.kernel_sizes)
        return make_plan(frame, weight.shape[-1], sizes, self.interpolation, x.dtype, x.device)

    def result_size(self, x: Tensor) -> tuple[int, int]:
        """Return height and width of the maps that are kept."""
        lost, (down, across) = self.kernel_sizes[0] - 1, self.stride
        height, width = self.output_size or (x.shape[2] - lost, x.shape[3] - lost)
        return -(-height // down), -(-width // across)

    def shapes(
        self, x: Tensor, weight: Tensor, track: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of values and scale indices."""
        N, O, size = x.shape[0], weight.shape[0], self.result_size(x)
        values = {NO_POOL: (N, O, len(self.kernel_sizes), *size), "global": (N, O)}
        choices = {NO_POOL: (0,), "pixel": (N, O, *size)}
        untracked = self.pool in ("pixel", "global") and not track
        choice = (0,) if untracked else choices.get(self.pool, (N, O))
        return values.get(self.pool, (N, O, *size)), choice

    @property
    def choice_type(self) -> torch.dtype:
        """Of places in a whole stack there may be many, of scales there are few."""
        return torch.int64 if self.pool == "global" else torch.int16


def spectral_operator(
    x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, track: bool
) -> tuple[Tensor, Tensor]:
    """`[N, C, H, W] -> [N, O, (S,) H', W']` and the chosen scale indices.

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


def _library_for(x: Tensor, weight: Tensor, groups: int) -> Library | None:
    """Return the library if it can convolve such an input, and fast."""
    library = load_library()
    if library is None or not library.is_suitable(x, weight.shape[0] // groups):
        return None
    return library


@torch.library.custom_op("equiscale::spectral_forward", mutates_args=())
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel_sizes: Sequence[int],
    stride: Sequence[int],
    output_size: Sequence[int],
    zero_extended: bool,
    interpolation: str,
    groups: int,
    pool: str,
    track: bool,
) -> tuple[Tensor, Tensor]:
    how: Any = interpolation
    settings = Settings(kernel_sizes, stride, output_size, zero_extended, how, groups, pool)
    plan = settings.plan(x, weight)
    library = _library_for(x, weight, groups)
    shape, choice_shape = settings.shapes(x, weight, track)
    if library is None:
        values, indices = pool_maps(Problem.make(x, weight, plan, groups), bias, pool)
        if choice_shape == (0,):
            indices = indices.new_empty(0)
        return values, indices.to(settings.choice_type)
    values = x.new_zeros(shape) if pool == NO_POOL else x.new_empty(shape)
    choice = x.new_empty(choice_shape, dtype=settings.choice_type)
    if pool in ("energy", "mean_energy"):
        choice.copy_(winning_scales(x, weight, bias, plan, groups, mean=pool == "mean_energy"))
        pool = "chosen"
    if bias is not None:
        bias = bias.contiguous()
    library.forward(x, to_basis(weight, plan, groups), bias, plan, pool, values, choice)
    return values, choice


@_forward.register_fake
def _forward_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any
) -> tuple[Tensor, Tensor]:
    *fields, track = arguments
    settings = Settings(*fields)
    values, choice = settings.shapes(x, weight, track)
    return x.new_empty(values), x.new_empty(choice, dtype=settings.choice_type)


@torch.library.custom_op("equiscale::spectral_backward", mutates_args=())
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    choice: Tensor,
    kernel_sizes: Sequence[int],
    stride: Sequence[int],
    output_size: Sequence[int],
    zero_extended: bool,
    interpolation: str,
    groups: int,
    pool: str,
    input_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    how: Any = interpolation
    settings = Settings(kernel_sizes, stride, output_size, zero_extended, how, groups, pool)
    plan = settings.plan(x, weight)
    if pool == "global":
        places = peak_places(grad, choice, plan, groups)
        bias_grad = places.values.flatten(1).sum(0)
    else:
        grad = _inside(grad, choice, pool, plan)
        bias_grad = grad.sum(dim=[axis for axis in range(grad.ndim) if axis != 1])
        found = _few_places(grad, choice, x, weight, plan, settings, input_wanted)
        if found is None:
            x_grad, weight_grad = _dense(grad, x, weight, choice, plan, settings, input_wanted)
            return x.new_empty(0) if x_grad is None else x_grad, weight_grad, bias_grad
        places = found
    library = load_library() if x.device.type == "cpu" else None
    visit = sparse_backward if library is None else library.sparse_backward
    x_grad, weight_grad = visit(x, weight, places, plan, input_wanted)
    return x.new_empty(0) if x_grad is None else x_grad.contiguous(), weight_grad, bias_grad


def _dense(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    choice: Tensor,
    plan: Plan,
    settings: Settings,
    input_wanted: bool,
) -> tuple[Tensor | None, Tensor]:
    pool = settings.pool if settings.pool in (NO_POOL, "pixel") else "chosen"
    library = _library_for(x, weight, settings.groups)
    if library is None:
        problem = Problem.make(x, weight, plan, settings.groups)
        return maps_backward(problem, grad, choice, pool, input_wanted)
    basis = to_basis(weight, plan, settings.groups).contiguous()
    weight_grad = torch.empty_like(basis)
    x_grad = x.new_empty(x.shape) if input_wanted else None
    library.backward(x, basis, plan, pool, choice, grad.contiguous(), weight_grad, x_grad)
    return x_grad, from_basis(weight_grad, plan)


def _few_places(
    grad: Tensor,
    choice: Tensor,
    x: Tensor,
    weight: Tensor,
    plan: Plan,
    settings: Settings,
    input_wanted: bool,
) -> Places | None:
    """Return the pixels that carry a gradient if visiting them is cheaper than the transpose."""
    if settings.pool == NO_POOL or x.device.type != "cpu":  # counting would wait for the device
        return None
    count = int(grad.count_nonzero())
    sparse = sparse_backward_cost(x, weight, count, input_wanted)
    if sparse > dense_backward_cost(plan, x, weight, input_wanted):
        return None
    scales = _per_pixel(choice, settings.pool).expand_as(grad)
    return nonzero_places(grad, scales, plan, settings.groups)


def _per_pixel(choice: Tensor, pool: str) -> Tensor:
    """Return scale indices that broadcast over pixels."""
    return choice if pool == "pixel" else choice[:, :, None, None]


def _inside(grad: Tensor, choice: Tensor, pool: str, plan: Plan) -> Tensor:
    """Drop what falls on the zeros around the smaller maps."""
    if pool == NO_POOL:
        return torch.where(plan.keep(plan.reached), grad, 0.0)
    return torch.where(plan.keep(plan.reached.sum(0)) > _per_pixel(choice, pool), grad, 0.0)


@_backward.register_fake
def _backward_shapes(
    grad: Tensor, x: Tensor, weight: Tensor, choice: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    input_wanted = arguments[-1]
    x_grad = x.new_empty(x.shape) if input_wanted else x.new_empty(0)
    return x_grad, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


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
    raise OptionError(
        "the spectral method has no second derivatives; use method='direct', which has"
    )


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
_backward.register_autograd(_refuse)

"""The steps of the spectral method in PyTorch operations, for several kernel sizes at once.

Shapes are fixed by the sizes of the problem, and nothing waits for the device, so that a pass can
be captured in a CUDA graph. Each step is followed by its transpose, which the backward pass uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import Plan


@dataclass(frozen=True, eq=False)
class Problem:
    """Spectrum of an input, and a weight in the basis of the kernels' functions.

    Attributes:
        plan: Constants.
        groups: Number G of groups.
        spectrum: `[V, ±, U, G, (R, N), (R, C/G)]`, see `analyse`.
        weight: `[q, r, G, R, C/G, O/G]`, see `split_parts`.
    """

    plan: Plan
    groups: int
    spectrum: Tensor
    weight: Tensor

    @classmethod
    def make(cls, x: Tensor, weight: Tensor, plan: Plan, groups: int) -> Problem:
        """Transform the input, and change the weight's basis."""
        basis = split_parts(to_basis(weight, plan, groups), plan)
        return cls(plan, groups, analyse(x, plan, groups), basis)


def analyse(x: Tensor, plan: Plan, groups: int) -> Tensor:
    """`[N, C, H, W] -> [V, ±, U, G, (R, N), (R, C/G)]`: spectrum of the input as real matrices.

    Step 1. Multiplying by the conjugate of a complex number is a product with the real matrix
    `[[real, imag], [imag, -real]]`. R counts the real and the imaginary part.
    """
    U, V = plan.rows.num_frequencies, plan.columns.num_frequencies
    N, C, H, W = x.shape
    along_columns = plan.columns.analysis @ x.reshape(-1, W).T
    along_both = plan.rows.analysis @ along_columns.view(2 * V, N * C, H).transpose(1, 2)
    planes = along_both.view(2, V, 2, U, N, groups, C // groups).transpose(4, 5)
    (cc, sc), (cs, ss) = (half.unbind(1) for half in planes)
    real = torch.stack([cc - ss, cc + ss], 1)
    imag = torch.stack([-sc - cs, sc - cs], 1)
    return torch.cat([torch.cat([real, imag], -1), torch.cat([imag, -real], -1)], -2)


def analyse_adjoint(grad: Tensor, plan: Plan, num_samples: int) -> Tensor:
    """`[V, ±, U, G, (R, N), (R, C/G)] -> [N, C, H, W]`: transpose of `analyse`."""
    V, _, U = grad.shape[:3]
    blocks = grad.unflatten(5, (2, -1)).unflatten(4, (2, num_samples))
    real = blocks[:, :, :, :, 0, :, 0] - blocks[:, :, :, :, 1, :, 1]
    imag = blocks[:, :, :, :, 0, :, 1] + blocks[:, :, :, :, 1, :, 0]
    (minus, plus), (imag_minus, imag_plus) = real.unbind(1), imag.unbind(1)
    cosines = torch.stack([minus + plus, imag_plus - imag_minus], 1)
    sines = torch.stack([-imag_minus - imag_plus, plus - minus], 1)
    planes = torch.stack([cosines, sines]).transpose(4, 5)
    along_rows = planes.reshape(2 * V, 2 * U, -1).transpose(1, 2) @ plan.rows.analysis
    result = along_rows.flatten(1).T @ plan.columns.analysis
    return result.view(num_samples, -1, *plan.input_size)


def to_basis(weight: Tensor, plan: Plan, groups: int) -> Tensor:
    """`[O, C/G, k, k] -> [q, r, G, C/G, O/G]`: from pixels to even and odd functions.

    q counts the functions along the columns' axis, r those along the rows' axis. The sign is that
    of the product of their transforms.
    """
    (O, C, k, _), r = weight.shape, plan.num_functions
    pixels = weight.unflatten(0, (groups, -1)).permute(3, 4, 0, 2, 1)
    return (plan.basis @ pixels.reshape(k * k, -1)).view(r, r, groups, C, O // groups)


def from_basis(grad: Tensor, plan: Plan) -> Tensor:
    """`[q, r, G, C/G, O/G] -> [O, C/G, k, k]`: transpose of `to_basis`."""
    k = plan.resampling.shape[1]
    pixels = (plan.basis.T @ grad.flatten(0, 1).flatten(1)).view(k, k, *grad.shape[2:])
    return pixels.permute(2, 4, 3, 0, 1).flatten(0, 1).contiguous()


def split_parts(weight: Tensor, plan: Plan) -> Tensor:
    """`[q, r, G, C/G, O/G] -> [q, r, G, R, C/G, O/G]`: into the real or the imaginary part.

    The product of two transforms is real if both functions are even or both are odd.
    """
    is_odd = torch.arange(plan.num_functions, device=weight.device) >= plan.num_even
    is_imag = (is_odd[:, None] ^ is_odd)[:, :, None, None, None]
    return torch.stack([torch.where(is_imag, 0.0, weight), torch.where(is_imag, weight, 0.0)], 3)


def join_parts(grad: Tensor, plan: Plan) -> Tensor:
    """`[q, r, G, R, C/G, O/G] -> [q, r, G, C/G, O/G]`: transpose of `split_parts`."""
    is_odd = torch.arange(plan.num_functions, device=grad.device) >= plan.num_even
    is_imag = (is_odd[:, None] ^ is_odd)[:, :, None, None, None]
    return torch.where(is_imag, grad[:, :, :, 1], grad[:, :, :, 0])


def make_maps(problem: Problem, scales: slice) -> Tensor:
    """Return the maps of some kernel sizes as quadrants, `[4, h, G, w, N, s, O/G]`, without bias.

    The quadrants lie at (+, +), (+, -), (-, +), (-, -) of (δy, δx), counted from the centre that
    all maps share. All have the size of the first map; beyond its own size a map has no meaning,
    and that of an even extent is one pixel longer on the negative side.
    """
    products = _mix(problem, _kernels(problem, scales))
    even, odd = _synthesise_rows(products, problem.plan, scales.start)
    quadrants = _synthesise_columns(even, odd, problem.plan, scales.start)
    return quadrants.unflatten(-1, (scales.stop - scales.start, -1))


def join_quadrants(quadrants: Tensor, size: tuple[int, int]) -> Tensor:
    """`[4, h, G, w, N, …] -> [H, G, W, N, …]`: whole maps of this size."""
    lower = _join(quadrants[0], quadrants[1], size[1], 2)
    upper = _join(quadrants[2], quadrants[3], size[1], 2)
    return _join(lower, upper, size[0], 0)


def split_quadrants(maps: Tensor) -> Tensor:
    """`[H, G, W, N, …] -> [4, h, G, w, N, …]`: transpose of `join_quadrants`."""
    lower, upper = _join_adjoint(maps, maps.shape[0], 0)
    halves = (*_join_adjoint(lower, maps.shape[2], 2), *_join_adjoint(upper, maps.shape[2], 2))
    return torch.stack(halves)


def _kernels(problem: Problem, scales: slice) -> Tensor:
    """Return `[(V, ±, U, G), (R, C/G), (s, O/G)]`: spectra of the rescaled kernels.

    Step 2. A rescaled kernel is a sum of products of row and column functions, so that its
    spectrum follows from the k×k weight by two products with constant matrices.
    """
    plan, weight = problem.plan, problem.weight
    r, G, _, C, O = weight.shape[1:]
    columns = plan.columns.kernels[scales].transpose(0, 1) @ weight.flatten(1)
    rows = plan.rows.kernels[scales]
    mirrored = torch.cat([rows[..., : plan.num_even], -rows[..., plan.num_even :]], -1)
    signed = torch.cat([mirrored, rows], 1)
    kernels = signed @ columns.unflatten(2, (r, -1))
    V, s, frequencies = kernels.shape[:3]
    by_frequency = kernels.view(V, s, frequencies, G, 2 * C, O).permute(0, 2, 3, 4, 1, 5)
    return by_frequency.reshape(V * frequencies * G, 2 * C, s * O)


def _mix(problem: Problem, kernels: Tensor) -> Tensor:
    """Return `[V, ±, U, G, R, N, (s, O/G)]`: products of input and kernels. Step 3."""
    V, _, U, G, rows, _ = problem.spectrum.shape
    products = torch.bmm(problem.spectrum.flatten(0, 3), kernels)
    return products.view(V, 2, U, G, 2, rows // 2, -1)


def _synthesise_rows(products: Tensor, plan: Plan, first: int) -> tuple[Tensor, Tensor]:
    """Return `[V, h, G, R, N, (s, O/G)]` twice: the parts that are even and odd in δy. Step 4."""
    cosine, sine = plan.rows.waves[:, : plan.rows.half(first)].unbind()
    minus, plus = products.unbind(1)
    shape = products.shape[3:]
    even = cosine @ (minus + plus).flatten(2)
    odd = sine @ (minus - plus).flatten(2)
    return even.unflatten(2, shape), odd.unflatten(2, shape)


def _synthesise_columns(even: Tensor, odd: Tensor, plan: Plan, first: int) -> Tensor:
    """Return the quadrants of the maps, `[4, h, G, w, N, (s, O/G)]`. Step 5."""
    cosine, sine = plan.columns.waves[:, : plan.columns.half(first)].unbind()

    def transform(wave: Tensor, rows: Tensor, part: int) -> Tensor:
        return wave @ rows[:, :, :, part].permute(1, 2, 0, 3, 4).flatten(3)

    even_cosine, even_sine = transform(cosine, even, 0), transform(sine, even, 1)
    odd_cosine, odd_sine = transform(cosine, odd, 1), transform(sine, odd, 0)
    right, left = even_cosine - even_sine, even_cosine.add_(even_sine)
    odd_right, odd_left = odd_cosine + odd_sine, odd_cosine.sub_(odd_sine)
    quadrants = right.new_empty(4, *right.shape)
    torch.sub(right, odd_right, out=quadrants[0])
    torch.sub(left, odd_left, out=quadrants[1])
    torch.add(right, odd_right, out=quadrants[2])
    torch.add(left, odd_left, out=quadrants[3])
    return quadrants.unflatten(-1, even.shape[4:])


def _join(positive: Tensor, negative: Tensor, extent: int, axis: int) -> Tensor:
    """Join the halves δ ≥ 0 and δ < 0 of an axis, given at distances 0, …, extent // 2."""
    mirrored = negative.narrow(axis, 1, extent // 2).flip(axis)
    return torch.cat([mirrored, positive.narrow(axis, 0, extent - extent // 2)], axis)


def make_maps_adjoint(
    problem: Problem, scales: slice, grad: Tensor, input_wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Transpose of `make_maps`: return the gradients of spectrum, if wanted, and weight."""
    plan = problem.plan
    rows = _synthesise_columns_adjoint(grad.flatten(5), plan, scales.start)
    products = _synthesise_rows_adjoint(*rows, plan)
    spectrum = problem.spectrum.flatten(0, 3)
    weight_grad = _kernels_adjoint(problem, scales, torch.bmm(spectrum.transpose(1, 2), products))
    if not input_wanted:
        return None, weight_grad
    kernels = _kernels(problem, scales)
    return torch.bmm(products, kernels.transpose(1, 2)).view_as(problem.spectrum), weight_grad


def _kernels_adjoint(problem: Problem, scales: slice, grad: Tensor) -> Tensor:
    """Transpose of `_kernels`."""
    plan, weight = problem.plan, problem.weight
    G, _, C, O = weight.shape[2:]
    s, V = scales.stop - scales.start, plan.columns.num_frequencies
    by_scale = grad.view(V, -1, G, 2 * C, s, O).permute(0, 4, 1, 2, 3, 5).flatten(3)
    minus, plus = by_scale.unflatten(2, (2, -1)).unbind(2)
    rows = plan.rows.kernels[scales].transpose(1, 2)
    E = plan.num_even
    columns = torch.cat([rows[:, :E] @ (plus + minus), rows[:, E:] @ (plus - minus)], 2)
    waves = plan.columns.kernels[scales].transpose(0, 1).flatten(0, 1)
    return (waves.T @ columns.flatten(0, 1).flatten(1)).view_as(weight)


def _synthesise_rows_adjoint(even: Tensor, odd: Tensor, plan: Plan) -> Tensor:
    """Transpose of `_synthesise_rows`, as matrices `[(V, ±, U, G), (R, N), (s, O/G)]`."""
    cosine, sine = plan.rows.waves[:, : even.shape[1]].transpose(1, 2).unbind()
    total, difference = cosine @ even.flatten(2), sine @ odd.flatten(2)
    products = torch.stack([total + difference, total - difference], 1)
    return products.view(-1, 2 * even.shape[4], even.shape[5])


def _synthesise_columns_adjoint(quadrants: Tensor, plan: Plan, first: int) -> tuple[Tensor, Tensor]:
    """Transpose of `_synthesise_columns`."""
    cosine, sine = plan.columns.waves[:, : plan.columns.half(first)].unbind()
    lower_right, lower_left, upper_right, upper_left = quadrants.flatten(4).unbind()
    right, left = lower_right + upper_right, lower_left + upper_left
    odd_right, odd_left = upper_right - lower_right, upper_left - lower_left
    N, columns = quadrants.shape[4:]

    def transform(wave: Tensor, rows: Tensor) -> Tensor:
        return (wave.T @ rows).unflatten(-1, (N, columns)).permute(2, 0, 1, 3, 4)

    even = transform(cosine, right + left), transform(sine, left - right)
    odd = transform(sine, odd_right - odd_left), transform(cosine, odd_right + odd_left)
    return torch.stack(even, 3), torch.stack(odd, 3)


def _join_adjoint(joined: Tensor, extent: int, axis: int) -> tuple[Tensor, Tensor]:
    """Transpose of `_join`; 0 where a half has no pixel."""
    negative, positive = joined.tensor_split([extent // 2], axis)
    zero = torch.zeros_like(positive.narrow(axis, 0, 1))
    if extent % 2 == 0:
        positive = torch.cat([positive, zero], axis)
    return positive, torch.cat([zero, negative.flip(axis)], axis)

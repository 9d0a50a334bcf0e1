"""Pooling over scale in PyTorch operations, a few kernel sizes at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import Plan
from equiscale.layers.scaled.spectral.transforms import (
    Problem,
    analyse_adjoint,
    from_basis,
    join_parts,
    join_quadrants,
    make_maps,
    make_maps_adjoint,
    split_quadrants,
)

_CHUNK = {"cpu": 1 << 21}
_CHUNK_ON_DEVICES = 1 << 25
"""Products of spectra that are computed at once: as many as caches or launches suggest."""


def chunks(problem: Problem) -> Iterator[slice]:
    """Yield slices of the kernel sizes that are computed together."""
    plan, (samples, outputs) = problem.plan, (problem.spectrum.shape[4], problem.weight.shape[-1])
    per_scale = problem.spectrum[..., 0, 0].numel() * samples * outputs
    budget = _CHUNK.get(problem.spectrum.device.type, _CHUNK_ON_DEVICES)
    step = max(1, budget // per_scale)
    for first in range(0, plan.num_scales, step):
        yield slice(first, min(first + step, plan.num_scales))


def pool_maps(problem: Problem, bias: Tensor | None, pool: str) -> tuple[Tensor, Tensor]:
    """Return pooled maps and the chosen scale indices, see `scale_pool`.

    For global pooling, the indices are flat ones into `[S, H, W]`. For `"none"` the maps are the
    whole stack, and the indices are empty.
    """
    if pool == "none":
        return _stack(problem, bias)
    if pool == "pixel":
        return _pool_pixels(problem, bias)
    if pool == "global":
        return _pool_globally(problem, bias)
    return _pool_slices(problem, bias, pool)


def _stack(problem: Problem, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the maps of all kernel sizes, aligned and framed, `[N, O, S, H', W']`."""
    plan = problem.plan
    stack = [
        _framed(problem, bias, scales).permute(3, 1, 5, 4, 0, 2).flatten(1, 2)
        for scales in chunks(problem)
    ]
    maps = torch.cat(stack, 2)
    assert maps.shape[2] == plan.num_scales
    return maps, maps.new_empty(0)


def _framed(problem: Problem, bias: Tensor | None, scales: slice) -> Tensor:
    """Return the maps of some kernel sizes, aligned and framed, `[H', G, W', N, s, O/G]`."""
    plan = problem.plan
    (H, W), (height, width) = plan.output_size, plan.extents(scales.start)
    maps = join_quadrants(make_maps(problem, scales), (height, width))
    if bias is not None:
        maps = maps + bias.view(problem.groups, 1, 1, 1, -1)
    top, left = (H - height) // 2, (W - width) // 2
    inside = plan.reached[scales, top : top + height, left : left + width].permute(1, 2, 0)
    maps = torch.where(inside[:, None, :, None, :, None], maps, 0.0)
    sides = (0, 0, 0, 0, 0, 0, left, W - width - left, 0, 0, top, H - height - top)
    down, across = plan.stride
    return F.pad(maps, sides)[::down, :, ::across]


def _pool_pixels(problem: Problem, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keep the maximum at every pixel; quadrants are joined once, at the end."""
    plan, shift = problem.plan, _shift(problem, bias)
    reach = _reach(plan)
    (h, w), G = reach.shape[1:], problem.groups
    N, O = problem.spectrum.shape[4] // 2, problem.weight.shape[-1]
    best = shift.new_full((4, h, G, w, N, O), -torch.inf)
    choice = torch.zeros_like(best)
    for scales in chunks(problem):
        maps = _own_pixels(make_maps(problem, scales), reach, scales)
        inner = (slice(None), slice(maps.shape[1]), slice(None), slice(maps.shape[3]))
        if maps.shape[5] == 1:
            _challenge(best[inner], choice[inner], maps.squeeze(5), scales.start)
        else:
            candidate, index = maps.max(5)
            _challenge(best[inner], choice[inner], candidate, index + scales.start)
    best += shift
    framed = (reach < plan.num_scales)[:, :, None, :, None, None]
    zeros = torch.where(framed, 0.0, -torch.inf).to(best).expand_as(best)
    _challenge(best, choice, zeros, reach[:, :, None, :, None, None].to(best))
    values, indices = (
        plan.keep(_by_sample(join_quadrants(part, plan.output_size))).contiguous()
        for part in (best, choice)
    )
    return values, indices


def _challenge(best: Tensor, choice: Tensor, candidate: Tensor, index: int | Tensor) -> None:
    """Let a candidate replace what it exceeds, in place.

    Indices only grow, so that the larger one is the later one. They are floating-point numbers,
    which are compared faster.
    """
    wins = torch.empty_like(best)
    torch.gt(candidate, best, out=wins)
    torch.maximum(choice, wins.mul_(index), out=choice)
    torch.maximum(best, candidate, out=best)


def _pool_slices(problem: Problem, bias: Tensor | None, pool: str) -> tuple[Tensor, Tensor]:
    """Keep the map with the highest score of every sample and channel."""
    plan, best, winner = problem.plan, None, None
    kept: Tensor | None = None
    areas = plan.keep(plan.reached).sum((1, 2)).clamp(min=1)
    for scales in chunks(problem):
        maps = _framed(problem, bias, scales)
        if pool == "slice":
            scores = maps.amax((0, 2))
        else:
            scores = maps.sum((0, 2))
            if pool == "mean_energy":
                scores = scores / areas[scales, None]
        top, index = scores.max(2)  # [G, N, O]
        places = index[None, :, None, :, None, :].expand(*maps.shape[:4], 1, -1)
        chosen = maps.gather(4, places).squeeze(4)
        if best is None or winner is None or kept is None:
            best, winner, kept = top, index, chosen
            continue
        wins = (top > best) | (top.isnan() & ~best.isnan())
        best = torch.where(wins, top, best)
        winner = torch.where(wins, index + scales.start, winner)
        kept = torch.where(wins[:, None], chosen, kept)
    assert kept is not None
    assert winner is not None
    return _by_sample(kept), winner.transpose(0, 1).flatten(1)


def _pool_globally(problem: Problem, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keep the maximum of every sample and channel, and its flat index into `[S, H, W]`."""
    plan, shift, reach = problem.plan, _shift(problem, bias), _reach(problem.plan)
    pixels = plan.output_size[0] * plan.output_size[1]
    is_framed = ~plan.reached.flatten(1).all(1)
    found = []
    for scales in chunks(problem):
        maps = _own_pixels(make_maps(problem, scales), reach, scales)
        where = _flat_places(plan, maps.shape[1], maps.shape[3])
        values, flat = maps.movedim(2, 3).flatten(0, 2).max(0)  # [G, N, s, O]
        first = torch.arange(scales.start, scales.stop, device=reach.device)[:, None] * pixels
        values, places = values + shift, where[flat] + first
        zero = is_framed[scales, None] & (values < 0)  # a corner of the frame
        values, places = torch.where(zero, 0.0, values), torch.where(zero, first, places)
        values, scale = values.max(2)
        found.append((values, places.gather(2, scale[:, :, None]).squeeze(2)))
    values, chunk = torch.stack([value for value, _ in found]).max(0)
    places = torch.stack([place for _, place in found]).gather(0, chunk[None]).squeeze(0)
    by_sample = [part.transpose(0, 1).flatten(1).contiguous() for part in (values, places)]
    return by_sample[0], by_sample[1]


def _own_pixels(maps: Tensor, reach: Tensor, scales: slice) -> Tensor:
    """Set the pixels to -∞ that lie outside of the maps of a chunk."""
    index = torch.arange(scales.start, scales.stop, device=reach.device)
    outside = reach[:, : maps.shape[1], : maps.shape[3], None] <= index
    return maps.masked_fill_(outside[:, :, None, :, None, :, None], -torch.inf)


def _flat_places(plan: Plan, h: int, w: int) -> Tensor:
    """Return `[4 h w]`: where the pixels of the quadrants lie in `[H, W]`."""
    (H, W), device = plan.output_size, plan.reached.device
    y, x = torch.arange(h, device=device)[:, None], torch.arange(w, device=device)
    rows, columns = (H // 2 + y, H // 2 - y), (W // 2 + x, W // 2 - x)
    return torch.stack([row * W + column for row in rows for column in columns]).flatten()


def _shift(problem: Problem, bias: Tensor | None) -> Tensor:
    """Return the bias, `[G, 1, 1, O/G]`."""
    if bias is None:
        bias = problem.weight.new_zeros(problem.groups * problem.weight.shape[-1])
    return bias.view(problem.groups, 1, 1, -1)


def _reach(plan: Plan) -> Tensor:
    """Return `[4, h, w]`: how many maps have each pixel of the quadrants; 0 if it is not kept."""
    reach = plan.keep_adjoint(plan.keep(plan.reached.sum(0)))
    return split_quadrants(reach[:, None, :, None])[:, :, 0, :, 0]


def _by_sample(maps: Tensor) -> Tensor:
    """`[H, G, W, N, O/G] -> [N, O, H, W]`, contiguous."""
    return maps.permute(3, 1, 4, 0, 2).flatten(1, 2).contiguous()


def maps_backward(
    problem: Problem, grad: Tensor, choice: Tensor, pool: str, input_wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of input, if wanted, and weight.

    Args:
        problem: That of the forward pass.
        grad: `[N, O, H', W']`, or `[N, O, S, H', W']` without pooling; zero outside of each map.
        choice: Scale index of each pixel, or of each map.
        pool: `"none"`, `"pixel"` or `"chosen"`.
        input_wanted: Whether the input's gradient is needed.
    """
    plan, num_samples = problem.plan, len(grad)
    spectrum_grad = torch.zeros_like(problem.spectrum) if input_wanted else None
    weight_grad = torch.zeros_like(problem.weight)
    grad = plan.keep_adjoint(grad)
    quadrants = _quadrants_of(grad, problem.groups)
    if choice.numel():
        if pool == "pixel":
            per_map = plan.keep_adjoint(choice)
        else:
            per_map = choice[:, :, None, None].expand(grad.shape)
        choices = _quadrants_of(per_map.to(grad), problem.groups)
    for scales in chunks(problem):
        h, w = plan.halves(scales.start)
        own = quadrants[:, :h, :, :w]
        if pool == "none":
            own = own[..., scales, :]
        else:
            index = torch.arange(scales.start, scales.stop, device=grad.device)[:, None]
            matches = choices[:, :h, :, :w, :, None] == index
            own = own[..., None, :] * matches
        spectrum, weight = make_maps_adjoint(problem, scales, own, input_wanted)
        weight_grad += weight
        if spectrum_grad is not None and spectrum is not None:
            spectrum_grad += spectrum
    x_grad = None
    if spectrum_grad is not None:
        x_grad = analyse_adjoint(spectrum_grad, plan, num_samples)
    return x_grad, from_basis(join_parts(weight_grad, plan), plan)


def _quadrants_of(maps: Tensor, groups: int) -> Tensor:
    """`[N, O, (S,) H, W] -> [4, h, G, w, N, (S,) O/G]`."""
    by_group = maps.unflatten(1, (groups, -1))  # [N, G, O, (S,) H, W]
    scale = (3,) if maps.ndim == 5 else ()
    order = (by_group.ndim - 2, 1, by_group.ndim - 1, 0, *scale, 2)
    return split_quadrants(by_group.permute(order))

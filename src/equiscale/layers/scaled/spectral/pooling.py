"""Pooling over scale in PyTorch operations, a few kernel sizes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import Plan
from equiscale.layers.scaled.spectral.transforms import (
    Problem,
    analyse_adjoint,
    from_basis,
    join_parts,
    make_maps,
    make_maps_adjoint,
)

_CHUNK = {"cpu": 1 << 21}
_CHUNK_ON_DEVICES = 1 << 25
"""Products of spectra that are computed at once: as many as caches or launches suggest."""

Scored = tuple[Tensor, Tensor, Tensor]
"""Scores that compete, the maps or numbers that they stand for, and scale indices."""


def chunks(problem: Problem) -> Iterator[slice]:
    """Yield slices of the kernel sizes that are computed together."""
    plan, (samples, outputs) = problem.plan, (problem.spectrum.shape[4], problem.weight.shape[-1])
    per_scale = problem.spectrum[..., 0, 0].numel() * samples * outputs
    budget = _CHUNK.get(problem.spectrum.device.type, _CHUNK_ON_DEVICES)
    step = max(1, budget // per_scale)
    for first in range(0, plan.num_scales, step):
        yield slice(first, min(first + step, plan.num_scales))


def framed_maps(problem: Problem, bias: Tensor | None, scales: slice) -> Tensor:
    """Return the maps of some kernel sizes, `[N, O, s, H, W]`, aligned and framed with zeros."""
    plan = problem.plan
    maps = make_maps(problem, scales)
    if bias is not None:
        maps = maps + bias[:, None, None, None]
    (H, W), (height, width) = plan.output_size, maps.shape[-2:]
    top, left = (H - height) // 2, (W - width) // 2
    inside = plan.reached[scales, top : top + height, left : left + width]
    maps = torch.where(inside, maps, 0.0)
    return F.pad(maps, (left, W - width - left, top, H - height - top))


def pool_maps(problem: Problem, bias: Tensor | None, pool: str) -> tuple[Tensor, Tensor]:
    """Return pooled maps and the chosen scale indices, see `scale_pool`.

    For global pooling, the indices are flat ones into `[S, H, W]`. For `"none"` the maps are the
    whole stack, and the indices are empty.
    """
    if pool == "none":
        maps = torch.cat([framed_maps(problem, bias, scales) for scales in chunks(problem)], 2)
        return maps, maps.new_empty(0)
    best: Scored | None = None
    for scales in chunks(problem):
        maps = framed_maps(problem, bias, scales)
        scores, values, index = _SCORES[pool](maps, problem.plan, scales)
        pixels = maps[0, 0, 0].numel() if pool == "global" else 1
        challenger = scores, values, index + scales.start * pixels
        best = challenger if best is None else _better(best, challenger)
    assert best is not None
    return best[1], best[2]


def maps_backward(
    problem: Problem, grad: Tensor, choice: Tensor, pool: str, input_wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of input, if wanted, and weight.

    Args:
        problem: That of the forward pass.
        grad: `[N, O, H, W]`, or `[N, O, S, H, W]` without pooling; zero outside of each map.
        choice: Scale index of each pixel, or of each map.
        pool: `"none"`, `"pixel"` or `"chosen"`.
        input_wanted: Whether the input's gradient is needed.
    """
    plan, num_samples = problem.plan, len(grad)
    spectrum_grad = torch.zeros_like(problem.spectrum) if input_wanted else None
    weight_grad = torch.zeros_like(problem.weight)
    for scales in chunks(problem):
        own = _own_part(grad, choice, pool, scales)
        (H, W), (height, width) = plan.output_size, plan.extents(scales.start)
        top, left = (H - height) // 2, (W - width) // 2
        inner = own[..., top : top + height, left : left + width]
        spectrum, weight = make_maps_adjoint(problem, scales, inner, input_wanted)
        weight_grad += weight
        if spectrum_grad is not None and spectrum is not None:
            spectrum_grad += spectrum
    x_grad = None
    if spectrum_grad is not None:
        x_grad = analyse_adjoint(spectrum_grad, plan, num_samples)
    return x_grad, from_basis(join_parts(weight_grad, plan), plan)


def _own_part(grad: Tensor, choice: Tensor, pool: str, scales: slice) -> Tensor:
    """Return `[N, O, s, H, W]`: the gradient of the maps of some kernel sizes."""
    if pool == "none":
        return grad[:, :, scales]
    index = torch.arange(scales.start, scales.stop, device=grad.device)[:, None, None]
    per_pixel = choice[:, :, None] if pool == "pixel" else choice[:, :, None, None, None]
    return torch.where(per_pixel == index, grad[:, :, None], 0.0)


def _better(best: Scored, challenger: Scored) -> Scored:
    """Replace what is exceeded; equal scores keep the smaller kernel, and NaN stays."""
    old, new = best[0], challenger[0]
    wins = (new > old) | (new.isnan() & ~old.isnan())
    scores = torch.where(wins, new, old)
    values = torch.where(
        wins[(...,) + (None,) * (best[1].ndim - wins.ndim)], challenger[1], best[1]
    )
    return scores, values, torch.where(wins, challenger[2], best[2])


def _score_pixels(maps: Tensor, plan: Plan, scales: slice) -> Scored:
    values, index = maps.max(2)
    return values, values, index


def _score_slices(maps: Tensor, plan: Plan, scales: slice) -> Scored:
    return _choose(maps, maps.amax((3, 4)))


def _score_energy(maps: Tensor, plan: Plan, scales: slice) -> Scored:
    return _choose(maps, maps.sum((3, 4)))


def _score_mean_energy(maps: Tensor, plan: Plan, scales: slice) -> Scored:
    areas = plan.reached[scales].sum((1, 2))
    return _choose(maps, maps.sum((3, 4)) / areas)


def _score_globally(maps: Tensor, plan: Plan, scales: slice) -> Scored:
    values, index = maps.flatten(2).max(2)
    return values, values, index


def _choose(maps: Tensor, scores: Tensor) -> Scored:
    """Take the map with the highest score, `[N, O, s, H, W] -> [N, O, H, W]`."""
    best, index = scores.max(2)
    places = index[:, :, None, None, None].expand(-1, -1, 1, *maps.shape[3:])
    return best, maps.gather(2, places).squeeze(2).clone(), index


_SCORES: dict[str, Callable[[Tensor, Plan, slice], Scored]] = {
    "pixel": _score_pixels,
    "slice": _score_slices,
    "energy": _score_energy,
    "mean_energy": _score_mean_energy,
    "global": _score_globally,
}

"""Forward passes: the whole stack, or pooled over scale without ever building it.

A running maximum visits the kernel sizes one after the other. Maps are kept as four quadrants
around their common centre, `[4, h, w, M]`, where a smaller map is simply an inner block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from equiscale.layers.spectral.analysis import Problem
from equiscale.layers.spectral.mixing import make_mixing
from equiscale.layers.spectral.plan import Plan
from equiscale.layers.spectral.synthesis import (
    Parts,
    assemble,
    even_and_odd,
    quadrants,
    synthesise_columns,
)
from equiscale.layers.spectral.workspace import Workspace


def maps_by_scale(
    problem: Problem, scale_indices: Iterable[int], workspace: Workspace
) -> Iterator[tuple[int, Parts]]:
    """Yield the maps of one kernel size after the other, as their four parts."""
    mixing = make_mixing(problem, workspace)
    for scale_index in scale_indices:
        even, odd = mixing.forward(scale_index)
        half = problem.plan.columns.half(scale_index)
        yield scale_index, synthesise_columns(even, odd, problem.plan, half, workspace)


def stack_forward(problem: Problem, bias: Tensor | None) -> Tensor:
    """Return the maps of all kernel sizes, `[N, O, S, H, W]`."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    N, O = problem.num_samples, problem.num_channels
    result = problem.spectrum.new_zeros(N, O, plan.num_scales, *plan.output_size)
    for scale_index, parts in maps_by_scale(problem, range(plan.num_scales), workspace):
        maps = assemble(quadrants(parts, workspace), problem, plan.extents(scale_index))
        if bias is not None:
            maps += bias[:, None, None]
        plan.inner_block(result[:, :, scale_index], scale_index).copy_(maps)
    return result


def pixel_forward(
    problem: Problem, bias: Tensor | None, track: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the maximum over scale at every pixel, and its index if it is to be tracked."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    h, w = plan.halves(0)
    best = problem.spectrum.new_empty(4, h, w, problem.num_maps)
    choice = torch.zeros_like(best) if track else None
    for scale_index, parts in maps_by_scale(problem, range(plan.num_scales), workspace):
        candidate = quadrants(parts, workspace)
        if scale_index == 0:
            best.copy_(candidate)
        else:
            h, w = plan.halves(scale_index)
            inner = None if choice is None else choice[:, :h, :w]
            _challenge(best[:, :h, :w], candidate, inner, scale_index, workspace)
    shift = _per_map(bias, problem)
    _challenge_with_frame(best, choice, plan, shift, workspace)
    best += shift
    values = assemble(best, problem, plan.output_size)
    return values, None if choice is None else assemble(choice, problem, plan.output_size)


def _challenge(
    best: Tensor,
    candidate: Tensor,
    choice: Tensor | None,
    index: int | Tensor,
    workspace: Workspace,
) -> None:
    """Let a candidate replace what it exceeds.

    Indices only ever grow, so that the larger one is the later one: this saves the slow masked
    writes. They are kept as floating-point numbers, where comparisons are fastest.
    """
    if choice is not None:
        wins = workspace.take("wins", *best.shape)
        torch.gt(candidate, best, out=wins)
        wins *= index
        torch.maximum(choice, wins, out=choice)
    torch.maximum(best, candidate, out=best)


def _challenge_with_frame(
    best: Tensor, choice: Tensor | None, plan: Plan, shift: Tensor, workspace: Workspace
) -> None:
    """Let the zeros around the smaller maps take part in the maximum.

    They are zero after the bias has been added, hence `-shift` before. Where every map has a
    value there are none.
    """
    counts = _one_quadrant(plan.scales_per_pixel(best))
    if bool((counts < plan.num_scales).any()):
        absent = torch.where(counts < plan.num_scales, 0.0, -torch.inf).to(best)
        _challenge(best, (absent - shift).expand_as(best), choice, counts, workspace)


def slice_forward(problem: Problem, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the slice that holds the maximum of each map, and its scale index `[N, O]`."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    shift = _per_map(bias, problem)
    best = torch.full_like(shift, -torch.inf)
    winner = torch.zeros_like(shift)
    slices = problem.spectrum.new_zeros(4, *plan.halves(0), problem.num_maps)
    for scale_index, parts in maps_by_scale(problem, range(plan.num_scales), workspace):
        peak = _peak(parts, workspace) + shift
        if plan.is_framed(scale_index):
            peak = peak.clamp_min(0)
        wins = peak > best if scale_index else torch.ones_like(best, dtype=torch.bool)
        best = torch.where(wins, peak, best)
        winner.masked_fill_(wins, scale_index)
        _keep_slices(slices, parts, wins, workspace)
    indices = winner.view(problem.groups, problem.num_samples, -1).transpose(0, 1).flatten(1)
    return _finish_slices(slices, winner, shift, problem), indices


def energy_forward(problem: Problem, bias: Tensor | None, winner: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slice of each map that `winner` `[N, O]` names, and `winner` itself."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    slices = problem.spectrum.new_zeros(4, *plan.halves(0), problem.num_maps)
    per_map = winner.unflatten(1, (problem.groups, -1)).transpose(0, 1).flatten()
    for scale_index, parts in maps_by_scale(problem, winner.unique().tolist(), workspace):
        _keep_slices(slices, parts, per_map == scale_index, workspace)
    return _finish_slices(slices, per_map, _per_map(bias, problem), problem), winner


def _peak(parts: Parts, workspace: Workspace) -> Tensor:
    """`4 × [h, w, M] -> [M]`: maximum of each map, without forming its quadrants."""
    even, odd = even_and_odd(parts, workspace)
    height = workspace.take("quadrants", *even.shape)
    torch.abs(odd, out=height)
    height += even
    return height.amax(dim=(0, 1, 2))


def _keep_slices(slices: Tensor, parts: Parts, wins: Tensor, workspace: Workspace) -> None:
    """Copy the maps that win into their places."""
    h, w = parts.cos_cos.shape[:2]
    inner = slices[:, :h, :w]
    if bool(wins.all()):
        inner.copy_(quadrants(parts, workspace))
    elif bool(wins.any()):
        maps = wins.nonzero()[:, 0]
        chosen = Parts(*(part.index_select(2, maps) for part in parts))
        inner.index_copy_(3, maps, quadrants(chosen, workspace))


def _finish_slices(slices: Tensor, winner: Tensor, shift: Tensor, problem: Problem) -> Tensor:
    """Add the bias and put zeros around each slice."""
    plan = problem.plan
    inside = _one_quadrant(plan.scales_per_pixel(slices)) > winner
    values = torch.where(inside, slices + shift, 0.0)
    return assemble(values, problem, plan.output_size)


def _one_quadrant(counts: Tensor) -> Tensor:
    """`[H, W] -> [h, w, 1]`: all four quadrants of the counts are alike."""
    return counts[counts.shape[0] // 2 :, counts.shape[1] // 2 :, None]


def _per_map(bias: Tensor | None, problem: Problem) -> Tensor:
    """`[O] -> [M]`: the bias of every map."""
    if bias is None:
        return problem.spectrum.new_zeros(problem.num_maps)
    per_group = bias.view(problem.groups, 1, -1)
    return per_group.expand(-1, problem.num_samples, -1).flatten()

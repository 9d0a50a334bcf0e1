"""Step 6: forward passes, the whole stack or pooled over scale without ever building it.

The kernel sizes are visited one after the other. Maps are kept as four quadrants around their
common centre, `[4, h, w, M]`, where a smaller map is simply an inner block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.analysis import Problem
from equiscale.layers.scaled.spectral.mixing import FasterMixing
from equiscale.layers.scaled.spectral.plan import Plan
from equiscale.layers.scaled.spectral.synthesis import (
    Rows,
    assemble,
    quadrants,
    synthesise_columns,
)
from equiscale.layers.scaled.spectral.workspace import Workspace, butterfly

_BLOCK_BYTES = 1 << 22


def rows_by_scale(
    problem: Problem, scale_indices: Iterable[int], workspace: Workspace
) -> Iterator[tuple[int, Rows]]:
    """Yield the maps of one kernel size after the other, still transformed along the columns."""
    mixing = FasterMixing(problem, workspace)
    for scale_index in scale_indices:
        yield scale_index, mixing.forward(scale_index)


def blocks_of_rows(
    rows: Rows, plan: Plan, scale_index: int, workspace: Workspace
) -> Iterator[tuple[slice, Tensor]]:
    """Yield maps a few rows at a time, so that what is done with them stays in the cache."""
    even, odd = rows
    h, w = plan.halves(scale_index)
    step = max(1, _BLOCK_BYTES // (4 * w * even.shape[3] * even.element_size()))
    for first in range(0, h, step):
        block = slice(first, min(first + step, h))
        own = even[:, :, block], odd[:, :, block]
        yield block, synthesise_columns(own, plan, w, workspace)


def stack_forward(problem: Problem, bias: Tensor | None) -> Tensor:
    """Return the maps of all kernel sizes, `[N, O, S, H, W]`."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    shape = (problem.num_samples, problem.num_channels, plan.num_scales)
    result = problem.spectrum.new_zeros(*shape, *plan.output_size)
    for scale_index, rows in rows_by_scale(problem, range(plan.num_scales), workspace):
        parts = synthesise_columns(rows, plan, plan.columns.half(scale_index), workspace)
        maps = assemble(quadrants(parts), problem, plan.extents(scale_index))
        if bias is not None:
            maps += bias[:, None, None]
        plan.inner_block(result[:, :, scale_index], scale_index).copy_(maps)
    return result


def pixel_forward(
    problem: Problem, bias: Tensor | None, track: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the maximum over scale at every pixel, and its index if it is to be tracked."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    best = problem.spectrum.new_full((4, *plan.halves(0), problem.num_maps), -torch.inf)
    choice = torch.zeros_like(best) if track else None
    for scale_index, rows in rows_by_scale(problem, range(plan.num_scales), workspace):
        _challenge_with_rows(best, choice, rows, plan, scale_index, workspace)
    shift = _per_map(bias, problem)
    _challenge_with_frame(best, choice, plan, shift, workspace)
    del workspace  # joining the quadrants takes as much again
    best += shift
    values = assemble(best, problem, plan.output_size)
    return values, None if choice is None else assemble(choice, problem, plan.output_size)


def _challenge_with_rows(
    best: Tensor,
    choice: Tensor | None,
    rows: Rows,
    plan: Plan,
    scale_index: int,
    workspace: Workspace,
) -> None:
    """Let the maps of a kernel size replace what they exceed."""
    if workspace.native is not None:
        workspace.native.challenge(best, choice, rows, plan, scale_index)
        return
    w = plan.columns.half(scale_index)
    for block, parts in blocks_of_rows(rows, plan, scale_index, workspace):
        inner = None if choice is None else choice[:, block, :w]
        _challenge(best[:, block, :w], quadrants(parts), inner, scale_index, workspace)


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
    if any(plan.is_framed(scale_index) for scale_index in range(plan.num_scales)):
        counts = _one_quadrant(plan.scales_per_pixel(best))
        absent = torch.where(counts < plan.num_scales, 0.0, -torch.inf).to(best)
        _challenge(best, (absent - shift).expand_as(best), choice, counts, workspace)


def slice_forward(problem: Problem, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the slice that holds the maximum of each map, and its scale index `[N, O]`."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    shift = _per_map(bias, problem)
    best, winner = torch.full_like(shift, -torch.inf), torch.zeros_like(shift)
    slices = problem.spectrum.new_zeros(4, *plan.halves(0), problem.num_maps)
    for scale_index, rows in rows_by_scale(problem, range(plan.num_scales), workspace):
        peak = _peaks(rows, plan, scale_index, workspace) + shift
        if plan.is_framed(scale_index):
            peak = peak.clamp_min(0)
        wins = peak > best if scale_index else torch.ones_like(best, dtype=torch.bool)
        best = torch.where(wins, peak, best)
        winner.masked_fill_(wins, scale_index)
        _keep_slices(slices, rows, wins, plan, scale_index, workspace)
    return _finish_slices(slices, winner, shift, problem), _by_sample(winner, problem)


def global_forward(
    problem: Problem, bias: Tensor | None, track: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the maximum over scales and pixels, `[N, O]`, and its place if that is to be tracked.

    Places are flat indices into the aligned stack, `[S, H, W]`.
    """
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    shift = _per_map(bias, problem)
    best = torch.full_like(shift, -torch.inf)
    places = torch.zeros_like(shift, dtype=torch.long) if track else None
    pixels = math.prod(plan.output_size)
    for scale_index, rows in rows_by_scale(problem, range(plan.num_scales), workspace):
        peak = _peaks(rows, plan, scale_index, workspace) + shift
        if places is not None:
            wins = (peak > best) | (peak.isnan() & ~best.isnan())
            maps = wins.nonzero()[:, 0]
            own = _places(_evaluate(rows, maps, plan, scale_index, workspace), plan)
            places[maps] = own + scale_index * pixels
        best = torch.maximum(best, peak)
        if plan.is_framed(scale_index):
            if places is not None:
                places.masked_fill_(best < 0, scale_index * pixels)
            best.clamp_min_(0)
    return _by_sample(best, problem), None if places is None else _by_sample(places, problem)


def _places(candidate: Tensor, plan: Plan) -> Tensor:
    """`[4, h, w, M] -> [M]`: flat index into `[H, W]` of the maximum."""
    height, width = plan.output_size
    flat = candidate.flatten(0, 2).argmax(dim=0)
    quadrant, down, across = torch.unravel_index(flat, candidate.shape[:3])
    row = torch.where(quadrant < 2, height // 2 + down, (height - 1) // 2 - down)
    column = torch.where(quadrant % 2 == 0, width // 2 + across, (width - 1) // 2 - across)
    return row * width + column


def energy_forward(problem: Problem, bias: Tensor | None, winner: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slice of each map that `winner` `[N, O]` names, and `winner` itself."""
    plan, workspace = problem.plan, Workspace(problem.spectrum)
    slices = problem.spectrum.new_zeros(4, *plan.halves(0), problem.num_maps)
    per_map = winner.unflatten(1, (problem.groups, -1)).transpose(0, 1).flatten()
    for scale_index, rows in rows_by_scale(problem, winner.unique().tolist(), workspace):
        _keep_slices(slices, rows, per_map == scale_index, plan, scale_index, workspace)
    return _finish_slices(slices, per_map, _per_map(bias, problem), problem), winner


def _peaks(rows: Rows, plan: Plan, scale_index: int, workspace: Workspace) -> Tensor:
    """`2 × [R, V, h, M] -> [M]`: maximum of each map."""
    if workspace.native is not None:
        return workspace.native.peaks(rows, plan, scale_index)
    blocks = blocks_of_rows(rows, plan, scale_index, workspace)
    return torch.stack([_peak(parts) for _, parts in blocks]).amax(0)


def _peak(parts: Tensor) -> Tensor:
    """`[2, 2, h, w, M] -> [M]`: maximum of each map, without forming its quadrants."""
    butterfly(*parts.unbind(1))
    even, odd = parts.unbind()
    even += odd.abs_()
    return even.amax(dim=(0, 1, 2))


def _keep_slices(
    slices: Tensor, rows: Rows, wins: Tensor, plan: Plan, scale_index: int, workspace: Workspace
) -> None:
    """Evaluate the maps that win and put them into their places."""
    maps = wins.nonzero()[:, 0]
    h, w = plan.halves(scale_index)
    chosen = _evaluate(rows, maps, plan, scale_index, workspace)
    slices[:, :h, :w].index_copy_(3, maps, chosen)


def _evaluate(
    rows: Rows, maps: Tensor, plan: Plan, scale_index: int, workspace: Workspace
) -> Tensor:
    """Return some of the maps as quadrants, `[4, h, w, M']`."""
    even, odd = rows
    own = even.index_select(3, maps), odd.index_select(3, maps)
    w = plan.columns.half(scale_index)
    return quadrants(synthesise_columns(own, plan, w, workspace))


def _finish_slices(slices: Tensor, winner: Tensor, shift: Tensor, problem: Problem) -> Tensor:
    """Add the bias and put zeros around each slice."""
    plan = problem.plan
    inside = _one_quadrant(plan.scales_per_pixel(slices)) > winner
    return assemble(torch.where(inside, slices + shift, 0.0), problem, plan.output_size)


def _one_quadrant(counts: Tensor) -> Tensor:
    """`[H, W] -> [h, w, 1]`: all four quadrants of the counts are alike."""
    return counts[counts.shape[0] // 2 :, counts.shape[1] // 2 :, None]


def _by_sample(per_map: Tensor, problem: Problem) -> Tensor:
    """`[M] -> [N, O]`: a contiguous copy, since an operator must not return views."""
    by_group = per_map.view(problem.groups, problem.num_samples, -1)
    return by_group.transpose(0, 1).flatten(1).clone(memory_format=torch.contiguous_format)


def _per_map(bias: Tensor | None, problem: Problem) -> Tensor:
    """`[O] -> [M]`: the bias of every map."""
    if bias is None:
        return problem.spectrum.new_zeros(problem.num_maps)
    per_group = bias.view(problem.groups, 1, -1)
    return per_group.expand(-1, problem.num_samples, -1).flatten()

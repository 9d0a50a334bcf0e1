"""Step 5: undo the transform of the columns, and join the four quadrants of a map."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equiscale.layers.spectral.analysis import Problem
from equiscale.layers.spectral.plan import Plan
from equiscale.layers.spectral.workspace import Workspace


class Parts(NamedTuple):
    """The four products of cosines and sines that make up a map, `[h, w, M]` each.

    A map at (±δy, ±δx) is their sum with signs, see `quadrants`.
    """

    cos_cos: Tensor
    cos_sin: Tensor
    sin_cos: Tensor
    sin_sin: Tensor


def synthesise_columns(
    even: Tensor, odd: Tensor, plan: Plan, half: int, workspace: Workspace
) -> Parts:
    """`2 × [R, V, h, M] -> 4 × [h, w, M]`: evaluate the maps at the columns δx ≥ 0."""
    h = even.shape[2]
    cosine = plan.columns.cosine[:half].expand(h, -1, -1)
    sine = plan.columns.sine[:half].expand(h, -1, -1)
    (even_real, even_imag), (odd_real, odd_imag) = _by_row(even), _by_row(odd)
    parts = workspace.take("parts", 4, h, half, even_real.shape[2])
    torch.bmm(cosine, even_real, out=parts[0])
    torch.bmm(sine, even_imag, out=parts[1])
    torch.bmm(cosine, odd_imag, out=parts[2])
    torch.bmm(sine, odd_real, out=parts[3])
    return Parts(*parts)


def _by_row(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`[R, V, h, M] -> 2 × [h, V, M]`: views of real and imaginary part, row by row."""
    real, imag = rows.transpose(1, 2)
    return real, imag


def synthesise_columns_adjoint(
    quarters: Tensor, even: Tensor, odd: Tensor, plan: Plan, workspace: Workspace
) -> None:
    """`[4, h, w, M] -> 2 × [R, V, h, M]`: transpose of the above and of `quadrants`."""
    _, h, w, M = quarters.shape
    plus, minus = quarters.unflatten(0, (2, 2)).unbind(0)
    sums, differences = workspace.take("sums", 2, 2, h, w, M).unbind(0)
    torch.add(plus, minus, out=sums)
    torch.sub(minus, plus, out=differences)
    parts = workspace.take("parts", 4, h, w, M)
    torch.add(sums[0], sums[1], out=parts[0])
    torch.sub(sums[1], sums[0], out=parts[1])
    torch.add(differences[0], differences[1], out=parts[2])
    torch.sub(differences[0], differences[1], out=parts[3])
    cosine = plan.columns.cosine[:w].T.expand(h, -1, -1)
    sine = plan.columns.sine[:w].T.expand(h, -1, -1)
    row = workspace.take("row", h, cosine.shape[1], M)
    (even_real, even_imag), (odd_real, odd_imag) = _by_row(even), _by_row(odd)
    even_real.copy_(torch.bmm(cosine, parts[0], out=row))
    even_imag.copy_(torch.bmm(sine, parts[1], out=row))
    odd_imag.copy_(torch.bmm(cosine, parts[2], out=row))
    odd_real.copy_(torch.bmm(sine, parts[3], out=row))


def even_and_odd(parts: Parts, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """`4 × [h, w, M] -> 2 × [2, h, w, M]`: parts even and odd in δy, at +δx and -δx."""
    sums = workspace.take("sums", 2, 2, *parts.cos_cos.shape)
    torch.sub(parts.cos_cos, parts.cos_sin, out=sums[0, 0])
    torch.add(parts.cos_cos, parts.cos_sin, out=sums[0, 1])
    torch.add(parts.sin_cos, parts.sin_sin, out=sums[1, 0])
    torch.sub(parts.sin_cos, parts.sin_sin, out=sums[1, 1])
    return sums[0], sums[1]


def quadrants(parts: Parts, workspace: Workspace) -> Tensor:
    """`4 × [h, w, M] -> [4, h, w, M]`: the map at (+, +), (+, -), (-, +) and (-, -) (δy, δx)."""
    even, odd = even_and_odd(parts, workspace)
    result = workspace.take("quadrants", 2, *even.shape)
    torch.sub(even, odd, out=result[0])
    torch.add(even, odd, out=result[1])
    return result.flatten(0, 1)


def assemble(quarters: Tensor, problem: Problem, size: tuple[int, int]) -> Tensor:
    """`[4, h, w, M] -> [N, O, H, W]`: join the quadrants of maps of this size."""
    maps = quarters.new_empty(*size, quarters.shape[3])
    for place, quarter, reverse in zip(_quadrant_views(maps), quarters, _REVERSED, strict=True):
        h, w = place.shape[:2]
        place.copy_(quarter[quarter.shape[0] - h :, quarter.shape[1] - w :].flip(reverse))
    G, N = problem.groups, problem.num_samples
    result = quarters.new_empty(N, problem.num_channels, *size)
    by_map = maps.flatten(0, 1).T
    if G == 1:  # torch transposes matrices faster than tensors of more axes
        result.view(by_map.shape).copy_(by_map)
    else:
        groups = by_map.unflatten(0, (G, N, -1)).transpose(0, 1)
        result.view(groups.shape).copy_(groups)
    return result


def disassemble(maps: Tensor, groups: int) -> Tensor:
    """`[N, O, H, W] -> [4, h, w, M]`: transpose of `assemble`; doubled centre lines are zero."""
    N, _, H, W = maps.shape
    by_group = maps.reshape(N, groups, -1).transpose(0, 1)
    pixels = by_group.reshape(-1, H * W).T.contiguous().view(H, W, -1)
    result = maps.new_zeros(4, (H + 1) // 2, (W + 1) // 2, pixels.shape[2])
    for place, quarter, reverse in zip(_quadrant_views(pixels), result, _REVERSED, strict=True):
        h, w = place.shape[:2]
        quarter[quarter.shape[0] - h :, quarter.shape[1] - w :] = place.flip(reverse)
    return result


# Axes along which δ runs against the pixels, for each quadrant.
_REVERSED: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (0, 1))


def _quadrant_views(maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the quadrants of `[H, W, M]`; a centre line belongs to those of δ ≥ 0."""
    top, left = maps.shape[0] // 2, maps.shape[1] // 2
    return maps[top:, left:], maps[top:, :left], maps[:top, left:], maps[:top, :left]

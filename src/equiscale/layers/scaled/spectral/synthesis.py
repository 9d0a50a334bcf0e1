"""Step 5: undo the transform of the columns, and join the four quadrants of a map."""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.analysis import Problem
from equiscale.layers.scaled.spectral.plan import Plan
from equiscale.layers.scaled.spectral.workspace import Workspace, butterfly

Rows = tuple[Tensor, Tensor]
"""Even and odd part of the maps of one kernel size, `[R, V, h, M]` each."""


def synthesise_columns(rows: Rows, plan: Plan, half: int, workspace: Workspace) -> Tensor:
    """`2 × [R, V, h, M] -> [2, 2, h, w, M]`: evaluate the maps at the columns δx ≥ 0.

    The results are the four products of cosines and sines that make up a map: cosines and sines
    of δy, then of δx. A map at (±δy, ±δx) is their sum with signs, see `quadrants`; that of sines
    and sines is returned with its sign changed, so that those signs are alike for both δy.
    """
    (even_real, even_imag), (odd_real, odd_imag) = (_by_row(part) for part in rows)
    h, V, M = even_real.shape
    cosine, sine = plan.columns.waves[:, :half].unbind()
    parts = workspace.take("parts", 2, 2, h, half, M)
    products = (cosine, even_real), (sine, even_imag), (cosine, odd_imag), (-sine, odd_real)
    for (wave, spectra), part in zip(products, parts.flatten(0, 1).unbind(), strict=True):
        torch.bmm(wave.expand(h, half, V), spectra, out=part)
    return parts


def _by_row(rows: Tensor) -> tuple[Tensor, ...]:
    """`[R, V, h, M] -> 2 × [h, V, M]`: views of real and imaginary part, row by row."""
    return rows.transpose(1, 2).unbind()


def synthesise_columns_adjoint(
    quarters: Tensor, even: Tensor, odd: Tensor, plan: Plan, workspace: Workspace
) -> None:
    """`[4, h, w, M] -> 2 × [R, V, h, M]`: transpose of the above and of `quadrants`.

    The quarters are overwritten.
    """
    _, h, w, M = quarters.shape
    parts = quarters.unflatten(0, (2, 2))
    for axis in (0, 1):
        positive, negative = parts.unbind(axis)
        butterfly(negative, positive)
    waves = plan.columns.waves[:, :w].transpose(1, 2).unbind()
    cosine, sine = (wave.expand(h, -1, -1) for wave in waves)
    row = workspace.take("row", h, cosine.shape[1], M)
    (even_real, even_imag), (odd_real, odd_imag) = _by_row(even), _by_row(odd)
    even_real.copy_(torch.bmm(cosine, quarters[0], out=row))
    even_imag.copy_(torch.bmm(sine, quarters[1], out=row))
    odd_imag.copy_(torch.bmm(cosine, quarters[2], out=row))
    torch.neg(torch.bmm(sine, quarters[3], out=row), out=odd_real)


def quadrants(parts: Tensor) -> Tensor:
    """`[2, 2, h, w, M] -> [4, h, w, M]`: in place, at (+, +), (+, -), (-, +), (-, -) (δy, δx)."""
    butterfly(*parts.unbind(1))
    butterfly(*parts.unbind(0))
    return parts.flatten(0, 1)


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

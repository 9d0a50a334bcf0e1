"""Step 2: the spectra of the rescaled kernels, straight from the k×k weight.

A rescaled kernel is a sum of products of k row functions and k column functions, so that its
spectrum needs no transform: two small matrix products with constant matrices suffice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.spectral.analysis import Problem
from equiscale.layers.spectral.plan import Plan
from equiscale.layers.spectral.workspace import Workspace


def column_spectra(problem: Problem, scale_index: int, workspace: Workspace) -> Tensor:
    """Return `[V, r, (G, R, C/G, O/G)]`: kernels transformed along their columns' axis.

    r counts the even functions of the row axis, then the odd ones.
    """
    plan, weight = problem.plan, problem.weight
    basis = plan.columns.kernels[scale_index]
    _, k, G, C, O = weight.shape
    V, num_even = len(basis.even), basis.even.shape[1]
    even = workspace.take("even_columns", V, k, G, C, O)
    odd = workspace.take("odd_columns", V, k, G, C, O)
    torch.mm(basis.even, weight[plan.even].flatten(1), out=even.flatten(1))
    torch.mm(basis.odd, weight[plan.odd].flatten(1), out=odd.flatten(1))
    result = workspace.take("columns", V, num_even + basis.odd.shape[1], G, 2, C, O)
    for_even, for_odd = result[:, :num_even], result[:, num_even:]
    for_even[:, :, :, 0] = even[:, plan.even]
    torch.neg(odd[:, plan.even], out=for_even[:, :, :, 1])
    for_odd[:, :, :, 0] = odd[:, plan.odd]
    for_odd[:, :, :, 1] = even[:, plan.odd]
    return result.flatten(2)


def column_spectra_adjoint(grad: Tensor, problem: Problem, scale_index: int) -> Tensor:
    """`[V, r, (G, R, C/G, O/G)] -> [q, p, G, C/G, O/G]`: transpose of `column_spectra`."""
    plan, weight = problem.plan, problem.weight
    basis = plan.columns.kernels[scale_index]
    G, C, O = weight.shape[2:]
    real, imag = grad.unflatten(2, (G, 2, C, O)).unbind(3)
    num_even = basis.even.shape[1]
    even = grad.new_zeros(grad.shape[0], *weight.shape[1:])
    even[:, plan.even] += real[:, :num_even]
    even[:, plan.odd] += imag[:, num_even:]
    odd = torch.zeros_like(even)
    odd[:, plan.even] -= imag[:, :num_even]
    odd[:, plan.odd] += real[:, num_even:]
    result = torch.zeros_like(weight)
    result[plan.even] += torch.tensordot(basis.even.T, even, 1)
    result[plan.odd] += torch.tensordot(basis.odd.T, odd, 1)
    return result


def row_transform(plan: Plan, scale_index: int) -> Tensor:
    """Return `[(±, U), r]`, which completes `column_spectra` to the kernels' spectra."""
    basis = plan.rows.kernels[scale_index]
    plus = torch.cat([basis.even, -basis.odd], dim=1)
    minus = torch.cat([basis.even, basis.odd], dim=1)
    return torch.cat([plus, minus])

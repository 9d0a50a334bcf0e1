"""Step 2: the spectra of the rescaled kernels, straight from the k×k weight.

A rescaled kernel is a sum of products of k row functions and k column functions, so that its
spectrum needs no transform: two small matrix products with constant matrices suffice. This is the
first of them; `KernelBasis.signed` makes the second, which `FrequencyMixing` takes a few
frequencies at a time and `RowMixing` does without.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.analysis import Problem
from equiscale.layers.scaled.spectral.workspace import Workspace


def column_spectra(problem: Problem, scale_index: int, workspace: Workspace) -> Tensor:
    """Return `[V, r, (G, R, C/G, O/G)]`: kernels transformed along their columns' axis.

    r counts the even functions of the row axis, then the odd ones. The next call overwrites it.
    """
    functions, weight = problem.plan.columns.kernels[scale_index].functions, problem.weight
    result = workspace.take("columns", functions.shape[0], weight.shape[1], weight[0, 0].numel())
    torch.mm(functions, weight.flatten(1), out=result.flatten(1))
    return result


def column_spectra_adjoint(grad: Tensor, problem: Problem, scale_index: int) -> Tensor:
    """`[V, r, (G, R, C/G, O/G)] -> [q, r, G, R, C/G, O/G]`: transpose of `column_spectra`."""
    functions = problem.plan.columns.kernels[scale_index].functions
    return (functions.T @ grad.flatten(1)).view_as(problem.weight)

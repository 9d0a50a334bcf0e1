"""Step 7: backward passes with a dense gradient, the transpose of every step in reverse."""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.analysis import Problem, analyse_adjoint, to_basis_adjoint
from equiscale.layers.scaled.spectral.kernels import column_spectra_adjoint
from equiscale.layers.scaled.spectral.mixing import make_mixing
from equiscale.layers.scaled.spectral.synthesis import disassemble, synthesise_columns_adjoint
from equiscale.layers.scaled.spectral.workspace import Workspace


class Gradients:
    """Sums the gradients of input and weight over the kernel sizes.

    Args:
        problem: That of the forward pass.
        input_wanted: Whether the gradient of the input is needed; it is half of the work.
    """

    def __init__(self, problem: Problem, input_wanted: bool) -> None:
        self.problem = problem
        self.workspace = Workspace(problem.spectrum)
        self._mixing = make_mixing(problem, self.workspace, input_wanted)
        self._weight = torch.zeros_like(problem.weight)
        self._spectrum = torch.zeros_like(problem.spectrum) if input_wanted else None

    def rows(self, quarters: Tensor) -> tuple[Tensor, Tensor]:
        """`[4, h, w, M] -> 2 × [R, V, h, M]`: gradients of rows from those of pixels."""
        rows = self._mixing.take_rows(quarters.shape[1])
        synthesise_columns_adjoint(quarters, *rows, self.problem.plan, self.workspace)
        return rows

    def add(self, scale_index: int, even: Tensor, odd: Tensor) -> None:
        """Add the gradients of one kernel size, given as rows `[R, V, h, M]`."""
        columns = self._mixing.backward(scale_index, even, odd, self._spectrum)
        self._weight += column_spectra_adjoint(columns, self.problem, scale_index)

    def weight(self) -> Tensor:
        """Return the gradient of the weight, `[O, C/G, k, k]`."""
        return to_basis_adjoint(self._weight, self.problem.plan)

    def input(self) -> Tensor | None:
        """Return the gradient of the input, `[N, C, H, W]`, if it was wanted."""
        if self._spectrum is None:
            return None
        return analyse_adjoint(self._spectrum, self.problem.plan, self.problem.num_samples)


def stack_backward(gradients: Gradients, grad: Tensor) -> None:
    """Add the gradient of a whole stack, `[N, O, S, H, W]`."""
    problem, plan = gradients.problem, gradients.problem.plan
    for scale_index in range(plan.num_scales):
        maps = plan.inner_block(grad[:, :, scale_index], scale_index)
        gradients.add(scale_index, *gradients.rows(disassemble(maps, problem.groups)))


def pixel_backward(gradients: Gradients, grad: Tensor, choice: Tensor) -> None:
    """Add a gradient `[N, O, H, W]` whose pixels each belong to one scale, `choice`."""
    problem, workspace = gradients.problem, gradients.workspace
    grad_quarters = disassemble(grad, problem.groups)
    choice_quarters = disassemble(choice.to(grad), problem.groups)
    for scale_index in range(problem.plan.num_scales):
        h, w = problem.plan.halves(scale_index)
        quarters = workspace.take("quarters", 4, h, w, grad_quarters.shape[-1])
        torch.eq(choice_quarters[:, :h, :w], scale_index, out=quarters)
        quarters *= grad_quarters[:, :h, :w]
        gradients.add(scale_index, *gradients.rows(quarters))


def slice_backward(gradients: Gradients, grad: Tensor, winner: Tensor) -> None:
    """Add a gradient `[N, O, H, W]` whose maps each belong to one scale, `winner` `[N, O]`.

    All maps are transformed at once; each kernel size then takes those that are its own.
    """
    problem = gradients.problem
    per_map = winner.unflatten(1, (problem.groups, -1)).transpose(0, 1).flatten()
    rows = gradients.rows(disassemble(grad, problem.groups))
    for scale_index in winner.unique().tolist():
        h = problem.plan.rows.half(scale_index)
        own = (per_map == scale_index).to(grad)
        gradients.add(scale_index, *(part[:, :, :h] * own for part in rows))

"""Step 1: input and weight enter the frequency domain, once for all kernel sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.cost import Task
from equiscale.layers.scaled.spectral.plan import Plan


@dataclass(frozen=True)
class Problem:
    """An input's spectrum and a weight in the kernels' basis.

    Attributes:
        plan: Constants.
        groups: Number G of groups.
        spectrum: `[V, ±, U, G, (R, N), (R, C/G)]` input as real matrices, see `analyse`.
        weight: `[q, r, G, R, C/G, O/G]` weight in the basis of even and odd functions, see
            `to_basis`.
    """

    plan: Plan
    groups: int
    spectrum: Tensor
    weight: Tensor

    @property
    def num_samples(self) -> int:
        """Number N of samples."""
        return self.spectrum.shape[4] // 2

    @property
    def num_channels(self) -> int:
        """Number O of output channels."""
        return self.groups * self.weight.shape[-1]

    @property
    def task(self) -> Task:
        """What the cost depends on."""
        plan, (channels, outputs) = self.plan, self.weight.shape[4:]
        return Task(
            (plan.rows.num_frequencies, plan.columns.num_frequencies),
            batch=self.num_samples,
            channels=channels,
            out_channels=self.groups * outputs,
            groups=self.groups,
            functions=plan.num_functions,
        )

    @property
    def num_maps(self) -> int:
        """Number M of maps."""
        return self.num_samples * self.num_channels


def make_problem(x: Tensor, weight: Tensor, plan: Plan, groups: int) -> Problem:
    """Transform the input and change the weight's basis."""
    return Problem(plan, groups, analyse(x, plan, groups), to_basis(weight, plan, groups))


def analyse(x: Tensor, plan: Plan, groups: int) -> Tensor:
    """`[N, C, H, W] -> [V, ±, U, G, (R, N), (R, C/G)]`: spectrum of the input as real matrices.

    Multiplying by a conjugate complex number is a product with the real matrix
    `[[real, imag], [imag, -real]]`. Spelling it out here, once, makes the products of step 3
    ordinary real matrix products whose results have their real and imaginary parts apart.
    """
    U, V = plan.rows.num_frequencies, plan.columns.num_frequencies
    N, C, H, W = x.shape
    along_columns = plan.columns.analysis @ x.reshape(-1, W).T
    along_both = plan.rows.analysis @ along_columns.view(2 * V, N * C, H).transpose(1, 2)
    planes = along_both.view(2, V, 2, U, N, groups, C // groups).transpose(4, 5)
    (cc, sc), (cs, ss) = (half.unbind(1) for half in planes)
    result = x.new_empty(V, 2, U, groups, 2, N, 2, C // groups)
    for sign, blocks in enumerate(result.unbind(1)):
        real, imag = blocks[:, :, :, 0, :, 0], blocks[:, :, :, 0, :, 1]
        (torch.add if sign else torch.sub)(cc, ss, out=real)
        torch.sub(sc, cs, out=imag) if sign else torch.add(sc, cs, out=imag).neg_()
        blocks[:, :, :, 1, :, 0] = imag
        torch.neg(real, out=blocks[:, :, :, 1, :, 1])
    return result.flatten(6, 7).flatten(4, 5)


def analyse_adjoint(grad: Tensor, plan: Plan, num_samples: int) -> Tensor:
    """`[V, ±, U, G, (R, N), (R, C/G)] -> [N, C, H, W]`: transpose of `analyse`."""
    V, _, U, G = grad.shape[:4]
    blocks = grad.unflatten(5, (2, -1)).unflatten(4, (2, num_samples))
    real = blocks[:, :, :, :, 0, :, 0] - blocks[:, :, :, :, 1, :, 1]
    imag = blocks[:, :, :, :, 0, :, 1] + blocks[:, :, :, :, 1, :, 0]
    (real_plus, real_minus), (imag_plus, imag_minus) = real.unbind(1), imag.unbind(1)
    planes = real.new_empty(2, V, 2, U, num_samples, G, real.shape[-1])
    (cc, sc), (cs, ss) = (half.unbind(1) for half in planes.transpose(4, 5))
    torch.add(real_plus, real_minus, out=cc)
    torch.sub(real_minus, real_plus, out=ss)
    torch.sub(imag_minus, imag_plus, out=sc)
    torch.add(imag_plus, imag_minus, out=cs).neg_()
    along_rows = planes.view(2 * V, 2 * U, -1).transpose(1, 2) @ plan.rows.analysis
    result = along_rows.flatten(1).T @ plan.columns.analysis
    return result.view(num_samples, -1, *plan.input_size)


def to_basis(weight: Tensor, plan: Plan, groups: int) -> Tensor:
    """`[O, C/G, k, k] -> [q, r, G, R, C/G, O/G]`: from pixels to even and odd functions.

    The transforms of column function q and row function r are real or imaginary as the functions
    are even or odd. The weight stands where their product belongs, in the real or the imaginary
    part; the other is zero.
    """
    B, E = plan.change_of_basis, plan.num_even
    mixed = (B.T @ weight @ B).unflatten(0, (groups, -1)).permute(4, 3, 0, 2, 1)
    r = plan.num_functions
    result = weight.new_zeros(r, r, groups, 2, *mixed.shape[3:])
    result[:E, :E, :, 0] = mixed[plan.even, plan.even]
    result[E:, :E, :, 1] = -mixed[plan.odd, plan.even]
    result[E:, E:, :, 0] = mixed[plan.odd, plan.odd]
    result[:E, E:, :, 1] = mixed[plan.even, plan.odd]
    return result


def to_basis_adjoint(grad: Tensor, plan: Plan) -> Tensor:
    """`[q, r, G, R, C/G, O/G] -> [O, C/G, k, k]`: transpose of `to_basis`."""
    B, E = plan.change_of_basis, plan.num_even
    real, imag = grad.unbind(3)
    mixed = grad.new_zeros(*B.shape, *real.shape[2:])
    mixed[plan.even, plan.even] += real[:E, :E]
    mixed[plan.odd, plan.even] -= imag[E:, :E]
    mixed[plan.odd, plan.odd] += real[E:, E:]
    mixed[plan.even, plan.odd] += imag[:E, E:]
    return B @ mixed.permute(2, 4, 3, 1, 0).flatten(0, 1) @ B.T

"""Step 1: input and weight enter the frequency domain, once for all kernel sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equiscale.layers.spectral.plan import Plan


@dataclass(frozen=True)
class Problem:
    """An input's spectrum and a weight in the kernels' basis.

    Attributes:
        plan: Constants.
        groups: Number G of groups.
        spectrum: `[V, ±, U, G, (R, N), (R, C/G)]` input as real matrices, see `analyse`.
        weight: `[q, p, G, C/G, O/G]` weight in the basis of even and odd functions.
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
    """`[O, C/G, k, k] -> [q, p, G, C/G, O/G]`: from pixels to even and odd functions."""
    B = plan.change_of_basis
    mixed = (B.T @ weight @ B).unflatten(0, (groups, -1))
    return mixed.permute(4, 3, 0, 2, 1).contiguous()


def to_basis_adjoint(grad: Tensor, plan: Plan) -> Tensor:
    """`[q, p, G, C/G, O/G] -> [O, C/G, k, k]`: transpose of `to_basis`."""
    B = plan.change_of_basis
    return B @ grad.permute(2, 4, 3, 1, 0).flatten(0, 1) @ B.T

"""Steps 3 and 4: mix the channels, and undo the transform of the rows.

Two orders of the same sums. `FrequencyMixing` multiplies spectra, one matrix product per frequency,
and then transforms the output channels back along their rows. With one input channel there is
little to multiply, and transforming back dominates: `RowMixing` transforms the few input channels
back instead, once for each of the kernel's k row functions, and mixes afterwards.

Both return maps as `[V, h, (R, M)]`: spectra along the columns' axis, at the rows δy ≥ 0, of a part
that is even in δy (sums over cosines) and one that is odd (sums over sines).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from equiscale.layers.spectral.analysis import Problem
from equiscale.layers.spectral.kernels import column_spectra, row_transform
from equiscale.layers.spectral.workspace import Workspace

_CHUNK_BYTES = 3 << 19
_SAMPLES_FOR_ROWS = 8  # below, its matrices are too narrow to multiply fast


class Mixing(Protocol):
    """From spectra of the input to rows of the maps of one kernel size, and the transpose."""

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """Return the even and odd parts, `[V, h, (R, M)]`; the next call overwrites them."""

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """Turn gradients of both parts into those of the kernels and of the input.

        Args:
            scale_index: Which kernel size.
            even: `[V, h, (R, M)]` gradient of the even part.
            odd: That of the odd part.
            spectrum_grad: What the input's spectrum receives is added here, unless None.

        Returns:
            Gradient of `column_spectra`; the next call overwrites it.
        """


def make_mixing(problem: Problem, workspace: Workspace, input_wanted: bool = False) -> Mixing:
    """Return the faster order of the sums: rows first for one channel and a batch of images."""
    one_channel = problem.groups == 1 and problem.weight.shape[3] == 1
    if one_channel and problem.num_samples >= _SAMPLES_FOR_ROWS and not input_wanted:
        return RowMixing(problem, workspace)
    return FrequencyMixing(problem, workspace)


class FrequencyMixing:
    """Multiply the spectra of input and kernels, then transform back along the rows.

    Column frequencies are taken a few at a time, so that what is computed of them stays in the
    processor's cache.
    """

    def __init__(self, problem: Problem, workspace: Workspace) -> None:
        self._problem, self._workspace = problem, workspace
        self._chunks = [_Chunk(problem, columns, workspace) for columns in _split(problem)]

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        plan, h = self._problem.plan, self._problem.plan.rows.half(scale_index)
        cosine, sine = plan.rows.cosine[:h], plan.rows.sine[:h]
        shape = (plan.columns.num_frequencies, h, 2 * self._problem.num_maps)
        even, odd = (self._workspace.take(name, *shape) for name in ("even", "odd"))
        columns = column_spectra(self._problem, scale_index, self._workspace)
        rows = row_transform(plan, scale_index)
        for chunk in self._chunks:
            chunk.make_kernels(rows, columns)
            chunk.multiply()
            torch.bmm(cosine.expand(chunk.length, -1, -1), chunk.total, out=even[chunk.columns])
            torch.bmm(sine.expand(chunk.length, -1, -1), chunk.difference, out=odd[chunk.columns])
        return even, odd

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`."""
        plan, h = self._problem.plan, even.shape[1]
        cosine, sine = plan.rows.cosine[:h].T, plan.rows.sine[:h].T
        columns = column_spectra(self._problem, scale_index, self._workspace)
        rows = row_transform(plan, scale_index)
        result = self._workspace.take("columns_grad", *columns.shape)
        for chunk in self._chunks:
            own, length = chunk.columns, chunk.length
            torch.bmm(cosine.expand(length, -1, -1), even[own], out=chunk.total)
            torch.bmm(sine.expand(length, -1, -1), odd[own], out=chunk.difference)
            if spectrum_grad is not None:
                chunk.make_kernels(rows, columns)
            chunk.multiply_backward(spectrum_grad)
            torch.bmm(rows.T.expand(length, -1, -1), chunk.kernels, out=result[own])
        return result


def _split(problem: Problem) -> Iterator[slice]:
    """Yield slices of column frequencies of about `_CHUNK_BYTES` each."""
    V = problem.plan.columns.num_frequencies
    entries = 4 * problem.plan.rows.num_frequencies * problem.num_maps
    step = max(1, _CHUNK_BYTES // max(1, entries * problem.spectrum.element_size()))
    for first in range(0, V, step):
        yield slice(first, min(first + step, V))


class _Chunk:
    """Products at a few column frequencies.

    Attributes:
        columns: Which column frequencies.
        length: How many.
        kernels: `[V, (±, U), (G, R, C/G, O/G)]` spectra of the kernels.
        total: `[V, U, (R, M)]` sum over ± of the products.
        difference: `[V, U, (R, M)]` difference over ± of the products.
    """

    def __init__(self, problem: Problem, columns: slice, workspace: Workspace) -> None:
        self.columns = columns
        self.length = v = columns.stop - columns.start
        _, _, U, G, N2, C2 = problem.spectrum.shape
        O = problem.weight.shape[-1]
        self._spectrum = problem.spectrum[columns].flatten(0, 3)
        self.kernels = workspace.take("kernels", v, 2 * U, G * C2 * O)
        self._kernel_matrices = self.kernels.view(-1, C2, O)
        self._products = workspace.take("products", v * 2 * U * G, N2, O)
        # The real and imaginary parts stand before the groups in what follows.
        signs = self._products.view(v, 2, U, G, 2, N2 // 2 * O).transpose(3, 4)
        self._plus, self._minus = signs.unbind(1)
        self._total = workspace.take("total", *self._plus.shape)
        self._difference = workspace.take("difference", *self._plus.shape)
        self.total, self.difference = self._total.flatten(2), self._difference.flatten(2)

    def make_kernels(self, rows: Tensor, columns: Tensor) -> None:
        """Complete the spectra of the kernels."""
        torch.bmm(rows.expand(self.length, -1, -1), columns[self.columns], out=self.kernels)

    def multiply(self) -> None:
        """Multiply input and kernels at each frequency."""
        torch.bmm(self._spectrum, self._kernel_matrices, out=self._products)
        torch.add(self._plus, self._minus, out=self._total)
        torch.sub(self._plus, self._minus, out=self._difference)

    def multiply_backward(self, spectrum_grad: Tensor | None) -> None:
        """Replace the kernels by their gradient, after adding that of the input."""
        torch.add(self._total, self._difference, out=self._plus)
        torch.sub(self._total, self._difference, out=self._minus)
        if spectrum_grad is not None:
            kernels = self._kernel_matrices.transpose(1, 2)
            spectrum_grad[self.columns].flatten(0, 3).baddbmm_(self._products, kernels)
        torch.bmm(self._spectrum.transpose(1, 2), self._products, out=self._kernel_matrices)


class RowMixing:
    """Transform the input back along the rows for each row function, then mix; for groups = 1."""

    def __init__(self, problem: Problem, workspace: Workspace) -> None:
        self._problem, self._workspace = problem, workspace
        V, _, U, _, N2, C2 = problem.spectrum.shape
        plus, minus = problem.spectrum.view(V, 2, U, N2, C2).transpose(3, 4).unbind(1)
        self._total = (plus + minus).flatten(2)
        self._difference = (plus - minus).flatten(2)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        plan, h = self._problem.plan, self._problem.plan.rows.half(scale_index)
        shape = (plan.columns.num_frequencies, h, 2 * self._problem.num_maps)
        even, odd = (self._workspace.take(name, *shape) for name in ("even", "odd"))
        columns = self._column_matrices(scale_index)
        for result, responses in zip((even, odd), self._responses(scale_index), strict=True):
            torch.bmm(
                responses.transpose(1, 2),
                columns,
                out=result.view(len(result), -1, columns.shape[2]),
            )
        return even, odd

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`; the input's gradient is left to `FrequencyMixing`."""
        assert spectrum_grad is None
        out_channels = self._problem.weight.shape[-1]
        result: Tensor | None = None
        for grad, responses in zip((even, odd), self._responses(scale_index), strict=True):
            term = torch.bmm(responses, grad.reshape(len(grad), -1, out_channels))
            result = term if result is None else result + term
        assert result is not None
        functions = row_transform(self._problem.plan, scale_index).shape[1]
        return result.view(len(result), functions, -1)

    def _column_matrices(self, scale_index: int) -> Tensor:
        """Return `[V, (r, R, C), O]`: the kernels' spectra along the columns' axis."""
        columns = column_spectra(self._problem, scale_index, self._workspace)
        return columns.view(len(columns), -1, self._problem.weight.shape[-1])

    def _responses(self, scale_index: int) -> Iterator[Tensor]:
        """Yield `[V, (r, R, C), (h, R, N)]`, even and odd in δy: responses to row functions."""
        plan = self._problem.plan
        basis, h = plan.rows.kernels[scale_index], plan.rows.half(scale_index)
        N2, C2 = self._problem.spectrum.shape[4:]
        for wave, first, second in (
            (plan.rows.cosine[:h], self._total, self._difference),
            (plan.rows.sine[:h], self._difference, self._total),
        ):
            num_even, num_odd = basis.even.shape[1], basis.odd.shape[1]
            V = len(first)
            result = self._workspace.take("responses", V, num_even + num_odd, C2, h, N2)
            for place, functions, spectrum in (
                (result[:, :num_even], basis.even, first),
                (result[:, num_even:], -basis.odd, second),
            ):
                matrix = (functions.T[:, None] * wave).flatten(0, 1)
                out = self._workspace.take("response", V, len(matrix), C2 * N2)
                torch.bmm(matrix.expand(V, -1, -1), spectrum, out=out)
                place.copy_(out.view(V, -1, h, C2, N2).transpose(2, 3))
            yield result.flatten(3).flatten(1, 2)

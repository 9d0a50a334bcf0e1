"""Steps 3 and 4: mix the channels, and undo the transform of the rows.

Two orders of the same sums. `FrequencyMixing` multiplies spectra, one matrix product per frequency,
and then transforms the output channels back along their rows. `RowMixing` transforms the input
channels back instead, once for each of the kernel's k row functions, and mixes afterwards: this
is faster where there is little to mix, or where a map has few rows.

Both return maps as `[R, V, h, M]`: real and imaginary part of spectra along the columns' axis, at
the rows δy ≥ 0, of a part that is even in δy (sums over cosines) and one that is odd (over sines).
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

    def take_rows(self, h: int) -> tuple[Tensor, Tensor]:
        """Return memory for both parts of h rows, `[R, V, h, M]`, in the order that suits."""

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """Return the even and odd parts, `[R, V, h, M]`; the next call overwrites them."""

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """Turn gradients of both parts into those of the kernels and of the input.

        Args:
            scale_index: Which kernel size.
            even: `[R, V, h, M]` gradient of the even part.
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

    def take_rows(self, h: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.take_rows`: real and imaginary parts are transformed together."""
        V, M = self._problem.plan.columns.num_frequencies, self._problem.num_maps
        even, odd = (self._workspace.take(name, V, h, 2, M) for name in ("even", "odd"))
        return even.movedim(2, 0), odd.movedim(2, 0)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        plan, h = self._problem.plan, self._problem.plan.rows.half(scale_index)
        even, odd = self.take_rows(h)
        cosine, sine = plan.rows.cosine[:h], plan.rows.sine[:h]
        columns = column_spectra(self._problem, scale_index, self._workspace)
        rows = row_transform(plan, scale_index)
        for chunk in self._chunks:
            chunk.make_kernels(rows, columns)
            chunk.multiply()
            chunk.transform(cosine, chunk.total, even)
            chunk.transform(sine, chunk.difference, odd)
        return even, odd

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`."""
        plan, h = self._problem.plan, even.shape[2]
        cosine, sine = plan.rows.cosine[:h].T, plan.rows.sine[:h].T
        columns = column_spectra(self._problem, scale_index, self._workspace)
        rows = row_transform(plan, scale_index)
        result = self._workspace.take("columns_grad", *columns.shape)
        for chunk in self._chunks:
            chunk.transform_backward(cosine, even, chunk.total)
            chunk.transform_backward(sine, odd, chunk.difference)
            if spectrum_grad is not None:
                chunk.make_kernels(rows, columns)
            chunk.multiply_backward(spectrum_grad)
            torch.bmm(
                rows.T.expand(chunk.length, -1, -1), chunk.kernels, out=result[chunk.columns]
            )
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

    def transform(self, wave: Tensor, spectra: Tensor, rows: Tensor) -> None:
        """Evaluate `[V, U, (R, M)]` at the rows of `[R, V, h, M]`, here in `take_rows`' order."""
        own = rows.movedim(0, 2)[self.columns].flatten(2)
        torch.bmm(wave.expand(self.length, -1, -1), spectra, out=own)

    def transform_backward(self, wave: Tensor, rows: Tensor, spectra: Tensor) -> None:
        """Transpose of `transform`."""
        own = rows.movedim(0, 2)[self.columns].flatten(2)
        torch.bmm(wave.expand(self.length, -1, -1), own, out=spectra)

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
        N, C2 = problem.num_samples, problem.spectrum.shape[5]
        self._samples_last = N >= C2  # long runs of numbers are copied faster
        plus, minus = problem.spectrum[:, :, :, 0, :N].unbind(1)
        self._total, self._difference = (
            (part.transpose(2, 3) if self._samples_last else part).flatten(2)
            for part in (plus + minus, plus - minus)
        )

    def take_rows(self, h: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.take_rows`: real and imaginary parts are results of different products."""
        V, M = self._problem.plan.columns.num_frequencies, self._problem.num_maps
        return self._workspace.take("even", 2, V, h, M), self._workspace.take("odd", 2, V, h, M)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        even, odd = self.take_rows(self._problem.plan.rows.half(scale_index))
        kernels = self._kernel_matrices(scale_index)
        for result, responses in zip((even, odd), self._responses(scale_index), strict=True):
            for part, matrices in zip(result, kernels, strict=True):
                out = part.view(len(part), -1, matrices.shape[2])
                torch.bmm(responses, matrices, out=out)
        return even, odd

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`; the input's gradient is left to `FrequencyMixing`."""
        assert spectrum_grad is None
        C, O = self._problem.weight.shape[3:]
        result: Tensor | None = None
        for grads, responses in zip((even, odd), self._responses(scale_index), strict=True):
            real, imag = (
                torch.bmm(responses.transpose(1, 2), grad.reshape(len(grad), -1, O)).view(
                    len(grad), -1, 2, C * O
                )
                for grad in grads
            )
            real[:, :, 0] += imag[:, :, 1]
            real[:, :, 1] -= imag[:, :, 0]
            result = real if result is None else result + real
        assert result is not None
        return result.flatten(2)

    def _kernel_matrices(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """Return `[V, (r, R, C), O]` twice: what makes the real and the imaginary part."""
        columns = column_spectra(self._problem, scale_index, self._workspace)
        V, (C, O) = len(columns), self._problem.weight.shape[3:]
        by_part = columns.view(V, -1, 2, C * O)
        turned = self._workspace.take("turned", *by_part.shape)
        torch.neg(by_part[:, :, 1], out=turned[:, :, 0])
        turned[:, :, 1] = by_part[:, :, 0]
        return columns.view(V, -1, O), turned.view(V, -1, O)

    def _responses(self, scale_index: int) -> Iterator[Tensor]:
        """Yield `[V, (h, N), (r, R, C)]`, even and odd in δy: responses to row functions."""
        rows, h = self._problem.plan.rows, self._problem.plan.rows.half(scale_index)
        basis = rows.kernels[scale_index]
        N, C2 = self._problem.num_samples, self._problem.spectrum.shape[5]
        V, num_even, num_odd = len(self._total), basis.even.shape[1], basis.odd.shape[1]
        for wave, first, second in (
            (rows.cosine[:h], self._total, self._difference),
            (rows.sine[:h], self._difference, self._total),
        ):
            result = self._workspace.take("responses", V * h * N * (num_even + num_odd) * C2)
            if self._samples_last:
                by_function = result.view(V, -1, C2, h, N).transpose(2, 3)
                matrices = result.view(V, -1, h * N).transpose(1, 2)
            else:
                by_function = result.view(V, h, N, -1, C2).movedim(3, 1)
                matrices = result.view(V, h * N, -1)
            for place, functions, spectrum in (
                (by_function[:, :num_even], basis.even, first),
                (by_function[:, num_even:], -basis.odd, second),
            ):
                matrix = (functions.T[:, None] * wave).flatten(0, 1)
                out = self._workspace.take("response", V, len(matrix), C2 * N)
                torch.bmm(matrix.expand(V, -1, -1), spectrum, out=out)
                place.copy_(out.view(place.shape))
            yield matrices

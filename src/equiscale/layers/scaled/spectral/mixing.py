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
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.analysis import Problem
from equiscale.layers.scaled.spectral.kernels import column_spectra
from equiscale.layers.scaled.spectral.workspace import Workspace, butterfly

_CHUNK_BYTES = 3 << 19
_SAMPLES_FOR_ROWS = 8  # below, its matrices are too narrow to multiply fast
_OUTPUTS_FOR_NATIVE = 8  # per group; below, most of a compiled tile would be empty


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


def make_mixing(problem: Problem, workspace: Workspace, input_wanted: bool) -> Mixing:
    """Return the order of the sums for backward passes: rows first for one channel."""
    one_channel = problem.groups == 1 and problem.weight.shape[4] == 1
    if one_channel and problem.num_samples >= _SAMPLES_FOR_ROWS and not input_wanted:
        return RowMixing(problem, workspace)
    return FrequencyMixing(problem, workspace)


class FasterMixing:
    """Take the order of the sums that is faster for each kernel size; forward only.

    In compiled code products of spectra are faster for nearly all, so that rows never come first.
    """

    def __init__(self, problem: Problem, workspace: Workspace) -> None:
        self._problem, self._workspace, self._task = problem, workspace, problem.task
        self._by_frequency = FrequencyMixing(problem, workspace)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        half = self._problem.plan.rows.half(scale_index)
        if self._by_frequency.is_compiled or not self._task.rows_come_first(half):
            return self._by_frequency.forward(scale_index)
        return self._by_row.forward(scale_index)

    @cached_property
    def _by_row(self) -> RowMixing:
        return RowMixing(self._problem, self._workspace)


class FrequencyMixing:
    """Multiply the spectra of input and kernels, then transform back along the rows.

    Column frequencies are taken a few at a time, so that what is computed of them stays in the
    processor's cache.
    """

    def __init__(self, problem: Problem, workspace: Workspace) -> None:
        self._problem, self._workspace = problem, workspace
        wide = problem.weight.shape[-1] >= _OUTPUTS_FOR_NATIVE
        self._native = workspace.native if wide else None

    @property
    def is_compiled(self) -> bool:
        """Whether forward passes run in compiled code."""
        return self._native is not None

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        entries = 4 * self._problem.plan.rows.num_frequencies * self._problem.num_maps
        chunks = _split(self._problem, entries)
        return [_Chunk(self._problem, columns, self._workspace) for columns in chunks]

    def take_rows(self, h: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.take_rows`: real and imaginary parts are transformed together."""
        V, M = self._problem.plan.columns.num_frequencies, self._problem.num_maps
        even, odd = (self._workspace.take(name, V, h, 2, M) for name in ("even", "odd"))
        return even.movedim(2, 0), odd.movedim(2, 0)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        plan, h = self._problem.plan, self._problem.plan.rows.half(scale_index)
        even, odd = self.take_rows(h)
        columns = column_spectra(self._problem, scale_index, self._workspace)
        if self._native is not None:
            self._native.mix(self._problem.spectrum, columns, (even, odd), plan, scale_index)
            return even, odd
        by_column = _by_column(even), _by_column(odd)
        cosine, sine = plan.rows.waves[:, :h].unbind()
        rows = plan.rows.kernels[scale_index].signed
        for chunk in self._chunks:
            chunk.make_kernels(rows, columns)
            chunk.multiply()
            chunk.transform(cosine, chunk.total, by_column[0])
            chunk.transform(sine, chunk.difference, by_column[1])
        return even, odd

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`."""
        plan, h = self._problem.plan, even.shape[2]
        by_column = _by_column(even), _by_column(odd)
        cosine, sine = plan.rows.waves[:, :h].transpose(1, 2).unbind()
        columns = column_spectra(self._problem, scale_index, self._workspace)
        rows = plan.rows.kernels[scale_index].signed
        result = self._workspace.take("columns_grad", *columns.shape)
        for chunk in self._chunks:
            chunk.transform_backward(cosine, by_column[0], chunk.total)
            chunk.transform_backward(sine, by_column[1], chunk.difference)
            if spectrum_grad is not None:
                chunk.make_kernels(rows, columns)
            chunk.multiply_backward(spectrum_grad)
            torch.bmm(rows.T.expand(chunk.length, -1, -1), chunk.kernels, out=result[chunk.columns])
        return result


def _by_column(rows: Tensor) -> Tensor:
    """`[R, V, h, M] -> [V, h, (R, M)]`: a view of what `FrequencyMixing.take_rows` returns."""
    return rows.movedim(0, 2).flatten(2)


def _split(problem: Problem, entries: int) -> Iterator[slice]:
    """Yield slices of column frequencies; at each of them this many numbers are computed."""
    V = problem.plan.columns.num_frequencies
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
        self._difference, self._total = self._plus, self._minus
        if G > 1:
            self._difference = workspace.take("difference", *self._plus.shape)
            self._total = workspace.take("total", *self._plus.shape)
        self.total, self.difference = self._total.flatten(2), self._difference.flatten(2)

    def make_kernels(self, rows: Tensor, columns: Tensor) -> None:
        """Complete the spectra of the kernels."""
        torch.bmm(rows.expand(self.length, -1, -1), columns[self.columns], out=self.kernels)

    def multiply(self) -> None:
        """Multiply input and kernels at each frequency."""
        torch.bmm(self._spectrum, self._kernel_matrices, out=self._products)
        butterfly(self._plus, self._minus)
        if self._total is not self._minus:
            self._difference.copy_(self._plus)
            self._total.copy_(self._minus)

    def transform(self, wave: Tensor, spectra: Tensor, rows: Tensor) -> None:
        """`[V, U, (R, M)] -> [V, h, (R, M)]`: evaluate spectra at the rows δy ≥ 0."""
        torch.bmm(wave.expand(self.length, -1, -1), spectra, out=rows[self.columns])

    def transform_backward(self, wave: Tensor, rows: Tensor, spectra: Tensor) -> None:
        """Transpose of `transform`."""
        torch.bmm(wave.expand(self.length, -1, -1), rows[self.columns], out=spectra)

    def multiply_backward(self, spectrum_grad: Tensor | None) -> None:
        """Replace the kernels by their gradient, after adding that of the input."""
        torch.add(self._total, self._difference, out=self._plus)
        torch.lerp(self._plus, self._total, 2.0, out=self._minus)
        if spectrum_grad is not None:
            kernels = self._kernel_matrices.transpose(1, 2)
            spectrum_grad[self.columns].flatten(0, 3).baddbmm_(self._products, kernels)
        torch.bmm(self._spectrum.transpose(1, 2), self._products, out=self._kernel_matrices)


class RowMixing:
    """Transform the input back along the rows for each row function, then mix; for groups = 1.

    Its memory is that of `FrequencyMixing`, which holds nothing between its calls.
    """

    def __init__(self, problem: Problem, workspace: Workspace) -> None:
        self._problem, self._workspace = problem, workspace
        N, C2 = problem.num_samples, problem.spectrum.shape[5]
        self._samples_last = N >= C2  # long runs of numbers are copied faster
        plus, minus = problem.spectrum[:, :, :, 0, :N].unbind(1)
        self._total, self._difference = (
            (part.transpose(2, 3) if self._samples_last else part).flatten(2)
            for part in (plus + minus, plus - minus)
        )
        self._turned_waves = -problem.plan.rows.waves.flip(0)

    def take_rows(self, h: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.take_rows`: real and imaginary parts are results of different products."""
        V, M = self._problem.plan.columns.num_frequencies, self._problem.num_maps
        return self._workspace.take("even", 2, V, h, M), self._workspace.take("odd", 2, V, h, M)

    def forward(self, scale_index: int) -> tuple[Tensor, Tensor]:
        """See `Mixing.forward`."""
        rows = self.take_rows(self._problem.plan.rows.half(scale_index))
        kernels = self._kernel_matrices(scale_index)
        for columns, parity, responses in self._responses(scale_index):
            for part, matrices in zip(rows[parity], kernels, strict=True):
                out = part[columns].view(len(responses), -1, matrices.shape[2])
                torch.bmm(responses, matrices[columns], out=out)
        return rows

    def backward(
        self, scale_index: int, even: Tensor, odd: Tensor, spectrum_grad: Tensor | None
    ) -> Tensor:
        """See `Mixing.backward`; the input's gradient is left to `FrequencyMixing`."""
        assert spectrum_grad is None
        r, _, _, C, O = self._problem.weight.shape[1:]
        result = even.new_zeros(even.shape[1], r, 2, C * O)
        for columns, parity, responses in self._responses(scale_index):
            real, imag = (
                torch.bmm(responses.transpose(1, 2), grad[columns].reshape(len(responses), -1, O))
                for grad in (even, odd)[parity]
            )
            own, by_part = result[columns], imag.view(-1, r, 2, C * O)
            own += real.view_as(own)
            own[:, :, 0] += by_part[:, :, 1]
            own[:, :, 1] -= by_part[:, :, 0]
        return result.flatten(2)

    def _kernel_matrices(self, scale_index: int) -> tuple[Tensor, ...]:
        """Return `[V, (r, R, C), O]` twice: what makes the real and the imaginary part."""
        spectra = column_spectra(self._problem, scale_index, self._workspace)
        real, imag = spectra.unflatten(2, (2, -1)).unbind(2)
        turned = self._workspace.take("turned", *spectra.shape)
        first, second = turned.unflatten(2, (2, -1)).unbind(2)
        torch.neg(imag, out=first)
        second.copy_(real)
        shape = len(spectra), -1, self._problem.weight.shape[-1]
        return spectra.view(shape), turned.view(shape)

    def _responses(self, scale_index: int) -> Iterator[tuple[slice, int, Tensor]]:
        """Yield responses `[V, (h, N), (r, R, C)]` to row functions, a few column frequencies V.

        They come with their slice of column frequencies, and 0 for the part that is even in δy
        or 1 for the odd one.
        """
        E, h = self._problem.plan.num_even, self._problem.plan.rows.half(scale_index)
        matrices = self._row_matrices(scale_index)
        entries = len(matrices[0]) * self._total.shape[2]
        for columns in _split(self._problem, entries):
            total, difference = self._transform_rows(matrices, columns, h)
            for parity, parts in enumerate(((total, difference), (difference, total))):
                responses, by_function = self._take_responses(total.shape)
                by_function[:, :E].copy_(parts[0][:, :E])
                by_function[:, E:].copy_(parts[1][:, E:])
                yield columns, parity, responses

    def _take_responses(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Return memory of shape `[V, (h, N), (r, R, C)]`, and its view `[V, r, h, ...]`."""
        V, functions, h = shape[:3]
        N, C2 = self._problem.num_samples, self._problem.spectrum.shape[5]
        if self._samples_last:
            memory = self._workspace.take("products", V, functions, C2, h, N)
            return memory.flatten(3).flatten(1, 2).transpose(1, 2), memory.transpose(2, 3)
        memory = self._workspace.take("products", V, h, N, functions, C2)
        return memory.flatten(3).flatten(1, 2), memory.movedim(3, 1)

    def _row_matrices(self, scale_index: int) -> tuple[Tensor, ...]:
        """Return `[(r, h), U]` twice: from total and difference to the rows δy ≥ 0, per function.

        Of the total, even functions make the part even in δy and odd ones that odd in δy; of the
        difference it is the other way round.
        """
        rows, E = self._problem.plan.rows, self._problem.plan.num_even
        functions, h = rows.kernels[scale_index].functions.T[:, None], rows.half(scale_index)
        r, _, U = functions.shape
        matrices = self._workspace.take("matrices", 2, r, h, U)
        torch.mul(functions[:E], rows.waves[:, None, :h], out=matrices[:, :E])
        torch.mul(functions[E:], self._turned_waves[:, None, :h], out=matrices[:, E:])
        return matrices.flatten(1, 2).unbind()

    def _transform_rows(
        self, matrices: tuple[Tensor, ...], columns: slice, h: int
    ) -> Iterator[Tensor]:
        """Yield `[V, r, h, ...]`: total and difference at the rows δy ≥ 0, per row function."""
        N, C2 = self._problem.num_samples, self._problem.spectrum.shape[5]
        last = (C2, N) if self._samples_last else (N, C2)
        for name, matrix, spectrum in zip(
            ("kernels", "difference"),
            matrices,
            (self._total[columns], self._difference[columns]),
            strict=True,
        ):
            V = len(spectrum)
            out = self._workspace.take(name, V, len(matrix), N * C2)
            torch.bmm(matrix.expand(V, -1, -1), spectrum, out=out)
            yield out.view(V, -1, h, *last)

"""A 3-D convolution with large kernels as products of spectra over (H, W).

Both image axes are transformed. The scale axis S is not, because it is short: its taps are laid
side by side and summed by the product that mixes the channels. Transforms are matrix products,
which on maps of this size are as fast as an FFT and need no copies between steps.

Axes: U and V count frequencies down and across, R is real and imaginary part. Frequencies across
lie half a step off zero: values that wrap around change their sign, which affects no valid output,
and only the last frequency of an odd width is its own mirror image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.precision import without_autocast

IMAGES = 8
"""Images transformed at a time: more share the kernels' spectra, fewer take less memory."""

_CACHED_WAVES = 16
_PRICE = 3  # of a multiply-add here, relative to one of an ordinary convolution


class Workspace:
    """Memory that is used again for every few images: fresh memory of this size is slow."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialised tensor; an earlier one of this name is overwritten."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def output_sizes(input_shape: Sequence[int], kernel_shape: Sequence[int]) -> tuple[int, ...]:
    """Return (S', H', W') of a convolution without padding."""
    return tuple(n - k + 1 for n, k in zip(input_shape[2:], kernel_shape[2:], strict=True))


def ordinary_cost(input_shape: Sequence[int], kernel_shape: Sequence[int]) -> int:
    """Multiply-adds of a convolution by its definition."""
    maps = math.prod(output_sizes(input_shape, kernel_shape))
    return input_shape[0] * math.prod(kernel_shape) * maps


def fourier_cost(input_shape: Sequence[int], kernel_shape: Sequence[int]) -> int:
    """Multiply-adds of `fourier_conv3d`."""
    N, C, S, H, W = input_shape
    O, _, T, k, l = kernel_shape
    outputs, h, w = output_sizes(input_shape, kernel_shape)
    there = N * C * S * (2 * H * W + 4 * H * H)
    kernels = C * O * T * k * (2 * l + 8 * H)
    mixing = 4 * N * C * O * T * H * outputs
    back = N * O * outputs * (4 * H * h + 2 * h * w)
    return (W + 1) // 2 * (there + kernels + mixing + back)


def transforms_pay(x: Tensor, weight: Tensor) -> bool:
    """Whether spectra are faster than an ordinary convolution: on CPUs, with large kernels.

    It compares multiply-adds; those of the spectra count three times, for the work between the
    products.
    """
    cheaper = _PRICE * fourier_cost(x.shape, weight.shape) < ordinary_cost(x.shape, weight.shape)
    return x.device.type == "cpu" and cheaper


def fourier_conv3d(x: Tensor, weight: Tensor) -> Iterator[Tensor]:
    """`[N, C, S, H, W], [O, C, T, k, l] -> [n, O, S', H', W']`, a few images at a time.

    Each result is a view of memory that the next one overwrites. It cannot be differentiated.
    """
    waves = _make_waves(*x.shape[3:], *weight.shape[3:], x.dtype)
    kernels = _transform_columns(weight, waves)
    workspace = Workspace(x)
    for images in x.split(IMAGES):
        windows = _Windows(images, weight, waves, workspace)
        for v, columns in enumerate(kernels):
            windows.multiply(v, columns)
        yield windows.maps()


def large_conv3d(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[N, C, S, H, W] -> [N, O, S', H', W']`: `conv3d`, by spectra where these are faster.

    The spectra cannot be differentiated.
    """
    if torch.compiler.is_exporting() or not transforms_pay(x, weight):
        return F.conv3d(x, weight, bias)
    output: Tensor = torch.ops.equiscale.fourier_conv3d(x, weight, bias)
    return output


def _all_maps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result = _all_maps_shape(x, weight, bias)
    shift = x.new_zeros(()) if bias is None else bias[:, None, None, None]
    first = 0
    with without_autocast(x):
        for maps in fourier_conv3d(x, weight):
            torch.add(maps, shift, out=result[first : first + len(maps)])
            first += len(maps)
    return result


def _all_maps_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], *output_sizes(x.shape, weight.shape))


# A custom operator, so that the compiler does not trace its loop.
_LIBRARY = torch.library.Library("equiscale", "FRAGMENT")
_LIBRARY.define("fourier_conv3d(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_LIBRARY.impl("fourier_conv3d", _all_maps, "CompositeExplicitAutograd")
torch.library.register_fake("equiscale::fourier_conv3d", _all_maps_shape, lib=_LIBRARY)


@dataclass(frozen=True)
class _Waves:
    """The matrices of all transforms.

    Attributes:
        columns: `[(V, R), W]`, from pixels to spectra along the columns' axis.
        rows: `[R, (R', U), H]`, from part R of these to part R' of spectra along both axes.
        kernel_columns: `[(V, R), l]`, as `columns`, conjugate as a correlation needs it.
        kernel_rows: `[(R, U, R'), (R'', k)]`, from part R'' of these to the real matrices with
            which part R of an image's spectrum contributes to part R' of a product.
        rows_back: `[R', (U, R), H']`, from part R along both axes to part R' along columns.
        columns_back: `[(V, R), W']`, from spectra along the columns' axis to pixels.
    """

    columns: Tensor
    rows: Tensor
    kernel_columns: Tensor
    kernel_rows: Tensor
    rows_back: Tensor
    columns_back: Tensor


@lru_cache(maxsize=_CACHED_WAVES)
def _make_waves(height: int, width: int, k: int, l: int, dtype: torch.dtype) -> _Waves:
    """Return the matrices for images and kernels of these sizes, computed in float64."""
    half = (width + 1) // 2
    cos, sin = _waves(torch.arange(half) + 0.5, width)
    share = torch.full((half, 1, 1), 2 / (height * width), dtype=torch.float64)
    if width % 2:
        share[-1] /= 2
    columns = torch.stack([cos, -sin], 1)
    cos_down, sin_down = _waves(torch.arange(height), height)
    backward = _complex_product(cos_down, sin_down)
    kernel_parts = backward[..., :k].transpose(1, 2).flatten(2)
    matrices = (
        columns.flatten(0, 1),
        _complex_product(cos_down, -sin_down).transpose(0, 1).flatten(1, 2),
        torch.stack([cos, sin], 1)[..., :l].flatten(0, 1),
        _complex_product(*kernel_parts).permute(1, 2, 0, 3).flatten(0, 2),
        backward[..., : height - k + 1].transpose(1, 2).flatten(1, 2),
        (share * columns)[..., : width - l + 1].flatten(0, 1),
    )
    return _Waves(*(matrix.to(dtype).contiguous() for matrix in matrices))


def _waves(frequencies: Tensor, period: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, `[F, period]` each."""
    angles = torch.outer(frequencies.double(), torch.arange(period, dtype=torch.float64))
    angles *= 2 * math.pi / period
    return angles.cos(), angles.sin()


def _complex_product(real: Tensor, imag: Tensor) -> Tensor:
    """Return `[R', R, ...]`: the factors that make part R' of a product from part R."""
    return torch.stack([torch.stack([real, -imag]), torch.stack([imag, real])])


def _transform_columns(weight: Tensor, waves: _Waves) -> Tensor:
    """`[O, C, T, k, l] -> [V, (R, k), (O, C, T)]`."""
    k, l = weight.shape[3:]
    spectra = waves.kernel_columns @ weight.movedim(3, 0).reshape(-1, l).T
    return spectra.view(len(spectra) // 2, 2 * k, -1)


class _Windows:
    """A few images on their way to the frequency domain and back.

    Column frequencies are processed one by one, so that intermediate results stay in the cache.
    """

    def __init__(self, images: Tensor, weight: Tensor, waves: _Waves, workspace: Workspace) -> None:
        N, C, S, H, W = images.shape
        self._inputs, self._outputs = (N, C, S), (weight.shape[0], N, S - weight.shape[2] + 1)
        self._waves, self._workspace = waves, workspace
        V = len(waves.columns) // 2
        columns = workspace.take("columns", 2 * V, N * C * S * H)
        torch.mm(waves.columns, images.reshape(-1, W).T, out=columns)
        self._columns = columns.view(V, 2, -1, H).transpose(2, 3)
        self._rows = workspace.take(
            "rows", V, 2, math.prod(self._outputs), waves.rows_back.shape[2]
        )

    def multiply(self, v: int, kernel_columns: Tensor) -> None:
        """Multiply with the kernels, `[(R, k), (O, C, T)]`, at the v-th frequency of columns."""
        real, imag = self._spectrum(v)
        O, U = self._outputs[0], len(real)
        kernels = (self._waves.kernel_rows @ kernel_columns).view(2, U, 2 * O, -1)
        products = torch.bmm(kernels[0], real).baddbmm_(kernels[1], imag)
        by_frequency = products.view(2 * U, -1).T
        torch.bmm(by_frequency.expand(2, -1, -1), self._waves.rows_back, out=self._rows[v])

    def _spectrum(self, v: int) -> Tensor:
        """Return `[R, U, (C, T), (N, S')]`: spectra of the scales under each tap."""
        N, C, S = self._inputs
        rows, (real, imag) = self._waves.rows, self._columns[v]
        spectrum = torch.mm(rows[0], real).addmm_(rows[1], imag).view(2, -1, N, C, S)
        return (
            spectrum.unfold(4, self._outputs[2], 1)
            .permute(0, 1, 3, 4, 2, 5)
            .flatten(4)
            .flatten(2, 3)
        )

    def maps(self) -> Tensor:
        """Return `[N, O, S', H', W']`: the products as maps."""
        by_pixel = self._rows.view(len(self._waves.columns_back), -1).T
        maps = self._workspace.take("maps", len(by_pixel), self._waves.columns_back.shape[1])
        torch.mm(by_pixel, self._waves.columns_back, out=maps)
        return maps.view(*self._outputs, -1, maps.shape[1]).transpose(0, 1)

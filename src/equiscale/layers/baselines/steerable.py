"""Steerable scale convolutions (SES, Sosnovik et al. 2020 and 2021) and their two bases.

A basis is a tensor ψ `[F, S, K, K]`: F functions, each at S scales, on K×K pixels. The kernel of
scale s is `Σ_f weight[o, c, f] · ψ[f, s]`: all scales share one set of weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers
from equiscale.layers.baselines.frugal_conv import frugal_conv2d

HERMITE_SCALES = (2.0, 2.52, 3.17, 4.0)
SUPPORT = 15
LARGEST_SUPPORT = 255
MAX_ORDER = 4

# --- Bases ----------------------------------------------------------------------------------------


def hermite_functions(size: int, sigma: float, ratio: float, count: int) -> Tensor:
    """Return `[count, size, size]`, in float64: two-dimensional Hermite functions on a pixel grid.

    `He_n(x/σ) e^{-x²/2σ²}/σ · He_m(y/σ) e^{-y²/2σ²}/σ` with n + m ≤ 4, x along the first axis, m
    in the outer and n in the inner loop; then the same with σ / ratio, σ / ratio², …
    """
    functions: list[Tensor] = []
    while len(functions) < count:
        rows = _hermite_rows(size, sigma)
        for m in range(MAX_ORDER + 1):
            functions += [torch.outer(rows[n], rows[m]) for n in range(MAX_ORDER + 1 - m)]
        sigma /= ratio
    return torch.stack(functions[:count])


def _hermite_rows(size: int, sigma: float) -> list[Tensor]:
    """Return the functions of order 0 to 4 along one axis, `[size]` each."""
    x = torch.arange(-(size // 2), size // 2 + 1, dtype=torch.float64) / sigma
    polynomials = [torch.ones_like(x), x]
    for n in range(1, MAX_ORDER):
        polynomials.append(x * polynomials[n] - n * polynomials[n - 1])
    envelope = torch.exp(-x.square() / 2) / sigma
    return [polynomial * envelope for polynomial in polynomials]


def hermite_basis(
    kernel_size: int = 7, support: int = SUPPORT, scales: Sequence[float] = HERMITE_SCALES
) -> Tensor:
    """Return ψ `[k², S, support, support]` in closed form, in float64, normalised.

    Args:
        kernel_size: Effective size k; the basis has k² functions.
        support: Side of the kernel at the largest scale, odd; smaller scales use less of it.
        scales: σ of each scale, increasing.
    """
    check_scales(scales)
    if support % 2 == 0 or support > LARGEST_SUPPORT:
        raise OptionError(
            f"support must be odd, so that kernels have a centre, and at most {LARGEST_SUPPORT}, "
            f"got {support}"
        )
    sizes = [2 * (math.floor(support * sigma / scales[-1]) // 2) + 1 for sigma in scales]
    if kernel_size > sizes[0]:
        raise OptionError(
            f"kernel_size must be at most {sizes[0]}, the side of the smallest kernel for "
            f"support={support} and scales={list(scales)}, got {kernel_size}"
        )
    maps = []
    for sigma, size in zip(scales, sizes, strict=True):
        functions = hermite_functions(size, sigma, 1.5, kernel_size**2)
        maps.append(F.pad(functions, [(support - size) // 2] * 4))
    return normalised(torch.stack(maps, dim=1))


def disco_basis(raw: Tensor) -> Tensor:
    """Return ψ `[k², S, K, K]` = Hβ, normalised, from a raw basis β of the same shape.

    β[p] is what the p-th pixel of a k×k kernel becomes at each scale, see `load_raw_basis`;
    H holds k² Hermite functions on the k×k grid (σ 1.9, ratio 1.9).
    """
    functions = hermite_functions(math.isqrt(raw.shape[0]), 1.9, 1.9, raw.shape[0])
    return normalised(torch.einsum("fp,psyx->fsyx", functions.flatten(1).to(raw), raw))


def normalised(basis: Tensor) -> Tensor:
    """`[F, S, K, K] -> [F, S, K, K]`: each function over its L2 norm at the smallest scale."""
    norm: Tensor = torch.linalg.matrix_norm(basis[:, :1], keepdim=True)
    return basis / norm


def check_scales(scales: Sequence[float]) -> None:
    """Raise `OptionError` unless the scales are positive and increasing."""
    check_numbers("scales", scales)
    values = list(scales)
    if values[0] <= 0 or values != sorted(set(values)):
        raise OptionError(f"scales must be positive and strictly increasing, got {values}")


# --- Convolutions ---------------------------------------------------------------------------------


class _SteerableConv(nn.Module):
    """One ordinary convolution per scale, on the pixels where its basis is not zero."""

    def __init__(self, weight_shape: Sequence[int], basis: Tensor, bias: bool) -> None:
        super().__init__()
        if basis.ndim != 4 or basis.shape[2] != basis.shape[3] or basis.shape[2] % 2 == 0:
            raise ShapeError(f"a basis must be [F, S, K, K] with K odd, got {list(basis.shape)}")
        self.num_scales, self.support = basis.shape[1], basis.shape[-1]
        self._lattices = [_lattice(maps) for maps in basis.unbind(1)]
        for index, (reach, step) in enumerate(self._lattices):
            used = slice(self.support // 2 - reach, self.support // 2 + reach + 1, step)
            maps = basis[:, index, used, used].to(torch.get_default_dtype()).contiguous()
            self.register_buffer(f"basis{index}", maps, persistent=False)
        self.weight = nn.Parameter(torch.empty(*weight_shape, basis.shape[0]))
        self.bias = nn.Parameter(torch.empty(weight_shape[0])) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight uniformly as `torch.nn.Conv2d` does and set the bias to zero."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def kernel(self, scale_index: int) -> Tensor:
        """Return the kernel `[O, C, k, k]` of one scale, without pixels that are always zero."""
        basis = self.get_buffer(f"basis{scale_index}")
        kernel = self.weight.flatten(2) @ basis.flatten(1)
        return kernel.view(*kernel.shape[:2], *basis.shape[1:])

    def _convolve(self, columns: Iterable[Tensor]) -> Tensor:
        """`S × [N, C, H, W] -> [N, O, S, H', W']`."""
        maps = []
        for index, (column, (reach, step)) in enumerate(zip(columns, self._lattices, strict=True)):
            margin = self.support // 2 - reach
            inner = column[:, :, margin : column.shape[2] - margin, :]
            inner = inner[..., margin : column.shape[3] - margin]
            maps.append(frugal_conv2d(inner, self.kernel(index), self.bias, dilation=step))
        return torch.stack(maps, dim=2)

    def extra_repr(self) -> str:
        """Show the sizes."""
        out_channels, in_channels = self.weight.shape[:2]
        return f"{in_channels}, {out_channels}, scales={self.num_scales}, support={self.support}"


class SteerableLift2d(_SteerableConv):
    """`[N, C, H, W] -> [N, O, S, H', W']`: Z² → H, the image convolved at every scale.

    For images f and their rescaling L_a, map s of `L_a f` is approximately map s' of f rescaled,
    with s' the scale a factor a away; the error depends on the basis, see `docs/models.md`.

    Args:
        in_channels: Channels of the images.
        out_channels: Channels of each map.
        basis: ψ `[F, S, K, K]`, from `hermite_basis` or `disco_basis`; a valid convolution.
        bias: Add a learned bias per output channel.

    Examples:
        >>> SteerableLift2d(1, 16, hermite_basis())(torch.zeros(2, 1, 20, 20)).shape
        torch.Size([2, 16, 4, 6, 6])
    """

    def __init__(
        self, in_channels: int, out_channels: int, basis: Tensor, bias: bool = True
    ) -> None:
        super().__init__((out_channels, in_channels), basis, bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, S, H', W']`."""
        if x.ndim != 4 or x.shape[1] != self.weight.shape[1]:
            raise ShapeError(f"expected [N, {self.weight.shape[1]}, H, W], got {list(x.shape)}")
        return self._convolve((x,) * self.num_scales)


class SteerableConv2d(_SteerableConv):
    """`[N, C, S, H, W] -> [N, O, S, H', W']`: H → H with scale extent 1.

    Scale s of the output sees scale s of the input only. Arguments as in `SteerableLift2d`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, basis: Tensor, bias: bool = True
    ) -> None:
        super().__init__((out_channels, in_channels, 1), basis, bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, S, H, W] -> [N, O, S, H', W']`."""
        expected = (self.weight.shape[1], self.num_scales)
        if x.ndim != 5 or x.shape[1:3] != expected:
            raise ShapeError(f"expected [N, {expected[0]}, {expected[1]}, H, W], got {x.shape}")
        return self._convolve(x.unbind(2))


def _lattice(maps: Tensor) -> tuple[int, int]:
    """`[F, K, K] ->` reach and step of the non-zero pixels, from the centre.

    A basis on 7×7 pixels padded to 15×15 has reach 3 and step 1; dilated by two, reach 6 and step
    2. Convolving only those pixels gives the same result with fewer operations.
    """
    used = (maps != 0).any(dim=0)
    offsets = torch.cat([used.any(dim=0).nonzero(), used.any(dim=1).nonzero()])
    distances = (offsets.flatten() - maps.shape[-1] // 2).abs().tolist()
    return max(distances, default=0), math.gcd(*distances) or 1

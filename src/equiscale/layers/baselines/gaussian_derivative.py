"""Convolutions whose kernels are learned combinations of Gaussian derivatives, at several σ.

After Lindeberg, "Scale-covariant and scale-invariant Gaussian derivative networks" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.core.registry import check_name
from equiscale.layers.precision import single, without_autocast

BorderMode = Literal["zeros", "replicate"]
BORDER_MODES: tuple[BorderMode, ...] = get_args(BorderMode)


def discrete_gaussian(sigma: float) -> Tensor:
    """Return `[R + 1]` weights `e^{−t} I_n(t)`, t = σ², n = 0…R, in float64.

    This is the kernel of diffusion on a grid: smoothing by σ₁ and then by σ₂ equals smoothing by
    √(σ₁² + σ₂²). R = ⌈6σ⌉ + 6 omits less than 1e-8 of the mass.

    Examples:
        >>> discrete_gaussian(1.0)[:3]
        tensor([0.4658, 0.2079, 0.0499], dtype=torch.float64)
    """
    radius = math.ceil(6 * sigma) + 6
    points = 8 * radius  # the integral over one period, to rounding
    angle = torch.arange(points // 2 + 1, dtype=torch.float64) * (2 * math.pi / points)
    return torch.fft.irfft(torch.exp(sigma**2 * (torch.cos(angle) - 1)), points)[: radius + 1]


def smoothing_matrix(weights: Tensor, size: int, border: BorderMode, margin: int = 0) -> Tensor:
    """`[R + 1] -> [size + 2·margin, size]`: smooth one axis, with `margin` pixels beyond each end.

    Args:
        weights: One half of a symmetric kernel, centre first.
        size: Pixels along the axis.
        border: What lies beyond its ends: zeros, or the last pixel repeated.
        margin: How many pixels beyond each end are returned.
    """
    radius = len(weights)
    inside = torch.arange(size, device=weights.device)
    rows = torch.arange(-margin, size + margin, device=weights.device)
    extended = F.pad(weights, (0, 1))
    matrix = extended[(rows[:, None] - inside).abs().clamp(max=radius)]
    if border == "replicate":
        # Mass of the kernel more than d pixels to one side; d is −1 one pixel beyond an end.
        mass = F.pad(extended.flip(0).cumsum(0).flip(0)[1:], (0, 1))
        mass = torch.cat([mass[:margin].flip(0).mul(-1).add(1), mass])
        before = mass[(rows + margin).clamp(max=len(mass) - 1)][:, None]
        matrix = matrix + before * (inside == 0) + before.flip(0) * (inside == size - 1)
    return matrix


def derivative_stencils(sigma: float, zero_order: bool = False) -> Tensor:
    """Return `[A, 3, 3]`: σ∂x, σ∂y, σ²/2 ∂xx, σ²/2 ∂xy, σ²/2 ∂yy as central differences, float64.

    With `zero_order` the identity comes first. Correlate the stencils with an image.
    """
    identity = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    first = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    second = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    half = sigma**2 / 2
    stencils = [
        sigma * torch.outer(identity, first),
        sigma * torch.outer(first, identity),
        half * torch.outer(identity, second),
        half * torch.outer(first, first),
        half * torch.outer(second, identity),
    ]
    return torch.stack([torch.outer(identity, identity)] * zero_order + stencils)


class GaussianDerivativeConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, H', W']`: a learned combination of Gaussian derivatives.

    With L = g_σ ∗ x the output is, summed over input channels,

        σ (C_x L_x + C_y L_y) + σ²/2 (C_xx L_xx + C_xy L_xy + C_yy L_yy)  (+ C_0 L).

    The coefficients C are learned and the same for every σ. Enlarging the input by the ratio of
    two σ moves the response from one to the other unchanged, if σ is not much smaller than a pixel
    and the border is far away. Smoothing is a product with one matrix per axis. The central
    differences and the mixing of channels are one 3×3 convolution. Half precision and autocast
    compute in float32, because differences of rounded numbers would be coarse.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        sigmas: σ of every scale, in pixels of the input.
        strides: Step between the pixels kept at each scale; 1 by default.
        zero_order: Whether to learn a coefficient for L itself.
        border: What lies beyond the border, `"zeros"` or `"replicate"`.

    Examples:
        >>> layer = GaussianDerivativeConv2d(1, 8, sigmas=(1.0, 2.0), strides=(1, 2))
        >>> layer(torch.zeros(2, 1, 20, 20), 0).shape, layer(torch.zeros(2, 1, 20, 20), 1).shape
        (torch.Size([2, 8, 20, 20]), torch.Size([2, 8, 10, 10]))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        sigmas: Sequence[float],
        strides: Sequence[int] | None = None,
        zero_order: bool = False,
        border: BorderMode = "replicate",
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels)
        check_numbers("sigmas", sigmas)
        if min(sigmas) <= 0:
            raise OptionError(f"sigmas must be positive, got {list(sigmas)}")
        check_name("border", border, BORDER_MODES)
        self.sigmas = tuple(sigmas)
        self.strides = tuple(strides) if strides is not None else (1,) * len(self.sigmas)
        if len(self.strides) != len(self.sigmas):
            raise OptionError(f"needs one stride per σ, got {len(self.strides)} strides")
        self.border: BorderMode = border
        for index, sigma in enumerate(self.sigmas):
            weights = discrete_gaussian(sigma).float()
            stencils = derivative_stencils(sigma, zero_order).float()
            self.register_buffer(f"gaussian{index}", weights, persistent=False)
            self.register_buffer(f"stencils{index}", stencils, persistent=False)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, 5 + zero_order))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the coefficients as `torch.nn.Linear` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor, scale_index: int) -> Tensor:
        """`[N, C, H, W] -> [N, O, H', W']` at one σ."""
        with without_autocast(x):
            weight = single(self.weight)
            return self._convolve(x.to(weight.dtype), weight, scale_index).to(self.weight.dtype)

    def _convolve(self, x: Tensor, weight: Tensor, scale_index: int) -> Tensor:
        gaussian = single(self.get_buffer(f"gaussian{scale_index}"))
        down = smoothing_matrix(gaussian, x.shape[2], self.border, margin=1)
        across = down
        if x.shape[3] != x.shape[2]:
            across = smoothing_matrix(gaussian, x.shape[3], self.border, margin=1)
        smooth = down @ (x @ across.T)
        stencils = single(self.get_buffer(f"stencils{scale_index}"))
        kernel = (weight @ stencils.flatten(1)).unflatten(2, (3, 3))
        return F.conv2d(smooth, kernel, stride=self.strides[scale_index])

    def extra_repr(self) -> str:
        """Show the arguments."""
        outputs, inputs, terms = self.weight.shape
        sigmas = ", ".join(f"{sigma:.3g}" for sigma in self.sigmas)
        return f"{inputs}, {outputs}, sigmas=({sigmas}), terms={terms}, border={self.border!r}"


class SharedBatchNorm(nn.Module):
    """`S × [N, C, H_s, W_s] -> S × [N, C, H_s, W_s]`: batch normalisation over all scale channels.

    Mean and variance are taken over all scale channels together. Every sample in every channel
    counts the same, regardless of its number of pixels.

    Args:
        num_features: Number C of features.
        momentum: Weight of a new batch in the running statistics used in evaluation.
        eps: Added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """`S × [N, C, H_s, W_s] -> S × [N, C, H_s, W_s]`."""
        mean, variance = self.running_mean, self.running_var
        if self.training and any(map(len, maps)):
            mean, variance = self._measure(maps)
        factor = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * factor
        return [(one * factor[:, None, None] + shift[:, None, None]).to(one.dtype) for one in maps]

    def _measure(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean and variance `[C]` of a batch, and keep them."""
        count = sum(map(len, maps))
        exact = [single(one) for one in maps]
        mean = torch.stack([one.mean((2, 3)).sum(0) for one in exact]).sum(0) / count
        square = torch.stack([one.square().mean((2, 3)).sum(0) for one in exact]).sum(0) / count
        variance = (square - mean**2).clamp_min(0)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var), self.momentum)
        return mean, variance

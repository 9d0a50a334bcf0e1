"""Assertions about layers and models, for your own tests.

Example::

    from equiscale.testing import assert_scale_equivariant

    def test_my_layer():
        assert_scale_equivariant(MyLayer(1, 8))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.metrics.inference import device_of, evaluating

_INTERIOR = 0.6
"""Share of each axis that counts as the interior of a map."""

_FAULTS = {  # by what repairs the maps: without and with a stride
    "without the border": ("padding: the border differs most. Use valid convolutions",) * 2,
    "without a shift": (
        "padding: the maps are shifted. Pad both sides equally",
        "stride: the maps are shifted, because the samples are not centred on the image",
    ),
    "without a zoom": (
        "resampling: the maps are zoomed. Resize with align_corners=False, and to sides that are "
        "proportional to the image",
    )
    * 2,
    "smoothed": (
        "resampling: fine detail differs. Resize with antialiasing, and not with mode='nearest'",
        "stride: fine detail differs. Smooth before subsampling",
    ),
    "none": (
        "not padding, stride or resampling: the response itself depends on the size, as that of "
        "an ordinary convolution",
    )
    * 2,
}


def assert_scale_equivariant(
    layer: nn.Module,
    factors: Sequence[float] = (1.5, 2.0),
    tolerance: float = 1e-3,
    *,
    in_channels: int = 1,
    image_size: int = 64,
    seed: int = 0,
) -> None:
    """Assert that a layer's feature maps grow with the image.

    The layer sees the same smooth random image, drawn at `image_size` and at `factor` times that
    side (drawn, not resampled). The map of the larger image is sampled at the pixels of the other
    one, with the centres of both maps aligned, and the error is `‖a − b‖² / ‖b − mean of b‖²`.

    If the error is too large, the message names the most likely fault: *padding* if the border
    differs most or, without a stride, if the maps are shifted; *stride* if a layer with a
    stride shifts the maps or loses detail; *resampling* if the maps differ by a zoom or in fine
    detail; else the layer's response itself depends on the size. Take it as a hint.

    The default tolerance is for layers that are equivariant up to sampling, which alone has
    errors of about 1e-4. The image is smooth, with blobs of 3 to 6 pixels at side 64, so that any
    small kernel responds nearly in proportion to it: random 3×3 kernels have errors of 0.002 to
    0.03 in `nn.Conv2d` and 0.001 to 0.01 in `SConv2d` (pixel pooling); 7×7 kernels 0.02 to 0.15
    and 0.003 to 0.04. For an approximately equivariant layer, choose a tolerance well below the
    error of the same layer without its scale mechanism.

    Args:
        layer: `[1, in_channels, H, W] -> [1, O, H', W']`, for any H = W. It runs in evaluation
            mode.
        factors: Ratios of the two image sizes, above 0 and not 1.
        tolerance: Largest error; see above.
        in_channels: Channels of the image.
        image_size: Side of the first image in pixels.
        seed: Seed of the image.

    Raises:
        AssertionError: The error is larger than `tolerance`, or the output is not a square map
            that grows with the image, or is constant or not finite.

    Examples:
        >>> assert_scale_equivariant(nn.ReLU())
        >>> assert_scale_equivariant(nn.MaxPool2d(8), factors=[2])
        Traceback (most recent call last):
        AssertionError: MaxPool2d is not scale-equivariant...
    """
    if not factors or min(factors) <= 0:
        raise ValueError(f"factors must be numbers above 0, at least one, got {factors!r}")
    for factor in factors:
        small, large = sorted((image_size, round(factor * image_size)))
        if small == large:
            raise ValueError(f"factor {factor} does not change an image of {image_size} pixels")
        maps = [_run(layer, draw_scene(side, in_channels, seed)) for side in (small, large)]
        comparison = _Comparison(maps[0], maps[1], small, large)
        error = comparison.error()
        if not error <= tolerance:  # NaN fails too
            raise AssertionError(
                f"{type(layer).__name__} is not scale-equivariant: the error is {error:.2g} at "
                f"factor {factor:g}, tolerance {tolerance:g}.\n{comparison.diagnose(tolerance)}"
            )


def draw_scene(side: int, channels: int = 1, seed: int = 0) -> Tensor:
    """`-> [1, channels, side, side]`: Gaussian blobs, the same picture at every side.

    The blobs are 0.05 to 0.1 sides wide, and some of them are cut by the border.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(4, channels, 30, 1, generator=generator, dtype=torch.float64)
    column, row = 1.2 * draws[:2] - 0.1
    width, height = 0.05 + 0.05 * draws[2], 2 * draws[3] - 1
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    across = torch.exp(-(((axis - column) / width) ** 2) / 2)
    down = height * torch.exp(-(((axis - row) / width) ** 2) / 2)
    return torch.einsum("cby,cbx->cyx", down, across)[None].float()


def _run(layer: nn.Module, image: Tensor) -> Tensor:
    dtype = next((p.dtype for p in layer.parameters()), torch.float32)
    with evaluating(layer), torch.no_grad():
        maps = layer(image.to(device_of(layer), dtype))
    if not isinstance(maps, Tensor) or maps.ndim != 4 or maps.shape[2] != maps.shape[3]:
        found = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise AssertionError(
            f"{type(layer).__name__} must return square feature maps [N, O, H, H] for the square "
            f"image {list(image.shape)}, got {found}"
        )
    if not maps.isfinite().all() or torch.equal(maps, maps[..., :1, :1].expand_as(maps)):
        raise AssertionError(f"{type(layer).__name__} returned constant maps, NaN or infinity")
    return maps.double().cpu()


@dataclass(frozen=True)
class _Comparison:
    """Maps of one picture at two sizes, aligned at their centres."""

    small_maps: Tensor
    large_maps: Tensor
    small: int
    large: int

    def __post_init__(self) -> None:
        if self.small_maps.shape[-1] < 4:
            raise AssertionError(
                f"maps of {self.small_maps.shape[-1]} pixels are too small to compare; raise "
                "image_size"
            )
        if self.large_maps.shape[-1] <= self.small_maps.shape[-1]:
            raise AssertionError(
                f"the maps have {self.small_maps.shape[-1]} and {self.large_maps.shape[-1]} "
                f"pixels for images of {self.small} and {self.large}: they must grow with the "
                "image; test the layers before the global or adaptive pooling"
            )

    @property
    def stride(self) -> float:
        """Image pixels per pixel of a map."""
        grown = self.large_maps.shape[-1] - self.small_maps.shape[-1]
        return (self.large - self.small) / grown

    def error(self, interior: bool = False, warp: Tensor | None = None, smooth: int = 0) -> float:
        a, b = self._aligned(interior, warp, smooth)
        varying = b - b.mean((2, 3), keepdim=True)  # a bias must not hide an error
        return float((a - b).square().sum() / varying.square().sum())

    def diagnose(self, tolerance: float) -> str:
        """Name the repair that lowers the error most, beyond those before it: at least by half."""
        smooth = max(2, round(8 / self.stride))
        shift, zoom = self._register(2, smooth), self._register(3, smooth)
        errors = {
            "without the border": self.error(interior=True),
            "without a shift": self.error(True, shift),
            "without a zoom": self.error(True, zoom),
            "smoothed": self.error(True, zoom, smooth),
        }
        floor = max(tolerance / 10, 1e-9)  # what is left below it is sampling
        levels = [max(error, floor) for error in (self.error(), *errors.values())]
        left = dict(zip(errors, (b / a for a, b in pairwise(levels)), strict=True))
        repair = min(left, key=lambda name: left[name])
        repair = repair if left[repair] <= 0.5 else "none"
        fault = _FAULTS[repair][self.stride > 1.05]
        measured = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
        return f"Most likely fault: {fault}.\nErrors: {measured}. Output stride: {self.stride:.3g}."

    def _aligned(self, interior: bool, warp: Tensor | None, smooth: int) -> tuple[Tensor, Tensor]:
        """Return both maps at the pixels of the smaller one that the larger one covers.

        Args:
            interior: Keep the interior only.
            warp: Shift of x and of y and, at the border, by a zoom, in pixels of the larger map.
            smooth: Side of the box over which both are averaged, or 0.
        """
        warp = torch.zeros(3, dtype=torch.float64) if warp is None else warp
        own, other = self.small_maps.shape[-1], self.large_maps.shape[-1]
        axis = torch.arange(own, dtype=torch.float64) - (own - 1) / 2
        places = axis * self.large / self.small
        kept = places.abs() <= (other - 1) / 2 * (_INTERIOR if interior else 1)
        x, y = (places[kept] * (1 + 2 * warp[2] / other) + warp[i] for i in (0, 1))
        grid = torch.stack(torch.meshgrid(2 * x / other, 2 * y / other, indexing="xy"), dim=-1)
        count = len(self.large_maps)
        a = F.grid_sample(
            self.large_maps, grid.expand(count, -1, -1, -1), "bicubic", "border", False
        )
        b = self.small_maps[:, :, kept][..., kept]
        smooth = min(smooth, len(b[0, 0]) - 1)
        if smooth:
            a, b = (F.avg_pool2d(maps, smooth, stride=1) for maps in (a, b))
        return a, b

    def _register(self, parameters: int, smooth: int, step: float = 0.5) -> Tensor:
        """Fit the shift (2 parameters) or shift and zoom (3) of the interior by Gauss-Newton."""
        warps = [torch.zeros(3, dtype=torch.float64)]
        for _ in range(5):
            a, b = self._aligned(True, warps[-1], smooth)
            steps = step * torch.eye(3, dtype=torch.float64)[:parameters]
            moved = [self._aligned(True, warps[-1] + one, smooth)[0] for one in steps]
            slopes = torch.stack([(one - a).flatten() / step for one in moved], dim=1)
            change = torch.linalg.lstsq(slopes, (b - a).flatten()[:, None]).solution[:, 0]
            warps.append(warps[-1] + F.pad(change, (0, 3 - parameters)))
        return min(warps, key=lambda warp: self.error(True, warp, smooth))


def assert_classifier_contract(
    factory: Callable[..., nn.Module],
    *,
    in_channels: int = 1,
    num_classes: int = 5,
    image_size: int = 64,
) -> None:
    """Assert that a model can be trained, measured and stored as a classifier.

    Args:
        factory: Called as `factory(in_channels=…, num_classes=…)`, as for `register_model`. It
            returns a new model with new weights.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        image_size: Side of the images in pixels.

    Raises:
        AssertionError: The model breaks a part of the contract, which the message names.

    Examples:
        >>> def factory(in_channels: int, num_classes: int) -> nn.Module:
        ...     head = nn.Linear(16 * in_channels, num_classes)
        ...     return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), head)
        >>> assert_classifier_contract(factory)
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, in_channels, image_size, image_size, generator=generator)
    model, other = (factory(in_channels=in_channels, num_classes=num_classes) for _ in range(2))
    _check(isinstance(model, nn.Module), f"the factory returned {type(model).__name__}, no Module")
    logits = _logits(model, images)
    _check(
        isinstance(logits, Tensor) and logits.shape == (4, num_classes),
        f"logits must have the shape [4, {num_classes}] for four images, got "
        f"{list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__}",
    )
    _check(bool(logits.isfinite().all()), "logits must be finite for images in [0, 1]")
    _check(
        torch.equal(_logits(model, images), logits),
        "in evaluation mode, equal images must give equal logits: is dropout or noise active?",
    )
    _check(
        torch.allclose(_logits(model, images[1:2]), logits[1:2], rtol=1e-3, atol=1e-4),
        "in evaluation mode, logits must not depend on the other images of the batch",
    )
    _check_gradients(model, images)
    shared = {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}
    _check(not shared, "every call of the factory must build new parameters; two models share some")
    logits = _logits(model, images)  # the gradients' pass may have updated running statistics
    other.load_state_dict(model.state_dict())
    _check(
        torch.allclose(_logits(other, images), logits, rtol=1e-4, atol=1e-5),
        "a new model with the same state_dict must give the same logits: is something that is "
        "learned neither a parameter nor a buffer?",
    )
    _check_stages(model, images)


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with evaluating(model), torch.no_grad():
        logits: Tensor = model(images)
    return logits


def _check_gradients(model: nn.Module, images: Tensor) -> None:
    model.train()
    model.zero_grad()
    loss = model(images).square().sum()
    _check(loss.requires_grad, "the logits must depend on parameters that require gradients")
    loss.backward()
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, parameter in learned if parameter.grad is None]
    _check(not missing, f"no gradient reaches these parameters: {', '.join(missing)}")
    model.zero_grad()


def _check_stages(model: nn.Module, images: Tensor) -> None:
    stages = getattr(model, "stages", None)
    if not callable(stages):
        return
    with evaluating(model), torch.no_grad():
        found = stages(images)
    good = isinstance(found, dict) and all(
        isinstance(maps, Tensor) and len(maps) == len(images) for maps in found.values()
    )
    _check(good, "stages(x) must return a dictionary of feature maps [N, ...] by name")


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

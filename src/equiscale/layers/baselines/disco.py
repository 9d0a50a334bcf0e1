"""The raw basis of DISCO (Sosnovik et al. 2021): what one pixel of a kernel becomes when rescaled.

β `[k², S, K, K]` should make resizing and convolving commute: for every pair of scales a < b,
`resize(x ⋆ β_b, a/b) = resize(x, a/b) ⋆ β_a`. At integer scales β is the standard basis, dilated.
At the others it is the least-squares solution for random images. Both sides are linear in β and in
x, so that the expected squared difference is a quadratic form in β that can be written down: for
images with covariance `correlation^|distance|` along each axis it is a Kronecker product of two
K×K matrices. No image is drawn and nothing is iterated; the minimum is that of every linear
combination of the functions at once. See `docs/decisions/0203-disco-basis-by-direct-solve.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from equiscale.core.errors import InputFileError, OptionError
from equiscale.core.files import atomic_write
from equiscale.layers.baselines.steerable import SUPPORT, check_scales

DISCO_SCALES = (1.0, 1.26, 1.59, 2.0)
CROP = 8
"""Pixels left out along the border when an error is measured."""

_ASSET = "disco_basis.safetensors"
_PHASES = 400


@dataclass(frozen=True)
class DiscoSettings:
    """What determines a raw basis.

    Attributes:
        kernel_size: Effective size k, odd; the basis has k² functions.
        support: Side K of the kernels at all scales, odd.
        scales: Increasing, at least one integer; integers are dilations, the others are solved for.
        correlation: Of neighbouring pixels in the images the solution is for, 0 for white noise.
    """

    kernel_size: int = 7
    support: int = SUPPORT
    scales: tuple[float, ...] = DISCO_SCALES
    correlation: float = 0.9

    def __post_init__(self) -> None:
        check_scales(self.scales)
        needed = 2 * math.ceil(self.kernel_size // 2 * self.scales[-1]) + 1
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise OptionError(f"kernel_size must be odd and positive, got {self.kernel_size}")
        if self.support % 2 == 0 or self.support < needed:
            raise OptionError(
                f"support must be odd and at least {needed} for a kernel of {self.kernel_size} at "
                f"scale {self.scales[-1]:g}, got {self.support}"
            )
        if not any(float(scale).is_integer() for scale in self.scales):
            raise OptionError(
                f"one of the scales must be an integer, to start from, got {list(self.scales)}"
            )
        if not 0 <= self.correlation < 1:
            raise OptionError(f"correlation must lie in [0, 1), got {self.correlation}")


@dataclass(frozen=True)
class RawBasis:
    """A raw basis β `[k², S, K, K]` and the settings it was made with."""

    settings: DiscoSettings
    values: Tensor


class PairGrams(NamedTuple):
    """The quadratic form of one pair of scales along one axis, `[K, K]` each, in float64.

    The expected squared difference is `β_bᵀ (RR) β_b − 2 β_aᵀ (CR) β_b + β_aᵀ (CC) β_a`, where R
    is "convolve, then resize" and C is "resize, then convolve".
    """

    rr: Tensor
    cr: Tensor
    cc: Tensor


# --- The quadratic form ---------------------------------------------------------------------------


def pair_grams(ratio: float, support: int, correlation: float) -> PairGrams:
    """Return the quadratic form for scales a factor `ratio` apart, along one axis.

    One pixel of either side is a weighted sum of image pixels; its weights for each tap of the
    kernel are a column. Their inner products under the images' covariance, averaged over the
    positions that resized pixels take between the pixels of the image, are what is returned.
    """
    half = support // 2
    taps = torch.arange(-half, half + 1, dtype=torch.float64)
    reach = half + math.ceil(half * ratio) + 4
    pixels = torch.arange(-reach, reach + 1, dtype=torch.float64)[:, None]
    phases = ((torch.arange(_PHASES, dtype=torch.float64) + 0.5) * ratio - 0.5) % 1
    phases = phases[:, None, None]
    resized_last = _cubic(pixels - taps - phases)
    resized_first = _cubic(pixels - taps * ratio - phases)
    covariance = correlation ** (pixels - pixels.T).abs()

    def gram(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("pxi,xy,pyj->ij", left, covariance, right) / len(phases)

    return PairGrams(
        gram(resized_last, resized_last),
        gram(resized_first, resized_last),
        gram(resized_first, resized_first),
    )


def _cubic(distance: Tensor) -> Tensor:
    """Return the weight of a pixel at a distance in bicubic resizing, a = −0.75 as in torch."""
    d = distance.abs()
    near = 1.25 * d**3 - 2.25 * d**2 + 1
    far = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


# --- Solving --------------------------------------------------------------------------------------


def solve_raw_basis(settings: DiscoSettings = DiscoSettings()) -> RawBasis:  # noqa: B008 - frozen
    """Return the raw basis with the least expected squared difference over all pairs of scales."""
    k, support = settings.kernel_size, settings.support
    values = torch.zeros(k * k, len(settings.scales), support, support, dtype=torch.float64)
    free = []
    for index, a in enumerate(settings.scales):
        if float(a).is_integer():
            values[:, index] = dilated_deltas(k, support, int(a))
        else:
            free.append(index)
    if free:
        unknown = torch.cat([_window(settings, index).flatten() for index in free])
        matrix, right_side = _normal_equations(settings, values, free)
        solution = torch.zeros_like(right_side)
        solution[unknown] = torch.linalg.solve(matrix[unknown][:, unknown], right_side[unknown])
        values[:, free] = solution.T.reshape(k * k, len(free), support, support)
    return RawBasis(settings, values)


def dilated_deltas(kernel_size: int, support: int, dilation: int) -> Tensor:
    """Return `[k², support, support]`, in float64: one pixel each, `dilation` apart."""
    deltas = torch.zeros(kernel_size**2, support, support, dtype=torch.float64)
    first = support // 2 - kernel_size // 2 * dilation
    rows = first + dilation * torch.arange(kernel_size)
    grid = torch.cartesian_prod(rows, rows)
    deltas[torch.arange(kernel_size**2), grid[:, 0], grid[:, 1]] = 1
    return deltas


def _window(settings: DiscoSettings, index: int) -> Tensor:
    """Return which pixels `[K, K]` may differ from zero: the scaled kernel and one around it.

    A larger window changes the error by less than one part in a thousand and costs operations.
    """
    half = settings.support // 2
    reach = min(half, math.ceil(settings.kernel_size // 2 * settings.scales[index]) + 1)
    near = torch.arange(-half, half + 1).abs() <= reach
    return torch.outer(near, near)


def _normal_equations(
    settings: DiscoSettings, values: Tensor, free: list[int]
) -> tuple[Tensor, Tensor]:
    """Return matrix `[U, U]` and right side `[U, k²]` for the U pixels of the free scales."""
    size = settings.support**2
    blocks = torch.zeros(len(free), size, len(free), size, dtype=torch.float64)
    right_side = torch.zeros(len(free), size, len(values), dtype=torch.float64)

    def couple(i: int, j: int, product: Tensor) -> None:
        """Take the term `−2 β_iᵀ product β_j` into account, seen from scale i."""
        if i in free and j in free:
            blocks[free.index(i), :, free.index(j)] -= product
        elif i in free:
            right_side[free.index(i)] += product @ values[:, j].flatten(1).T

    for a, b in combinations(range(len(settings.scales)), 2):
        ratio = settings.scales[b] / settings.scales[a]
        grams = pair_grams(ratio, settings.support, settings.correlation)
        for index, gram in ((b, grams.rr), (a, grams.cc)):
            if index in free:
                blocks[free.index(index), :, free.index(index)] += torch.kron(gram, gram)
        cross = torch.kron(grams.cr, grams.cr)
        couple(a, b, cross)
        couple(b, a, cross.T)
    return blocks.flatten(2).flatten(0, 1), right_side.flatten(0, 1)


# --- Yardsticks and measurement -------------------------------------------------------------------


def bicubic_deltas(settings: DiscoSettings) -> Tensor:
    """Return `[k², S, K, K]`: the standard basis, bicubically enlarged, its sum kept."""
    deltas = dilated_deltas(settings.kernel_size, settings.kernel_size, 1)[:, None]
    maps = []
    for a in settings.scales:
        size = 2 * (round(settings.kernel_size * a) // 2) + 1
        resized = F.interpolate(deltas, size=(size, size), mode="bicubic", align_corners=False)
        margin = (settings.support - size) // 2
        maps.append(F.pad(resized[:, 0] * (settings.kernel_size / size) ** 2, [margin] * 4))
    return torch.stack(maps, dim=1)


def untrained_basis(settings: DiscoSettings, generator: torch.Generator) -> Tensor:
    """Return `[k², S, K, K]`: normal noise at the scales that would be solved for."""
    values = solve_raw_basis(settings).values
    for index, a in enumerate(settings.scales):
        if not float(a).is_integer():
            values[:, index] = torch.randn(
                values[:, index].shape, generator=generator, dtype=values.dtype
            )
    return values


def correlated_images(
    count: int, size: int, correlation: float, generator: torch.Generator
) -> Tensor:
    """Return `[count, 1, size, size]` Gaussian images whose neighbours correlate that much."""
    position = torch.arange(size, dtype=torch.float64)
    covariance = correlation ** (position[:, None] - position).abs()
    root: Tensor = torch.linalg.cholesky(covariance).float()
    return root @ torch.randn(count, 1, size, size, generator=generator) @ root.T


def measure_errors(
    basis: Tensor, scales: Sequence[float], images: Tensor
) -> dict[tuple[float, float], float]:
    """`[F, S, K, K], [N, 1, H, W] ->` relative squared equivariance error per pair of scales.

    `‖resize(x ⋆ ψ_b) − resize(x) ⋆ ψ_a‖² / ‖resize(x ⋆ ψ_b)‖²`, over all functions and images,
    with circular padding, bicubic resizing by a/b, and 8 pixels along the border left out.
    """
    errors = {}
    for a, b in combinations(range(len(scales)), 2):
        resize = _resizing(scales[a] / scales[b])
        resized_last = resize(_circular_conv(images, basis[:, b]))
        resized_first = _circular_conv(resize(images), basis[:, a])
        inner = (..., slice(CROP, -CROP), slice(CROP, -CROP))
        difference = (resized_last - resized_first)[inner].square().sum()
        errors[scales[a], scales[b]] = float(difference / resized_last[inner].square().sum())
    return errors


def _resizing(factor: float) -> Callable[[Tensor], Tensor]:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode="bicubic", align_corners=False)

    return resize


def _circular_conv(x: Tensor, kernels: Tensor) -> Tensor:
    """`[N, 1, H, W], [F, K, K] -> [N, F, H, W]`."""
    padded = F.pad(x, [kernels.shape[-1] // 2] * 4, mode="circular")
    return F.conv2d(padded, kernels[:, None].to(x.dtype))


# --- Files ----------------------------------------------------------------------------------------


def write_raw_basis(path: Path, basis: RawBasis) -> None:
    """Write a raw basis as safetensors, complete or not at all."""
    settings = json.dumps(asdict(basis.settings), sort_keys=True)
    content = save({"raw": basis.values.float().contiguous()}, {"settings": settings})
    with atomic_write(path) as file:
        file.write(content)


def load_raw_basis(path: str | Path | None = None) -> RawBasis:
    """Read a raw basis in float64; without a path, the one that comes with the package."""
    if path is not None and not isinstance(path, (str, Path)):
        raise OptionError(f"a basis must be given as the path of a file, got {path!r}")
    if path is not None:
        return _read_raw_basis(Path(path))
    with as_file(files("equiscale.layers.baselines") / "assets" / _ASSET) as asset:
        return _read_raw_basis(asset)


def _read_raw_basis(path: Path) -> RawBasis:
    hint = "write one with `equiscale basis disco`"
    if not path.is_file():  # a pipe would block for ever
        raise InputFileError(path, "no file", "a DISCO basis", hint)
    try:
        with safe_open(path, framework="pt") as file:
            settings = json.loads(file.metadata()["settings"])
            values = file.get_tensor("raw").double()
        settings["scales"] = tuple(settings["scales"])
        known = DiscoSettings(**settings)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise InputFileError(path, str(error), "a DISCO basis", hint) from error
    shape = (known.kernel_size**2, len(known.scales), known.support, known.support)
    if values.shape != shape or not values.isfinite().all():
        found = f"shape {list(values.shape)}"
        raise InputFileError(path, found, f"finite numbers of shape {list(shape)}", hint)
    return RawBasis(known, values)

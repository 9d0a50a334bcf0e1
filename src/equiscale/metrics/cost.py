"""What a model costs: parameters, operations by formula and as executed, seconds, memory."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from equiscale.layers import SConv2d
from equiscale.layers.baselines.fourier_conv3d import fourier_cost, ordinary_cost
from equiscale.layers.baselines.frugal_conv3d import FrugalConv3d
from equiscale.layers.scaled.spectral.cost import forward_cost
from equiscale.layers.scaled.spectral.operators import Settings
from equiscale.metrics.inference import device_of, evaluating

TIMING_BATCH = 16
TIMING_REPEATS = 5


@dataclass(frozen=True)
class OperationCount:
    """Operations of a forward pass per image; a multiply-add counts as two.

    Attributes:
        by_formula: Of the convolutions as they are defined: every kernel, every output pixel.
        executed: Of all convolutions and matrix products that are computed. Work that a batch
            shares, such as resampling the kernels, is divided among its images.
    """

    by_formula: int
    executed: int


def count_operations(
    model: nn.Module, input_shape: Sequence[int], batch_size: int = TIMING_BATCH
) -> OperationCount:
    """Count the operations per image, by formula and as executed.

    The formulas cover `Conv2d`, `Conv3d` and `SConv2d`; other convolutions count as executed
    only.

    Args:
        model: Takes a batch `[N, C, H, W]`.
        input_shape: `(C, H, W)` of one image.
        batch_size: Images in the forward pass.

    Examples:
        >>> count_operations(nn.Conv2d(1, 2, 3), (1, 10, 10))
        OperationCount(by_formula=2304, executed=2304)
    """
    blank = torch.zeros(batch_size, *input_shape, device=device_of(model))
    by_formula = 0

    def add(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal by_formula
        by_formula += layer_operations(layer, arguments[0], output)

    kinds = (nn.Conv2d, nn.Conv3d, SConv2d)
    handles = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, kinds)]
    formulas: dict[Any, Any] = {  # of custom operators, which the counter cannot trace
        torch.ops.equiscale.spectral_forward: _spectral_operations,
        torch.ops.equiscale.fourier_conv3d: _fourier_operations,
        torch.ops.equiscale.fourier_peaks: _fourier_operations,
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    try:
        with evaluating(model), torch.no_grad(), counter:
            model(blank)
    finally:
        for handle in handles:
            handle.remove()
    executed = int(counter.get_total_flops())
    return OperationCount(by_formula // batch_size, executed // batch_size)


def count_parameters(model: nn.Module) -> int:
    """Return the number of learned values."""
    return sum(parameter.numel() for parameter in model.parameters())


def layer_operations(layer: nn.Module, x: Tensor, output: Tensor) -> int:
    """Return the operations of a convolution by its definition, for the images in `x`."""
    if isinstance(layer, SConv2d):
        return _scaled_layer_operations(layer, x)
    if isinstance(layer, FrugalConv3d):  # its output may be pooled
        return 2 * ordinary_cost(x.shape, layer.weight.shape)
    if isinstance(layer, (nn.Conv2d, nn.Conv3d)):
        return 2 * layer.weight[0].numel() * output.numel()
    return 0


def measure_inference_seconds(
    model: nn.Module,
    input_shape: Sequence[int],
    batch_size: int = TIMING_BATCH,
    repeats: int = TIMING_REPEATS,
) -> float:
    """Return the median seconds per image over `repeats` forward passes, after a warm-up."""
    device = device_of(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch_size, *input_shape, generator=generator).to(device)
    seconds = []
    with evaluating(model), torch.inference_mode():
        model(images)
        for _ in range(repeats):
            _synchronize(device)
            started = time.perf_counter()
            model(images)
            _synchronize(device)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) / batch_size


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory so far: of the GPU, or of this process on a CPU.

    None on platforms that do not report it, such as Windows.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _scaled_layer_operations(layer: SConv2d, x: Tensor) -> int:
    geometry = layer.geometry((x.shape[2], x.shape[3]))
    height, width = geometry.full_size
    total = 0
    for kernel_size in geometry.kernel_sizes:
        margin = 2 * geometry.margin(kernel_size)
        total += 2 * kernel_size**2 * (height - margin) * (width - margin)
    return total * x.shape[0] * layer.out_channels * layer.in_channels // layer.groups


def _fourier_operations(
    x_shape: Sequence[int], weight_shape: Sequence[int], *ignored: object, **too: object
) -> int:
    return 2 * fourier_cost(x_shape, weight_shape)


def _spectral_operations(
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    bias_shape: Sequence[int] | None,
    *arguments: Any,  # noqa: ANN401 - the operator's other arguments
    **ignored: object,
) -> int:
    settings = Settings(*arguments[:-1])
    x, weight = torch.empty(tuple(x_shape)), torch.empty(tuple(weight_shape))
    return 2 * forward_cost(settings.plan(x, weight), x, weight)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

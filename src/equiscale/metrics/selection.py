"""Which kernel sizes the layers that pool over scale choose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.layers import SConv2d
from equiscale.metrics.inference import BATCH_SIZE, device_of, evaluating


class RecordedChoice(NamedTuple):
    """What a pooling layer chose in a forward pass.

    Attributes:
        values: `[N, O, H, W]`, the output of the layer.
        kernel_sizes: `[N, O]` for slice and energy pooling, `[N, O, H, W]` for pixel pooling.
    """

    values: Tensor
    kernel_sizes: Tensor

    def by_channel(self) -> Tensor:
        """`-> [N, O]`: one kernel size per channel.

        For pixel pooling, that of the pixel with the largest response: the one that a global
        max pooling passes on.
        """
        if self.kernel_sizes.ndim == 2:
            return self.kernel_sizes
        strongest = self.values.flatten(2).argmax(dim=2, keepdim=True)
        return self.kernel_sizes.flatten(2).gather(2, strongest).squeeze(2)


def scale_selection(
    model: nn.Module, images: Tensor, batch_size: int = BATCH_SIZE
) -> dict[str, Tensor]:
    """Return the kernel sizes that each pooling layer chooses.

    Args:
        model: A module that contains `SConv2d` layers with a pool.
        images: `[N, C, H, W]`.
        batch_size: Images per forward pass.

    Returns:
        `[N, O]` kernel sizes on the CPU, by layer name; see `RecordedChoice.by_channel`.

    Raises:
        OptionError: The model has no such layer.

    Examples:
        >>> layer = SConv2d(1, 4, kernel_size=3, pool="slice")
        >>> scale_selection(nn.Sequential(layer), torch.rand(2, 1, 9, 9))["0"].shape
        torch.Size([2, 4])
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in pooling_layers(model)}
    with evaluating(model), torch.inference_mode(), recording(model) as selections:
        for batch in images.split(batch_size):
            run_maps(model, batch.to(device_of(model)))
            for name, selection in selections.items():
                parts[name].append(selection.by_channel().cpu())
    return {name: torch.cat(chosen) for name, chosen in parts.items()}


def selection_correlation(object_sizes: Tensor, kernel_sizes: Tensor) -> Tensor:
    """`[S], [S, ...] -> [...]`: Pearson's r of object size and chosen kernel size.

    NaN where the same kernel size is chosen at all object sizes.

    Examples:
        >>> kernel_sizes = torch.tensor([[7, 9], [9, 9], [11, 9]])
        >>> selection_correlation(torch.tensor([16, 32, 48]), kernel_sizes)
        tensor([1.0000,    nan], dtype=torch.float64)
    """
    x = object_sizes.double() - object_sizes.double().mean()
    y = kernel_sizes.double() - kernel_sizes.double().mean(dim=0)
    spread = x.square().sum().sqrt() * y.square().sum(dim=0).sqrt()
    return torch.tensordot(x, y, dims=1) / spread


def pooling_layers(model: nn.Module) -> dict[str, SConv2d]:
    """Return every `SConv2d` with a pool by its name in the model."""
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, SConv2d) and m.pool is not None}


def run_maps(model: nn.Module, images: Tensor) -> object:
    """Run `model.stages(images)` if there is one, else `model(images)`.

    A model may compute its logits without the maps that its stages have.
    """
    stages = getattr(model, "stages", None)
    return stages(images) if callable(stages) else model(images)


@contextlib.contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, RecordedChoice]]:
    """Yield a dictionary with what each pooling layer chose in its latest forward pass."""
    layers = pooling_layers(model)
    if not layers:
        raise OptionError(
            f"{type(model).__name__} has no SConv2d layer with a pool, so that there is no scale "
            "selection to look at"
        )
    selections: dict[str, RecordedChoice] = {}
    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(_request_indices, with_kwargs=True))
        handles.append(layer.register_forward_hook(_keep_selection(name, selections)))
    try:
        yield selections
    finally:
        for handle in handles:
            handle.remove()


def _request_indices(
    layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments[:1], {**named, "return_indices": True}


def _keep_selection(name: str, selections: dict[str, RecordedChoice]) -> Any:  # noqa: ANN401 - a hook
    def keep(layer: SConv2d, arguments: tuple[Tensor], output: tuple[Tensor, Tensor]) -> Tensor:
        values, indices = output
        height, width = arguments[0].shape[2:]
        sizes = torch.tensor(layer.geometry((height, width)).kernel_sizes, device=indices.device)
        selections[name] = RecordedChoice(values, sizes[indices])
        return values

    return keep

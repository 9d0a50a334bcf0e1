"""Which kernel size the scale-pooling layers choose for every object at every size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.spec import Split
from equiscale.data.dataset import StirDataset, to_float
from equiscale.layers import SConv2d
from equiscale.metrics.accuracy import EVALUATION_BATCH, device_of, evaluating
from equiscale.metrics.equivariance import stages_of
from equiscale.runs.record import Measurement

EXAMPLE_CLASS = "smile"
"""The class whose first object is looked at pixel by pixel, as in the paper; else the first."""

Sizes = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class ScaleSelection:
    """Chosen kernel sizes of every layer that pools over scale, by the layer's name.

    Attributes:
        object_sizes: `[s]`, ascending: the first axis of all arrays.
        chosen: `[s, objects, channels]`. For slice and energy pooling the one kernel of the
            channel; for pixel pooling the kernel at the pixel with the largest response, the one
            that a global max pooling passes on.
        maps: `[s, channels, height, width]` of the example object, for pixel pooling.
        example: Index of the example object among the test objects.
    """

    object_sizes: Sizes
    chosen: Mapping[str, Sizes]
    maps: Mapping[str, Sizes] = field(default_factory=dict)
    example: int = 0


@dataclass
class _Recorder:
    """Collects what the layers choose during forward passes."""

    chosen: dict[str, list[Sizes]] = field(default_factory=dict)
    maps: dict[str, list[Sizes]] = field(default_factory=dict)
    example: int | None = None

    def keep(self, name: str, values: Tensor, kernel_sizes: Tensor) -> None:
        """Keep `[N, O]` or, reduced to the strongest pixel, `[N, O, H, W]` kernel sizes."""
        if kernel_sizes.ndim == 4:
            if self.example is not None:
                self.maps.setdefault(name, []).append(_to_bytes(kernel_sizes[self.example]))
            strongest = values.flatten(2).argmax(dim=2, keepdim=True)
            kernel_sizes = kernel_sizes.flatten(2).gather(2, strongest).squeeze(2)
        self.chosen.setdefault(name, []).append(_to_bytes(kernel_sizes))


def scale_selection(
    model: nn.Module,
    dataset: StirDataset,
    example: int | None = None,
    batch_size: int = EVALUATION_BATCH,
) -> ScaleSelection:
    """Record the kernel sizes that every `SConv2d` with a pool chooses, for all test objects.

    Args:
        model: Any module with such layers inside.
        dataset: Its test split is used, at all object sizes.
        example: Object whose choice is kept pixel by pixel; None takes the first one of the class
            "smile", or else the first of all.
        batch_size: Images at a time.

    Raises:
        OptionError: The model has no layer that pools over scale.
    """
    if not pooling_layers(model):
        raise OptionError(
            f"{type(model).__name__} has no SConv2d layer with a pool, so that there is no scale "
            "selection to look at"
        )
    example = example_object(dataset) if example is None else example
    recorder, device = _Recorder(), device_of(model)
    # Stages have maps where logits alone may do without.
    run = stages_of(model) or model
    sizes = sorted(dataset.sizes)
    with evaluating(model), torch.inference_mode(), _recording(model, recorder):
        for size in sizes:
            images = dataset.select(Split.TEST, [size]).pixels
            for start in range(0, len(images), batch_size):
                inside = start <= example < start + batch_size
                recorder.example = example - start if inside else None
                run(to_float(images[start : start + batch_size].to(device)))
    per_size = {name: _per_size(parts, len(sizes)) for name, parts in recorder.chosen.items()}
    maps = {name: np.stack(parts) for name, parts in recorder.maps.items()}
    return ScaleSelection(_sizes_array(sizes), per_size, maps, example)


def example_object(dataset: StirDataset) -> int:
    """Return the index of the object that is looked at pixel by pixel."""
    names = dataset.class_names
    label = names.index(EXAMPLE_CLASS) if EXAMPLE_CLASS in names else 0
    return label * dataset.num_instances


def measure_scale_selection(model: nn.Module, dataset: StirDataset) -> Measurement | None:
    """Return the chosen kernel sizes for a record; None for a model that chooses none."""
    layers = pooling_layers(model)
    if not layers:
        return None
    measured = scale_selection(model, dataset)
    arrays: dict[str, NDArray[Any]] = {"object_sizes": measured.object_sizes}
    arrays |= {f"chosen.{name}": array for name, array in measured.chosen.items()}
    arrays |= {f"maps.{name}": array for name, array in measured.maps.items()}
    values = {
        "layers": {name: layer.pool for name, layer in layers.items()},
        "order": list(layers),
        "class_names": list(dataset.class_names),
        "instances": dataset.num_instances,
        "example": measured.example,
    }
    return Measurement(values=values, arrays=arrays)


def pooling_layers(model: nn.Module) -> dict[str, SConv2d]:
    """Return every `SConv2d` with a pool by its name in the model."""
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, SConv2d) and m.pool is not None}


@contextlib.contextmanager
def _recording(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Make the pooling layers return their indices too, and take those away on the way out."""
    handles = []
    for name, layer in pooling_layers(model).items():
        handles.append(layer.register_forward_pre_hook(_ask_for_indices, with_kwargs=True))
        handles.append(layer.register_forward_hook(_taker(name, recorder)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _ask_for_indices(
    layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments[:1], {**named, "return_indices": True}


def _taker(name: str, recorder: _Recorder) -> Any:  # noqa: ANN401 - a hook, as torch types it
    def take(layer: SConv2d, arguments: tuple[Tensor], output: tuple[Tensor, Tensor]) -> Tensor:
        values, indices = output
        height, width = arguments[0].shape[2:]
        kernel_sizes = torch.tensor(layer.geometry((height, width)).kernel_sizes)
        recorder.keep(name, values, kernel_sizes.to(indices.device)[indices])
        return values

    return take


def _to_bytes(kernel_sizes: Tensor) -> Sizes:
    smallest = torch.uint8 if kernel_sizes.max() < 256 else torch.uint16
    return kernel_sizes.to(smallest).cpu().numpy()


def _sizes_array(sizes: list[int]) -> Sizes:
    return np.array(sizes, np.min_scalar_type(max(sizes)))


def _per_size(parts: list[Sizes], num_sizes: int) -> Sizes:
    """Join batches `[N, channels]` to `[sizes, objects, channels]`."""
    joined = np.concatenate(parts)
    return joined.reshape(num_sizes, -1, joined.shape[1])

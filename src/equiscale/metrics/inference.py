"""Run a model without gradients, in evaluation mode, on the device it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

BATCH_SIZE = 16
"""Images per forward pass, as in training: feature maps stay in the cache of a CPU."""


def predict(
    model: nn.Module, images: Tensor | Iterable[Tensor], batch_size: int = BATCH_SIZE
) -> Tensor:
    """`[N, C, H, W] -> [N]`: the class with the largest logit, on the model's device.

    Args:
        model: A classifier.
        images: `[N, C, H, W]`, or batches of them, if they do not fit into memory at once.
        batch_size: Images per forward pass, unless they come in batches.
    """
    device = device_of(model)
    batches = images.split(batch_size) if isinstance(images, Tensor) else images
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(batch.to(device)).argmax(dim=1) for batch in batches])


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters, or the CPU if it has none."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; on exit, put each module back into its own mode."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:  # not model.train(): some modules may be frozen
            module.training = True

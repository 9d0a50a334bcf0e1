"""Predictions for the test split at every object size, and the accuracies that follow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from equiscale.core.spec import Split
from equiscale.data.dataset import StirDataset, to_float
from equiscale.runs.record import Predictions

EVALUATION_BATCH = 64
"""Images per forward pass without gradients: enough to be fast, little enough for 29 scales."""


def predict(model: nn.Module, images: Tensor, batch_size: int = EVALUATION_BATCH) -> Tensor:
    """`[N, C, H, W] -> [N]`: the class with the largest logit, on the model's device.

    Images of bytes become float32 in [0, 1] batch by batch.
    """
    device = device_of(model)
    with evaluating(model), torch.inference_mode():
        parts = torch.split(images, batch_size)
        return torch.cat([model(to_float(part.to(device))).argmax(dim=1) for part in parts])


def measure_predictions(model: nn.Module, dataset: StirDataset) -> Predictions:
    """Predict every test image at all object sizes."""
    test = dataset.select(Split.TEST)
    predicted = predict(model, test.pixels).cpu().numpy()
    smallest = np.uint8 if dataset.num_classes <= 256 else np.uint16
    return Predictions(
        predicted=predicted.astype(smallest),
        labels=test.labels.numpy().astype(smallest),
        object_sizes=test.object_sizes.numpy().astype(np.min_scalar_type(max(dataset.sizes))),
    )


def accuracy_per_size(model: nn.Module, dataset: StirDataset) -> dict[int, float]:
    """Return the accuracy on the test split at each object size."""
    return measure_predictions(model, dataset).accuracy_per_size()


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters are; the CPU for a model without any."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for the block, then every module back into its own."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:  # one by one: somebody may have frozen those inside
            module.training = True

"""Whether a model gives the same record at one and at two threads (docs/decisions/0306).

`python tests/sweeps/test_threads.py` prints the table of that decision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from equiscale import load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.layers.scaled.native import load_library
from equiscale.metrics.inference import predict
from equiscale.models import create_model, list_models
from equiscale.training.loop import LabelledImages, Trainer, seed_weights

COMPILED = ("pixel_pool", "slice_pool", "energy_pool")
"""Models whose convolutions are our own: they do not depend on the number of threads."""

CHECKED = ("pixel_pool", "standard_bn", "disco")
"""Compiled, batch normalisation, grouped convolutions; `main` trains all models."""


class Trained(NamedTuple):
    logits: Tensor
    gradients: Tensor
    loss: Tensor
    weights: Tensor
    predictions: Tensor


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def train(name: str, threads: int) -> Trained:
    """Train for an epoch of three steps, as a run does: real images, batches of 32."""
    images = load_dataset("emoji").select("train")
    part = LabelledImages(images.images[::18].clone(), images.labels[::18].clone())
    with using_threads(threads), torch.random.fork_rng(devices=[]):
        seed_weights(1)
        model = create_model(name, in_channels=1, num_classes=36)
        trainer = Trainer(model, TrainingProtocol(batch_size=32, max_epochs=1), 1e-3, seed=1)
        model.eval()  # without dropout
        logits = model(part.images[:32])
        nn.functional.cross_entropy(logits, part.labels[:32]).backward()
        gradients = flat(p.grad for p in model.parameters() if p.grad is not None)
        model.zero_grad()
        trainer.train(part, part)
        predictions = predict(model, part.images.split(32))
    loss = torch.tensor(trainer.history.train_loss[0], dtype=torch.float64)
    return Trained(logits.detach(), gradients, loss, flat(model.state_dict().values()), predictions)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
def test_a_number_of_threads_gives_the_same_weights_each_time(name: str) -> None:
    """Another number of threads only rounds differently."""
    two, again, one = train(name, 2), train(name, 2), train(name, 1)
    assert two.loss == again.loss
    assert torch.equal(two.weights, again.weights)
    # Adam turns rounding in the gradients that batch normalisation cancels into whole steps.
    closeness = 1e-3 if name == "standard_bn" else 1e-5
    assert float(one.loss) == pytest.approx(float(two.loss), rel=closeness)
    if name in COMPILED and load_library() is not None:
        assert torch.equal(one.weights, two.weights)


def main(names: list[str]) -> None:
    print(f"{'model':22}" + "".join(f"{name:>13}" for name in Trained._fields))
    for name in names or list_models():
        pairs = zip(train(name, 1), train(name, 2), strict=True)
        most = [float((a - b).abs().max()) for a, b in pairs]
        shown = ["equal" if difference == 0 else f"{difference:.1e}" for difference in most]
        print(f"{name:22}" + "".join(f"{text:>13}" for text in shown), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

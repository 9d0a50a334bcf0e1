from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equiscale.core.protocol import TrainingProtocol
from equiscale.models import create_model, list_models
from equiscale.training.loop import LabelledImages, Trainer, seed_weights


def train(name: str, threads: int) -> tuple[float, dict[str, Tensor]]:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(16, 1, 64, 64, generator=generator)
    part = LabelledImages(images, torch.randint(0, 4, (16,), generator=generator))
    with torch.random.fork_rng(devices=[]):
        seed_weights(1)
        model = create_model(name, in_channels=1, num_classes=4)
    trainer = Trainer(model, TrainingProtocol(batch_size=8, max_epochs=1), 1e-3, seed=1)
    weights = trainer.train(part, part)
    return trainer.history.train_loss[0], weights


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list_models("paper"), *list_models("beyond")])
def test_a_number_of_threads_gives_the_same_weights_each_time(name: str) -> None:
    """Another number of threads only rounds differently (docs/decisions/0306)."""
    before = torch.get_num_threads()
    try:
        (loss, weights), (again, same) = train(name, 2), train(name, 2)
        single, _ = train(name, 1)
    finally:
        torch.set_num_threads(before)
    assert again == loss
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    assert single == pytest.approx(loss, rel=1e-5)

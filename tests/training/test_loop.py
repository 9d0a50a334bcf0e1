from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equiscale.core.protocol import TrainingProtocol
from equiscale.runs.record import History
from equiscale.training.loop import (
    DivergedError,
    InterruptedRunError,
    LabelledImages,
    Trainer,
    copy_weights,
    validate,
)

Blobs = tuple[LabelledImages, LabelledImages]


def test_equals_the_textbook_loop(model: nn.Module, blobs: Blobs) -> None:
    """Adam on batches of the set shuffled once by RandomState(42), written out."""
    model.body[3].p = 0.0  # type: ignore[index, union-attr]
    plain = copy.deepcopy(model)
    train_set, valid_set = blobs
    trainer = Trainer(model, TrainingProtocol(max_epochs=3), 1e-2, seed=1)
    trainer.train(train_set, valid_set)

    order = np.random.RandomState(42).permutation(70)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        total = 0.0
        for start in range(0, 70, 16):
            index = order[start : start + 16]
            loss = F.cross_entropy(plain(train_set.images[index]), train_set.labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        losses.append(total / 70)
    assert trainer.history.train_loss == pytest.approx(losses, rel=1e-6)


def test_stops_after_patience_and_returns_the_first_best_weights(
    model: nn.Module, blobs: Blobs
) -> None:
    snapshots = []
    trainer = Trainer(model, TrainingProtocol(max_epochs=50, patience=4), 1e-2, seed=1)
    best = trainer.train(*blobs, on_epoch=lambda _: snapshots.append(copy_weights(model)))
    accuracy = trainer.history.valid_accuracy
    first_best = accuracy.index(max(accuracy))
    assert max(accuracy) > 0.9
    assert len(accuracy) == first_best + 1 + 4 < 50
    expected = snapshots[first_best]
    assert all(torch.equal(best[name], expected[name]) for name in expected)
    assert validate(model, blobs[1])[0] == max(accuracy)


def test_same_seed_same_run_whatever_the_global_generator(model: nn.Module, blobs: Blobs) -> None:
    """With all that is random: dropout, shuffling, augmentation."""
    protocol = TrainingProtocol(max_epochs=2, reshuffle=True, augmentation="rescale")
    histories: list[History] = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(histories))
        before = torch.random.get_rng_state()
        trainer = Trainer(copy.deepcopy(model), protocol, 1e-2, seed)
        trainer.train(*blobs)
        assert torch.equal(torch.random.get_rng_state(), before)
        histories.append(trainer.history)
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_every_difference_from_the_protocol_has_an_effect(model: nn.Module, blobs: Blobs) -> None:
    changes = [
        {},
        {"batch_size": 8},
        {"optimizer": "sgd"},
        {"optimizer": "adamw"},
        {"reshuffle": True},
        {"augmentation": "rescale"},
        {"augmentation": "shift"},
    ]
    losses = set()
    for change in changes:
        protocol = TrainingProtocol(max_epochs=2, **change)  # type: ignore[arg-type]
        trainer = Trainer(copy.deepcopy(model), protocol, 1e-2, seed=1)
        trainer.train(*blobs)
        losses.add(trainer.history.train_loss)
    assert len(losses) == len(changes)


def test_the_average_of_the_weights_is_kept(model: nn.Module, blobs: Blobs) -> None:
    """Against the average written out, over the steps of one epoch."""
    trainer = Trainer(model, TrainingProtocol(max_epochs=1, ema=0.9), 1e-2, seed=1)
    parameter = next(model.parameters())
    steps: list[torch.Tensor] = []
    trainer.optimizer.register_step_post_hook(lambda *_: steps.append(parameter.detach().clone()))
    best = trainer.train(*blobs)
    expected = steps[0]
    for step, weights in enumerate(steps[1:], start=1):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights
    name = next(iter(dict(model.named_parameters())))
    torch.testing.assert_close(best[name], expected)
    assert not torch.equal(best[name], steps[-1])


def test_ties_are_broken_by_the_loss(model: nn.Module, blobs: Blobs) -> None:
    protocol = TrainingProtocol(max_epochs=12, patience=12, break_ties=True)
    trainer = Trainer(model, protocol, 1e-2, seed=1)
    trainer.train(*blobs)
    accuracy, loss = trainer.history.valid_accuracy, trainer.history.valid_loss
    assert accuracy.count(max(accuracy)) > 1
    best = min((-a, l, epoch) for epoch, (a, l) in enumerate(zip(accuracy, loss, strict=True), 1))
    assert trainer.history.best_epoch == best[2] > accuracy.index(max(accuracy)) + 1
    assert validate(model, blobs[1]) == pytest.approx((-best[0], best[1]))


def test_divergence_is_an_error(model: nn.Module, blobs: Blobs) -> None:
    train_set, valid_set = blobs
    train_set.images[3] = float("inf")
    with pytest.raises(DivergedError, match=r"diverged in epoch 1.* smaller learning rate"):
        Trainer(model, TrainingProtocol(), 1e-2, seed=1).train(train_set, valid_set)


def test_a_request_to_stop_is_heard_within_a_step(model: nn.Module, blobs: Blobs) -> None:
    answers = iter([False] * 7 + [True])
    trainer = Trainer(model, TrainingProtocol(), 1e-2, seed=1)
    with pytest.raises(InterruptedRunError, match="epoch 2"):
        trainer.train(*blobs, should_stop=lambda: next(answers))
    assert len(trainer.history) == 1

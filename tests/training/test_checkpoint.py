from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from equiscale.core.protocol import TrainingProtocol
from equiscale.models import create_model
from equiscale.training.checkpoint import Checkpointer, save_checkpoint
from equiscale.training.loop import InterruptedRunError, LabelledImages, Progress, Trainer

Blobs = tuple[LabelledImages, LabelledImages]


def make_trainer(model: nn.Module, optimizer: str = "adam") -> Trainer:
    protocol = TrainingProtocol(
        max_epochs=6,
        patience=6,
        reshuffle=True,
        augmentation="shift",
        optimizer=optimizer,  # type: ignore[arg-type]
        ema=0.9 if optimizer == "adamw" else 0,
        break_ties=optimizer == "adamw",
    )
    return Trainer(copy.deepcopy(model), protocol, 1e-2, seed=3)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *(("", "adam"), ("", "adamw"), ("", "sgd")),
        *(("gaussian_derivative", "adam"), ("ensemble_dropout", "adam")),
    ],
)
def test_a_run_that_goes_on_equals_one_never_stopped(
    model: nn.Module, blobs: Blobs, tmp_path: Path, name: str, optimizer: str
) -> None:
    """Also with dropout of views, which draws from the generator that the loop seeds."""
    if name:
        model = create_model(name, in_channels=1, num_classes=4)
    stop_after = 3
    whole = make_trainer(model, optimizer)
    expected = whole.train(*blobs)

    first = make_trainer(model, optimizer)
    checkpointer = Checkpointer(tmp_path / "c.safetensors", every_seconds=0)

    def save(progress: Progress) -> None:
        if progress.epoch <= stop_after:
            checkpointer.save_if_due(first)

    with pytest.raises(InterruptedRunError):
        first.train(*blobs, save, should_stop=lambda: len(first.history) >= stop_after)
    torch.manual_seed(99)
    second = make_trainer(model, optimizer)
    assert Checkpointer(tmp_path / "c.safetensors").restore(second)
    assert len(second.history) == stop_after
    weights = second.train(*blobs)
    assert second.history == whole.history
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "a bit of the history": lambda data: flip(data, data.index(b"train_loss") + 20),
    "a bit of the weights": lambda data: flip(data, len(data) - 10),
    "other model": lambda data: data,
    "other head": lambda data: data,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unusable_checkpoint_restarts_the_run(
    model: nn.Module, blobs: Blobs, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, path = make_trainer(model), tmp_path / "c"
    trainer.run_epoch(*blobs)
    save_checkpoint(trainer, path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    other_head = copy.deepcopy(model)
    other_head.head = nn.Linear(64, 5)
    others = {"other model": nn.Linear(3, 3), "other head": other_head}
    fresh = make_trainer(others.get(damage, model))
    before = copy.deepcopy(fresh.model.state_dict())
    assert not Checkpointer(path).restore(fresh)
    assert len(fresh.history) == 0
    assert all(torch.equal(before[name], t) for name, t in fresh.model.state_dict().items())
    assert f"restarting the run: {path} cannot be used" in caplog.text
    assert not path.exists()


def test_saving_waits_until_it_is_due(model: nn.Module, blobs: Blobs, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    trainer.run_epoch(*blobs)
    assert not Checkpointer(tmp_path / "c", every_seconds=1000).save_if_due(trainer)
    assert not (tmp_path / "c").exists()

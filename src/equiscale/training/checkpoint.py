"""A run in progress as one file: weights, optimiser, best weights, history. No pickle.

Random generators need no place in it: the loop seeds them anew for every epoch.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from equiscale.core.files import atomic_write
from equiscale.results.record import History
from equiscale.training.loop import EpochTimings, Trainer

CHECKPOINT_FILE = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 10.0
_STATE = "equiscale_state"


class Checkpointer:
    """Saves a run now and then, and restores it.

    Args:
        path: The file.
        every_seconds: Least time between two saves, which bounds both what a crash costs and
            what saving costs.
    """

    def __init__(self, path: Path, every_seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path = path
        self.every_seconds = every_seconds
        self._saved = time.monotonic()

    def save_if_due(self, trainer: Trainer) -> bool:
        """Save the run if the last time was long enough ago."""
        if time.monotonic() - self._saved < self.every_seconds:
            return False
        save_checkpoint(trainer, self.path)
        self._saved = time.monotonic()
        return True

    def restore(self, trainer: Trainer) -> bool:
        """Bring a run to where the file left it; return whether there was one that fits."""
        if not self.path.exists():
            return False
        try:
            load_checkpoint(trainer, self.path)
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError):
            # Not worth a failed run: without a usable checkpoint it starts over.
            self.path.unlink(missing_ok=True)
            return False
        return True


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write a run in progress, complete or not at all."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for name, value in _flatten(trainer).items():
        if isinstance(value, Tensor):
            tensors[name] = value.detach().clone().contiguous()
        else:
            scalars[name] = value
    state = {
        "history": vars(trainer.history),
        "timings": vars(trainer.timings),
        "optimizer": scalars,
    }
    data = safetensors.torch.save(tensors, metadata={_STATE: json.dumps(state)})
    with atomic_write(path) as file:
        file.write(data)


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Bring a run to where `save_checkpoint` left it."""
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()[_STATE])
        values: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    values |= state["optimizer"]
    history = History(**{name: tuple(items) for name, items in state["history"].items()})
    timings = EpochTimings(**{name: tuple(items) for name, items in state["timings"].items()})
    device = next(trainer.model.parameters()).device
    best = {name: tensor.to(device) for name, tensor in _part(values, "best.").items()}
    trainer.model.load_state_dict(_part(values, "model."))
    _load_optimizer(trainer, _part(values, "optimizer."))
    trainer.best_weights, trainer.history, trainer.timings = best, history, timings


def _flatten(trainer: Trainer) -> dict[str, Any]:
    """Return everything a checkpoint holds under flat names."""
    values: dict[str, Any] = {f"model.{k}": v for k, v in trainer.model.state_dict().items()}
    values |= {f"best.{name}": tensor for name, tensor in trainer.best_weights.items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        values |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    return values


def _load_optimizer(trainer: Trainer, values: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        index, _, item = name.partition(".")
        state.setdefault(int(index), {})[item] = value
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _part(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}

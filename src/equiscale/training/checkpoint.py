"""A run in progress as one file: weights, optimiser, best weights, history. No pickle.

Random generators need no place in it: the loop seeds them anew for every epoch.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from equiscale.core.files import atomic_write
from equiscale.runs.record import History
from equiscale.training.loop import EpochTimings, Trainer

CHECKPOINT_FILE = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 10.0
_STATE = "equiscale_state"
_log = logging.getLogger(__name__)


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
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            # Not worth a failed run: without a usable checkpoint it starts over.
            _log.warning("starting over, %s cannot be used: %s", self.path, error)
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
    """Bring a run to where `save_checkpoint` left it, or raise and leave it as it is."""
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()[_STATE])
        values: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    values |= state["optimizer"]
    history = History(**{name: tuple(items) for name, items in state["history"].items()})
    timings = EpochTimings(**{name: tuple(items) for name, items in state["timings"].items()})
    weights, best = _part(values, "model."), _part(values, "best.")
    moments = _optimizer_state(_part(values, "optimizer."))
    for found in (weights, best):
        _check_weights(found, trainer.model)
    device = next(trainer.model.parameters()).device
    trainer.model.load_state_dict(weights)
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    trainer.best_weights = {name: tensor.to(device) for name, tensor in best.items()}
    trainer.history, trainer.timings = history, timings


def _check_weights(found: dict[str, Tensor], model: nn.Module) -> None:
    """Make sure that all weights fit before `load_state_dict` copies the first of them."""
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in found.items()} != expected:
        raise ValueError("it holds the weights of another model")


def _flatten(trainer: Trainer) -> dict[str, Any]:
    """Return everything a checkpoint holds under flat names."""
    values: dict[str, Any] = {f"model.{k}": v for k, v in trainer.model.state_dict().items()}
    values |= {f"best.{name}": tensor for name, tensor in trainer.best_weights.items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        values |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    return values


def _optimizer_state(values: dict[str, Any]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        index, _, item = name.partition(".")
        state.setdefault(int(index), {})[item] = value
    return state


def _part(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}

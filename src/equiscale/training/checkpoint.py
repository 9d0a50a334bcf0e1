"""A run in progress as one file: weights, optimiser, best weights, history. No pickle.

The file is a SHA-256 digest followed by a safetensors file with that digest. It holds no state of
random generators: the loop seeds them for every epoch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from equiscale.core.files import atomic_write, parse_json
from equiscale.runs.record import History
from equiscale.training.loop import EpochTimings, Trainer

CHECKPOINT_FILE = "checkpoint"
CHECKPOINT_SECONDS = 10.0
_STATE = "equiscale_state"
_DIGEST = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves a run to a file, at intervals of at least so many seconds, and restores it."""

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
        """Restore a run from the file; return whether there was one that could be used."""
        if not self.path.exists():
            return False
        try:
            load_checkpoint(trainer, self.path)
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            _log.warning("restarting the run: %s cannot be used (%s)", self.path, error)
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
        file.write(hashlib.sha256(data).digest() + data)


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Restore a run that `save_checkpoint` wrote, or raise and leave the trainer unchanged."""
    content = path.read_bytes()
    digest, data = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("its checksum does not match")
    header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    state = parse_json(header["__metadata__"][_STATE].encode())
    values: dict[str, Any] = {**safetensors.torch.load(data), **state["optimizer"]}
    history = History(**{name: tuple(items) for name, items in state["history"].items()})
    timings = EpochTimings(**{name: tuple(items) for name, items in state["timings"].items()})
    weights, best = _part(values, "model."), _part(values, "best.")
    moments = _optimizer_state(_part(values, "optimizer."))
    for found in (weights, best):
        _check_weights(found, trainer.model)
    if trainer.average is not None:
        average = _part(values, "average.")
        _check_weights(average, trainer.average)
        trainer.average.load_state_dict(average)
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
    if trainer.average is not None:
        values |= {f"average.{k}": v for k, v in trainer.average.state_dict().items()}
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

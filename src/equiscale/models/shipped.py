"""Trained weights in the package, found by name and offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from equiscale.core.errors import UnknownNameError
from equiscale.core.registry import unknown_name_message

_FOLDER = Path(str(resources.files("equiscale"))) / "models" / "weights"
_CARDS = _FOLDER / "cards.json"

PRETRAINED = "emoji/mid2rest"
"""Dataset and scenario of the weights that `pretrained=True` loads."""


@dataclass(frozen=True)
class WeightsCard:
    """Where trained weights come from, and their accuracy.

    Attributes:
        name: `model/dataset/scenario`.
        run_id: The run whose best weights these are.
        seed: Seed of the run.
        learning_rate: Learning rate of the run.
        dataset_hash: Hash of the dataset's content.
        license: Terms of the dataset's images.
        protocol: Training protocol.
        equiscale: Version of the package.
        commit: Commit of the package.
        valid_accuracy: Accuracy on the validation images, at the training sizes.
        test_accuracy: Accuracy at the scenario's test sizes.
        accuracy_per_size: Accuracy at each object size, from 17 to 64.
    """

    name: str
    run_id: str
    seed: int
    learning_rate: float
    dataset_hash: str
    license: str
    protocol: str
    equiscale: str
    commit: str | None
    valid_accuracy: float
    test_accuracy: float
    accuracy_per_size: Mapping[int, float]

    @property
    def path(self) -> Path:
        """The file, as `equiscale.load_model` reads it."""
        return _FOLDER / f"{self.name.replace('/', '-')}.safetensors"


def list_weights() -> list[str]:
    """Return the names of all trained weights in the package.

    Examples:
        >>> "scale_channels/emoji/mid2rest" in list_weights()
        True
    """
    return list(_cards())


def weights_card(name: str) -> WeightsCard:
    """Return the card of trained weights; raises `UnknownNameError` if there are none.

    Examples:
        >>> weights_card("scale_channels/emoji/mid2rest").seed
        1
    """
    if name not in _cards():
        raise UnknownNameError(unknown_name_message("trained weights", name, _cards()))
    return _cards()[name]


def has_weights(model: str) -> bool:
    """Whether `create_model(model, pretrained=True)` finds trained weights."""
    return f"{model}/{PRETRAINED}" in _cards()


def pretrained_weights(model: str) -> Path:
    """Return the file that `create_model(model, pretrained=True)` loads."""
    return weights_card(f"{model}/{PRETRAINED}").path


def find_weights(path: str | Path) -> Path:
    """Return the file of trained weights of this name, or the path itself.

    An existing file takes precedence. Otherwise a path without a suffix is a name if it has three
    parts, as `model/dataset/scenario` has, or begins with a model that has weights.
    """
    name = Path(path).as_posix()
    begins_with_model = any(card.startswith(f"{name.partition('/')[0]}/") for card in _cards())
    meant_as_name = name[0] not in "./" and (name.count("/") == 2 or begins_with_model)
    if Path(path).exists() or Path(path).suffix or not meant_as_name:
        return Path(path)
    return weights_card(name).path


@cache
def _cards() -> dict[str, WeightsCard]:
    content = json.loads(_CARDS.read_text(encoding="utf-8"))
    return {name: _card(name, fields) for name, fields in content.items()}


def _card(name: str, fields: dict[str, object]) -> WeightsCard:
    per_size = fields.pop("accuracy_per_size")
    assert isinstance(per_size, dict)
    return WeightsCard(name, accuracy_per_size={int(s): v for s, v in per_size.items()}, **fields)  # type: ignore[arg-type]

"""How a run is trained: the paper's protocol and what may differ from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from equiscale.core.errors import OptionError
from equiscale.core.options import check_positive
from equiscale.core.registry import check_name

PROTOCOL_VERSION = "paper-1"
"""Stands for the default of every field of `TrainingProtocol`, and how the loop reads them."""

Optimizer = Literal["adam", "adamw", "sgd"]
Augmentation = Literal["none", "rescale", "rescale_object", "shift"]


@dataclass(frozen=True)
class TrainingProtocol:
    """How a model is trained; the defaults are the paper's protocol.

    Args:
        batch_size: Images per step.
        max_epochs: Passes over the training set, at most.
        patience: Training stops after this many epochs that are not better than all before.
        optimizer: `adam`, `adamw` or `sgd` (with momentum 0.9).
        reshuffle: Shuffle before each epoch. The paper's release shuffles once, in the same way
            for every seed.
        augmentation: `none`; `rescale` resizes every image by a random factor in [1/2, 2];
            `rescale_object` gives every object a random size of the dataset and a random place;
            `shift` moves the image by up to 8 pixels.
        ema: Decay of an exponential moving average of the weights. If it is not 0, the average is
            what is validated, kept and tested.
        break_ties: Of epochs with equal validation accuracy, the one with the lower validation
            loss is better, so training goes on while it falls; in the paper's protocol, the first.
        version: The protocol whose values the defaults are.

    Examples:
        >>> TrainingProtocol().label
        'paper-1'
        >>> TrainingProtocol(batch_size=32, reshuffle=True).label
        'paper-1 batch_size=32 reshuffle=true'
    """

    batch_size: int = 16
    max_epochs: int = 200
    patience: int = 10
    optimizer: Optimizer = "adam"
    reshuffle: bool = False
    augmentation: Augmentation = "none"
    ema: float = 0.0
    break_ties: bool = False
    version: str = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "patience"):
            check_positive(**{name: getattr(self, name)})
        check_name("optimizer", self.optimizer, get_args(Optimizer))
        check_name("augmentation", self.augmentation, get_args(Augmentation))
        for name in ("reshuffle", "break_ties"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.ema, (int, float)) or not 0 <= self.ema < 1:
            raise OptionError(f"ema must be a number of at least 0 and below 1, got {self.ema!r}")
        if self.version != PROTOCOL_VERSION:
            raise OptionError(
                f"unknown training protocol {self.version!r}; this version of equiscale has "
                f"{PROTOCOL_VERSION!r}"
            )

    @classmethod
    def from_changes(cls, changes: Mapping[str, Any]) -> TrainingProtocol:
        """Return the paper's protocol with some fields changed."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in changes:
            check_name("training option", name, known)
        return cls(**changes)

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from the protocol that `version` names.

        Only these enter a run's key, so a new field does not change the keys of old runs.
        """
        return {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if getattr(self, item.name) != item.default
        }

    @property
    def label(self) -> str:
        """The version and the fields that differ from it, for tables."""
        return " ".join([self.version, *(f"{k}={_text(v)}" for k, v in self.changes.items())])


def protocol_changes(label: str) -> str:
    """Return the part of a label that differs from the paper, such as `augmentation=rescale`."""
    return label.removeprefix(PROTOCOL_VERSION).strip()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

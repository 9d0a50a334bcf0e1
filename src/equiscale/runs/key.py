"""What makes a run this run: the scientific inputs, and the name that they hash to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from equiscale.core.errors import OptionError
from equiscale.core.files import canonical_json, content_hash
from equiscale.core.options import LARGEST_NUMBER, check_positive
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario

RUN_ID_LENGTH = 16


@dataclass(frozen=True)
class RunKey:
    """The scientific inputs of a run; no path, host or time among them.

    Args:
        model: Name of a model, or `package.module:factory`.
        dataset: Name of the dataset, for people: its content hash is what counts.
        dataset_hash: Content hash of the dataset.
        scenario: Which object sizes are trained on and which are tested.
        seed: Seed of the weights and of everything random in training.
        learning_rate: Step size of the optimiser.
        model_options: Arguments of the model that were given.
        protocol: How the model is trained.
        model_version: Version that the model declares (`ModelCard.version`). Version 1 adds
            nothing to the run id.
    """

    model: str
    dataset: str
    dataset_hash: str
    scenario: Scenario
    seed: int
    learning_rate: float = 1e-3
    model_options: Mapping[str, Any] = field(default_factory=dict)
    protocol: TrainingProtocol = field(default_factory=TrainingProtocol)
    model_version: int = 1

    def __post_init__(self) -> None:
        for name in ("model", "dataset", "dataset_hash"):
            check_name(name, getattr(self, name))
        object.__setattr__(self, "scenario", Scenario.named(self.scenario))
        object.__setattr__(self, "learning_rate", check_learning_rate(self.learning_rate))
        check_seed(self.seed)
        check_model_options(self.model_options)
        check_positive(model_version=self.model_version)

    @cached_property
    def run_id(self) -> str:
        """The name of the run: a hash of its scientific inputs."""
        inputs = self.to_json()
        del inputs["dataset"]
        return content_hash(inputs)[:RUN_ID_LENGTH]

    def to_json(self) -> dict[str, Any]:
        """Return the key as plain JSON."""
        version = {"model_version": self.model_version} if self.model_version != 1 else {}
        return {
            **version,
            "model": self.model,
            "model_options": dict(self.model_options),
            "dataset": self.dataset,
            "dataset_hash": self.dataset_hash,
            "scenario": self.scenario.value,
            "seed": self.seed,
            "learning_rate": self.learning_rate,
            "protocol": self.protocol.version,
            "protocol_changes": self.protocol.changes,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunKey:
        """Return the key that `to_json` wrote."""
        fields = dict(value)
        version, changes = fields.pop("protocol"), fields.pop("protocol_changes")
        return cls(**fields, protocol=TrainingProtocol(**changes, version=version))

    def __hash__(self) -> int:
        return hash(self.run_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunKey) and self.run_id == other.run_id

    def __str__(self) -> str:
        options = f" {canonical_json(dict(self.model_options))}" if self.model_options else ""
        return (
            f"{self.model}{options} on {self.dataset} {self.scenario.value} "
            f"lr {self.learning_rate:g} seed {self.seed}"
        )


def check_name(what: str, value: object) -> None:
    """Raise `OptionError` unless the value is a text that a terminal and a page can show."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise OptionError(f"the {what} of a run must be a printable text, got {value!r}")


def check_seed(value: object) -> None:
    """Raise `OptionError` unless the value can be a seed."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise OptionError(f"a seed must be a whole number of at least 0, got {value!r}")


def check_learning_rate(value: float) -> float:
    """Return a learning rate as a float, or raise `OptionError` if it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"a learning rate must be a number, got {value!r}")
    if not 0 < value <= LARGEST_NUMBER:
        raise OptionError(f"a learning rate must be positive and finite, got {value!r}")
    return float(value)


def check_model_options(options: Mapping[str, Any]) -> None:
    """Raise `OptionError` unless the options of a model can stand in a key: plain, finite JSON."""
    if not isinstance(options, Mapping):
        raise OptionError(f"the options of a model must have names, got {options!r}")
    for name, value in options.items():
        try:
            check_name("model option", name)
            canonical_json(value)
        except (TypeError, ValueError):
            raise OptionError(
                f"the model option {name}={value!r} must be a text, a finite number, true, false "
                "or a list of these, so that it can stand in the run's key"
            ) from None

"""Groups of options that several commands share, each as one typed argument of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

from equiscale.cli import options

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class TrainingOptions:
    """Differences from the paper's protocol."""

    batch_size: options.BatchSize = None
    epochs: options.Epochs = None
    patience: options.Patience = None
    optimizer: options.Optimizer = None
    reshuffle: options.Reshuffle = False
    augmentation: options.Augmentation = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of `TrainingProtocol` that were given."""
        given = {**vars(self), "max_epochs": self.epochs}
        del given["epochs"]
        return {name: value for name, value in given.items() if value not in (None, False)}


@dataclass(frozen=True)
class RunOptions:
    """How each run is computed and what is kept of it."""

    device: options.Device = None
    threads: options.Threads = None
    track: options.Track = ""
    weights: options.Weights = True


@dataclass(frozen=True)
class EngineOptions:
    """Where many runs are computed."""

    on: options.Engine = "local"
    workers: options.Workers = None
    per_gpu: options.PerGpu = 1
    engine_option: options.EngineOption = field(default_factory=list)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every argument of a command that is a group into one option per field of the group.

    Typer reads the signature of what is returned, in which the options stand one by one.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if is_dataclass(hints[name])}

    @wraps(command)
    def call(**given: Any) -> None:  # noqa: ANN401 - whatever the options are
        for name, group in groups.items():
            given[name] = group(**{item.name: given.pop(item.name) for item in fields(group)})
        command(**given)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name in groups:
            flat += _parameters(groups[name])
        else:
            flat.append(parameter.replace(annotation=hints[name], kind=_KEYWORD))
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(item.name, _KEYWORD, default=_default(item), annotation=hints[item.name])
        for item in fields(group)
    ]


def _default(item: Field[Any]) -> Any:  # noqa: ANN401 - of any option
    return item.default if item.default_factory is MISSING else item.default_factory()

"""The contract every model keeps, its card, and the registry that everything else follows."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_positive
from equiscale.core.registry import Registry, unknown_name_message
from equiscale.layers import GlobalMaxPool
from equiscale.models.foreign import (
    Factory,
    find_known_here,
    import_factory,
    is_known_here_only,
)

CHANNELS = (16, 32)
"""Channels after the first and the second stage of every network of the paper."""

ModelGroup = Literal["paper", "beyond", "control", "own"]
MODEL_GROUPS: tuple[ModelGroup, ...] = get_args(ModelGroup)
"""The eleven of the paper; models that go beyond it; controls for these; those of a user."""

_RESERVED_NAMES = (*MODEL_GROUPS, "all")

FactoryT = TypeVar("FactoryT", bound=Factory)
REQUIRED_ARGUMENTS = ("in_channels", "num_classes")


class Classifier(nn.Module, ABC):
    """`[N, C, H, W] -> [N, num_classes]`: what every registered model offers.

    - `forward(x)` returns logits.
    - `stages(x)` returns the feature map after each stage by name, in order, and
      `classify(stages(x))` is `forward(x)`, up to rounding.
    - `scale_indices(x)` exists where a model pools over scale: the chosen index per stage.

    A model keeps nothing between calls; filters that follow from its options are non-persistent
    buffers, so that `state_dict` holds only what is learned: parameters and, of models with batch
    normalisation, the running statistics. Where a model has dropout, `stages` has none.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        minimum_size: Smallest height and width the layers can work on.
    """

    head: nn.Module

    def __init__(self, in_channels: int, num_classes: int, minimum_size: int) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.minimum_size = minimum_size
        self.class_names: tuple[str, ...] | None = None
        self.global_pool = GlobalMaxPool()

    @abstractmethod
    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` the feature map `[N, O, ...]` after each stage, in order."""

    def classify(self, stages: dict[str, Tensor]) -> Tensor:
        """`stages(x) -> [N, num_classes]`: global max pooling of the last stage, and the head."""
        *_, last = stages.values()
        logits: Tensor = self.head(self.global_pool(last))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`."""
        return self.classify(self.stages(x))

    def check_images(self, x: Tensor) -> None:
        """Raise `ShapeError` unless the images have the right rank, channels, type and size."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ShapeError(
                f"{type(self).__name__} needs images [N, {self.in_channels}, H, W], "
                f"got {list(x.shape)}"
            )
        if not x.is_floating_point():
            raise ShapeError(
                f"{type(self).__name__} needs images in floating point, 0 to 1, got {x.dtype}; "
                f"use x.float() / 255"
            )
        if min(x.shape[2], x.shape[3]) < self.minimum_size:
            raise ShapeError(
                f"{type(self).__name__} needs images of at least "
                f"{self.minimum_size}×{self.minimum_size} pixels, "
                f"got {x.shape[2]}×{x.shape[3]}; enlarge or pad them"
            )


@runtime_checkable
class PoolsOverScale(Protocol):
    """A model that chooses among scales and can say which it chose."""

    def scale_indices(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` chosen scale index per stage, `[N, O, H', W']` or `[N, O]`."""
        ...


class TwoStageNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: convolution, ReLU, convolution, ReLU, global max, linear.

    The networks of the paper differ in their convolutions, which may pool over scale inside.

    Args:
        conv1: First convolution, `in_channels` to `CHANNELS[0]`.
        conv2: Second convolution, to `CHANNELS[1]`.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        minimum_size: Smallest height and width both convolutions can work on.
        features: Channels behind the second convolution.
    """

    def __init__(
        self,
        conv1: nn.Module,
        conv2: nn.Module,
        in_channels: int,
        num_classes: int,
        minimum_size: int,
        features: int = CHANNELS[1],
    ) -> None:
        super().__init__(in_channels, num_classes, minimum_size)
        self.conv1 = conv1
        self.conv2 = conv2
        self.head = nn.Linear(features, num_classes)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> stage1 [N, 16, ...], stage2 [N, 32, ...]`."""
        self.check_images(x)
        first = F.relu(self.conv1(x))
        return {"stage1": first, "stage2": F.relu(self.conv2(first))}


@dataclass(frozen=True)
class ModelCard:
    """What is known of a model without building it.

    Attributes:
        name: Key in the registry, the same as in the published tables.
        title: A few words for tables.
        citation: Who proposed it, where.
        guarantee: What it promises under rescaling.
        limits: Where the promise ends, with measured figures.
        group: `"paper"`, `"beyond"`, `"control"` or, of a user, `"own"`.
        factory: Called with `in_channels`, `num_classes` and the options.
    """

    name: str
    title: str
    citation: str
    guarantee: str
    limits: str
    group: ModelGroup
    factory: Factory

    @property
    def options(self) -> dict[str, Any]:
        """Name and default of every option besides `in_channels` and `num_classes`."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {
            p.name: p.default
            for p in parameters
            if p.name not in REQUIRED_ARGUMENTS and p.kind is not p.VAR_KEYWORD
        }

    @property
    def version(self) -> int:
        """The factory's attribute `version`, 1 if it has none.

        It is part of a run's key. Raise it when the code or a default changes what is trained.
        """
        return getattr(self.factory, "version", 1)

    def count_parameters(self, in_channels: int = 1, num_classes: int = 36) -> int:
        """Return the number of learned parameters; the paper counts grey images, 36 classes."""
        sizes = {"in_channels": in_channels, "num_classes": num_classes}
        with torch.random.fork_rng(devices=[]):
            model = self.factory(**_accepted(self.factory, sizes))
        return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class ModelSpec:
    """Everything needed to build a model again, apart from its weights.

    Attributes:
        name: A registered name, or `package.module:factory`.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        options: Options of this model that were given.
    """

    name: str
    in_channels: int
    num_classes: int
    options: Mapping[str, Any]


_MODELS: Registry[ModelCard] = Registry("model", "one of your own is given as module:Class")


def register_model(
    name: str,
    *,
    title: str,
    citation: str = "",
    guarantee: str = "",
    limits: str = "",
    group: ModelGroup = "own",
) -> Callable[[FactoryT], FactoryT]:
    """Return a decorator that adds a class or function as a model.

    It is called as `factory(in_channels=…, num_classes=…, **options)`. From then on the name works
    wherever a model name does. Arguments are the attributes of `ModelCard`.

    Example (it registers, so it is not run as a test here but in `docs/models.md`)::

        @register_model("mine", title="My model")
        class Mine(nn.Module):
            def __init__(self, in_channels: int, num_classes: int, width: int = 8) -> None: ...

        create_model("mine", in_channels=3, num_classes=2, width=16)
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"a model's name must be a plain word such as 'my_model', got {name!r}")
    if name in _RESERVED_NAMES:
        raise OptionError(f"{name!r} stands for several models; choose another name")
    if group not in MODEL_GROUPS:
        raise OptionError(unknown_name_message("group of models", group, MODEL_GROUPS))

    def add(factory: FactoryT) -> FactoryT:
        _check_factory(name, factory)
        _MODELS.add(name, ModelCard(name, title, citation, guarantee, limits, group, factory))
        return factory

    return add


def list_models(group: ModelGroup | None = None) -> list[str]:
    """Return the names of all registered models, those of the paper first, or of one group.

    Examples:
        >>> len(list_models("paper"))
        11
    """
    if group is not None and group not in MODEL_GROUPS:
        raise OptionError(unknown_name_message("group of models", group, MODEL_GROUPS))
    return [name for name in _MODELS if group in (None, _MODELS[name].group)]


def model_card(name: str) -> ModelCard:
    """Return the card of a registered model, or what is known of `package.module:factory`."""
    if name in _MODELS:
        return _MODELS[name]
    factory = find_factory(name)
    title = (inspect.getdoc(factory) or name).partition("\n")[0]
    return ModelCard(name, title, "", "", "", "own", factory)


def create_model(name: str, *, in_channels: int, num_classes: int, **options: Any) -> nn.Module:  # noqa: ANN401 - each model has its own options
    """Build a model with fresh weights, drawn from torch's global generator.

    Args:
        name: A registered name, see `list_models`, or `package.module:factory` for any callable
            that returns a module; it is given `in_channels` and `num_classes` if it has arguments
            of these names, and the options.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        options: Passed to the model; `model_card(name).options` lists them.

    Examples:
        >>> create_model("standard", in_channels=1, num_classes=36)(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 36])
    """
    check_positive(in_channels=in_channels, num_classes=num_classes)
    check_options(name, options)
    factory = find_factory(name)
    sizes = {"in_channels": in_channels, "num_classes": num_classes}
    model = factory(**_accepted(factory, sizes), **options)
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model {name!r} must be a torch.nn.Module, but its factory returned "
            f"{type(model).__name__}"
        )
    model.spec = ModelSpec(name, in_channels, num_classes, dict(options))  # type: ignore[assignment]
    return model


def find_factory(name: str) -> Factory:
    """Return what builds a model: a registered one, or that of `package.module:factory`."""
    if not isinstance(name, str):
        raise OptionError(f"a model's name must be a text, got {name!r}")
    if is_known_here_only(name):
        return find_known_here(name)
    return import_factory(name) if ":" in name else _MODELS[name].factory


def _accepted(factory: Factory, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return those of the two arguments every model has that a factory takes."""
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in sizes.items() if takes_any or name in parameters}


def _check_factory(name: str, factory: Factory) -> None:
    """Raise `OptionError` unless the factory takes the two arguments every model has."""
    try:
        inspect.signature(factory).bind_partial(**dict.fromkeys(REQUIRED_ARGUMENTS))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"model {name!r} must be a callable that accepts in_channels and num_classes as "
            f"keywords ({error})"
        ) from error


def _parameters(name: str, factory: Factory) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"model {name!r} does not say which arguments it takes: {error}"
        ) from error


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for an option that a model does not have, or one that it needs."""
    parameters = _parameters(name, find_factory(name))
    known = [p for p in parameters if p not in REQUIRED_ARGUMENTS]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            raise OptionError(unknown_name_message(f"option of model {name!r}:", option, known))
    for option in known:
        parameter = parameters[option]
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variadic and option not in options:
            raise OptionError(
                f"model {name!r} needs the option {option!r}; only in_channels and num_classes are "
                f"given by themselves"
            )

"""The registry of models: cards, names, options. Listing, command line and docs follow from it."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import nn

from equiscale.core.errors import DuplicateNameError, OptionError
from equiscale.core.options import check_positive
from equiscale.core.registry import Registry, check_name
from equiscale.core.variants import VARIANTS
from equiscale.models.foreign import (
    Factory,
    find_known_here,
    import_factory,
    is_known_here_only,
)
from equiscale.models.shipped import has_weights

ModelGroup = Literal["paper", "beyond", "control", "own"]
MODEL_GROUPS: tuple[ModelGroup, ...] = get_args(ModelGroup)
"""The paper's eleven models, models beyond it, controls for those, and the user's own."""

_RESERVED_NAMES = (*MODEL_GROUPS, "all")
_SIZES = ("in_channels", "num_classes")

FactoryT = TypeVar("FactoryT", bound=Factory)


@dataclass(frozen=True)
class ModelCard:
    """What is known of a model without building it.

    Attributes:
        name: Name in the registry, the same as in the published tables.
        title: A few words for tables; of a variant, what differs from its base.
        citation: Who proposed it, where.
        guarantee: What it promises under rescaling.
        limits: Where the promise ends, with measured figures.
        training: Options of `equiscale train` it is meant to be trained with, if not by the paper's
            protocol.
        group: `"paper"`, `"beyond"`, `"control"` or, of a user, `"own"`.
        factory: Called with `in_channels`, `num_classes` and the options.
        fixed: Arguments of the factory that make it this model; they are not options.
        base: Of a variant, the model it is a variant of.
        presets: Of a variant, the options that differ from the base model's defaults.
    """

    name: str
    title: str
    citation: str
    guarantee: str
    limits: str
    group: ModelGroup
    factory: Factory
    fixed: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None
    presets: Mapping[str, Any] = field(default_factory=dict)
    training: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Name and default of every option besides `in_channels` and `num_classes`."""
        return {
            p.name: self.presets.get(p.name, p.default)
            for p in self._parameters()
            if p.name not in (*_SIZES, *self.fixed) and p.kind is not p.VAR_KEYWORD
        }

    @property
    def version(self) -> int:
        """The factory's attribute `version`, 1 if it has none.

        It is part of a run's key. Raise it when the code or a default changes what is trained.
        """
        return getattr(self.factory, "version", 1)

    def build(self, in_channels: int, num_classes: int, **options: Any) -> nn.Module:  # noqa: ANN401 - each model has its own options
        """Call the factory, with the two sizes if it has arguments of these names."""
        sizes = {"in_channels": in_channels, "num_classes": num_classes}
        parameters = self._parameters()
        if not _takes_any(parameters):
            sizes = {p.name: sizes[p.name] for p in parameters if p.name in sizes}
        return self.factory(**sizes, **{**self.fixed, **self.presets, **options})

    def count_parameters(self, in_channels: int = 1, num_classes: int = 36) -> int:
        """Return the number of learned parameters; the paper counts grey images, 36 classes."""
        with torch.random.fork_rng(devices=[]):
            model = self.build(in_channels, num_classes)
        return sum(parameter.numel() for parameter in model.parameters())

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise `OptionError` for an option that is unknown, missing or of another type."""
        known, takes_any = self.options, _takes_any(self._parameters())
        for option in () if takes_any else options:
            check_name(f"option of model {self.name!r}:", option, known)
        for option, default in known.items():
            if default is inspect.Parameter.empty and option not in options:
                raise OptionError(
                    f"model {self.name!r} needs the option {option!r}; only in_channels and "
                    f"num_classes are passed automatically"
                )
            given = option in options
            if given and isinstance(default, bool) and not isinstance(options[option], bool):
                raise OptionError(f"{option} must be True or False, got {options[option]!r}")

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            parameters = inspect.signature(self.factory).parameters.values()
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"the arguments of model {self.name!r} cannot be inspected: {error}"
            ) from error
        return [p for p in parameters if p.kind is not p.VAR_POSITIONAL]


def _takes_any(parameters: list[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


@dataclass(frozen=True)
class ModelSpec:
    """Everything needed to build a model again, apart from its weights.

    Attributes:
        name: A registered name, or `package.module:factory`.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        options: Options that were given.
    """

    name: str
    in_channels: int
    num_classes: int
    options: Mapping[str, Any]


_MODELS: Registry[ModelCard] = Registry(
    "model", "equiscale.models.families.", "name a model of your own as module:Class"
)


def register_model(
    name: str,
    *,
    title: str,
    citation: str = "",
    guarantee: str = "",
    limits: str = "",
    group: ModelGroup = "own",
    fixed: Mapping[str, Any] | None = None,
    training: str = "",
) -> Callable[[FactoryT], FactoryT]:
    """Return a decorator that registers a class or function as a model.

    The factory is called as `factory(in_channels=…, num_classes=…, **options)`. The name then works
    wherever a model name does: in `create_model`, on the command line, in sweeps and reports.
    Arguments are the attributes of `ModelCard`. The decorators of another package run at the
    first lookup if its metadata has an entry point `equiscale.models`.

    Example (not run here, because it would register; `docs/how-to/own-model.md` runs it)::

        @register_model("mine", title="My model")
        class Mine(nn.Module):
            def __init__(self, in_channels: int, num_classes: int, width: int = 8) -> None: ...

        create_model("mine", in_channels=3, num_classes=2, width=16)
    """
    if name in _RESERVED_NAMES:
        raise OptionError(f"{name!r} stands for several models; choose another name")
    if name in VARIANTS:
        raise DuplicateNameError(f"model {name!r} is already registered; choose another name")
    check_name("group of models", group, MODEL_GROUPS)

    def add(factory: FactoryT) -> FactoryT:
        words = title, citation, guarantee, limits
        card = ModelCard(name, *words, group, factory, dict(fixed or {}), training=training)
        _check_factory(card)
        _MODELS.add(name, card)
        return factory

    return add


def _check_factory(card: ModelCard) -> None:
    """Raise `OptionError` unless the factory takes both sizes and the fixed arguments."""
    try:
        inspect.signature(card.factory).bind_partial(**dict.fromkeys((*_SIZES, *card.fixed)))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"model {card.name!r} must be a callable that accepts in_channels and num_classes as "
            f"keywords ({error})"
        ) from error


def list_models(
    filter: str | Sequence[str] | None = None,  # noqa: A002 - timm's word
    *,
    pretrained: bool = False,
) -> list[str]:
    """Return the names of registered models, those of the paper first.

    Args:
        filter: A group (`"paper"`, `"beyond"`, `"control"`, `"own"`), a name, or a pattern with
            shell wildcards; or several of these. By default all.
        pretrained: Whether to return only models whose trained weights are in the package.

    Examples:
        >>> len(list_models("paper"))
        11
        >>> list_models("*_pool", pretrained=True)
        ['pixel_pool', 'slice_pool']
    """
    names = [
        *(name for name in _MODELS if _MODELS[name].group != "own"),
        *VARIANTS,
        *(name for name in _MODELS if _MODELS[name].group == "own"),
    ]
    if filter:
        filters = [filter] if isinstance(filter, str) else filter
        chosen = {name for one in filters for name in _matching(one, names)}
        names = [name for name in names if name in chosen]
    return [name for name in names if not pretrained or has_weights(name)]


def _matching(pattern: str, names: list[str]) -> list[str]:
    if pattern in MODEL_GROUPS:
        return [name for name in names if model_card(name).group == pattern]
    if not set(pattern) & set("*?["):
        check_name("group of models or model", pattern, (*MODEL_GROUPS, *names))
    return fnmatch.filter(names, pattern)


def model_card(name: str) -> ModelCard:
    """Return the card of a registered model or variant, or one made from `package.module:factory`.

    Examples:
        >>> model_card("pixel_pool_same").presets
        {'padding': 'same'}
    """
    if not isinstance(name, str):
        raise OptionError(f"a model's name must be a string, got {name!r}")
    if name in VARIANTS:
        return _variant_card(name)
    if is_known_here_only(name) or ":" in name:
        factory = find_known_here(name) if is_known_here_only(name) else import_factory(name)
        inherited = inspect.isclass(factory) and "__doc__" not in vars(factory)
        title = ((not inherited and inspect.getdoc(factory)) or name).partition("\n")[0]
        return ModelCard(name, title, "", "", "", "own", factory)
    return _MODELS[name]


def _variant_card(name: str) -> ModelCard:
    variant = VARIANTS[name]
    base = _MODELS[variant.base]
    fixed = {key: variant.options.get(key, value) for key, value in base.fixed.items()}
    presets = {key: value for key, value in variant.options.items() if key not in fixed}
    return replace(
        base,
        name=name,
        title=variant.title,
        limits=f"Not measured for this variant; see {variant.base}.",
        group=variant.group,
        fixed=fixed,
        base=variant.base,
        presets=presets,
    )


def build_model(
    name: str, in_channels: int, num_classes: int, options: Mapping[str, Any]
) -> nn.Module:
    """Build a model with fresh weights; see `create_model`."""
    has_head = type(num_classes) is not int or num_classes != 0
    check_positive(in_channels=in_channels, num_classes=num_classes if has_head else 1)
    card = model_card(name)
    card.check_options(options)
    model = card.build(in_channels, num_classes if has_head else 1, **options)
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model {name!r} must be a torch.nn.Module, but its factory returned "
            f"{type(model).__name__}"
        )
    if not has_head:
        reset_classifier(model, 0)
    model.spec = ModelSpec(name, in_channels, num_classes, dict(options))  # type: ignore[assignment]
    return model


def reset_classifier(model: nn.Module, num_classes: int) -> None:
    """Give a model a new classifier, or with 0 classes none."""
    reset: Any = getattr(model, "reset_classifier", None)
    if reset is None:
        raise OptionError(
            f"num_classes={num_classes} needs a model with reset_classifier, such as one derived "
            f"from equiscale.models.Classifier, got {type(model).__name__}; replace its last layer"
        )
    reset(num_classes)

"""Build models by name: fresh or pretrained, as classifiers or as feature extractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.models.checkpoint import Checkpoint, read_checkpoint
from equiscale.models.classifier import Classifier
from equiscale.models.registry import build_model, list_models, model_card
from equiscale.models.shipped import has_weights, pretrained_weights

DEFAULT_IN_CHANNELS = 3


def create_model(
    name: str,
    pretrained: bool = False,
    *,
    in_channels: int | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    **options: Any,  # noqa: ANN401 - each model has its own options
) -> nn.Module:
    """Build a model. Fresh weights are drawn from torch's global generator.

    Args:
        name: A registered name, see `list_models`, or `package.module:factory` for any callable
            that returns a module. The factory receives `in_channels` and `num_classes` if it has
            arguments of these names.
        pretrained: Whether to load the trained weights `name/emoji/mid2rest`. If `num_classes`
            differs from theirs, the classifier keeps its fresh weights; if `in_channels` differs,
            the first layer is spread over the channels, so that it sees their mean.
        in_channels: Channels of the images; 3 by default, or those of the pretrained weights.
        num_classes: Number of logits; by default those of the pretrained weights. With 0 the model
            has no classifier and returns pooled features, `[N, num_features]`.
        in_chans: timm's name for `in_channels`.
        features_only: Whether to return a `FeatureMaps` in place of a classifier.
        out_indices: Which of its maps, first to last, or how many of the last; all by default.
        options: Passed to the model; `model_card(name).options` lists them.

    Examples:
        >>> import torch
        >>> create_model("standard", in_channels=1, num_classes=36)(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 36])
        >>> create_model("pixel_pool", pretrained=True, num_classes=5, in_chans=3).num_classes
        5
        >>> maps = create_model("xu", in_chans=3, features_only=True)(torch.zeros(2, 3, 32, 32))
        >>> maps[-1].shape
        torch.Size([2, 32, 32, 32])
    """
    if None not in (in_channels, in_chans) and in_channels != in_chans:
        raise OptionError(
            f"in_chans is another name for in_channels, got both {in_channels!r} and {in_chans!r}"
        )
    in_channels = in_chans if in_channels is None else in_channels
    model_card(name)  # an unknown model is named before missing weights are
    if not isinstance(pretrained, bool):
        raise OptionError(f"pretrained must be True or False, got {pretrained!r}")
    weights = _read_pretrained(name) if pretrained else None
    if weights is not None:
        in_channels = in_channels if in_channels is not None else weights.spec.in_channels
        num_classes = num_classes if num_classes is not None else weights.spec.num_classes
    if num_classes is None:
        if not features_only:
            raise OptionError(
                f"create_model({name!r}) needs num_classes unless it is pretrained or features_only"
            )
        num_classes = 0
    if in_channels is None:
        in_channels = DEFAULT_IN_CHANNELS
    model = build_model(name, in_channels, num_classes, options)
    if weights is not None:
        _load_pretrained(model, weights)
    if out_indices is not None and not features_only:
        raise OptionError("out_indices chooses from the maps of a model with features_only=True")
    return FeatureMaps(model, out_indices) if features_only else model


class FeatureMaps(nn.Module):
    """`[N, C, H, W] ->` the list of a model's stage maps, in order; the classifier is dropped.

    Args:
        model: A model with `stages`.
        out_indices: Which maps to return (-1 is the last), or how many of the last; all by default.
    """

    def __init__(self, model: nn.Module, out_indices: int | Sequence[int] | None = None) -> None:
        super().__init__()
        if not isinstance(model, Classifier):
            raise OptionError(
                f"features_only needs a model with stages, which {type(model).__name__} is not: "
                "derive it from equiscale.models.Classifier"
            )
        model.reset_classifier(0)
        self.model = model
        if isinstance(out_indices, int):
            out_indices = range(-out_indices, 0)
        self.out_indices = None if out_indices is None else tuple(out_indices)

    def forward(self, x: Tensor) -> list[Tensor]:
        """`[N, C, H, W] ->` one map `[N, O, ...]` per stage."""
        maps = list(self.model.stages(x).values())
        indices = range(len(maps)) if self.out_indices is None else self.out_indices
        try:
            return [maps[index] for index in indices]
        except (IndexError, TypeError):
            raise OptionError(
                f"out_indices must be integers from {-len(maps)} to {len(maps) - 1}, of the "
                f"{len(maps)} stages, got {list(indices)}"
            ) from None


def _read_pretrained(name: str) -> Checkpoint:
    if not has_weights(name):
        raise OptionError(
            f"there are no trained weights of {name!r}; there are some of "
            f"{', '.join(list_models(pretrained=True))}"
        )
    return read_checkpoint(pretrained_weights(name))


def _load_pretrained(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy trained weights into a model that may have other classes or input channels."""
    spec: Any = model.spec
    keeps_head = spec.num_classes == checkpoint.spec.num_classes
    target = model.state_dict()
    state = {
        key: _fit_channels(key, value, target, spec.in_channels, checkpoint.spec.in_channels)
        for key, value in sorted(checkpoint.weights.items())
        if keeps_head or not key.startswith("head.")
    }
    model.load_state_dict(state, strict=keeps_head)
    if keeps_head:
        model.class_names = checkpoint.class_names  # type: ignore[assignment]


def _fit_channels(
    key: str, weight: Tensor, target: Mapping[str, Tensor], wanted: int, trained: int
) -> Tensor:
    """Return a weight of the shape that the model has; `[O, 1, ...]` is spread over channels."""
    shape = target[key].shape if key in target else None
    if shape == weight.shape:
        return weight
    if trained == 1 and weight.ndim > 2 and weight.shape[1] == 1:
        weight = weight.expand(-1, wanted, *weight.shape[2:]) / wanted
    if weight.shape != shape:
        raise OptionError(
            f"the trained weights do not fit: {key} is {list(weight.shape)}, the model needs "
            f"{None if shape is None else list(shape)}; leave out options and in_channels, or "
            "train from scratch"
        )
    return weight

"""The interface of every model of the package, and the architecture most of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_positive
from equiscale.layers import GlobalMaxPool
from equiscale.layers.channels import ViewPool, pool_views
from equiscale.models.registry import ModelSpec
from equiscale.models.shipped import WeightsCard

if TYPE_CHECKING:
    from equiscale.models.hub import HubModel

ClassifierT = TypeVar("ClassifierT", bound="Classifier")

CHANNELS = (16, 32)
"""Channels after the first and the second stage of every network of the paper."""


class Classifier(nn.Module, ABC):
    """`[N, C, H, W] -> [N, num_classes]`: the interface of every registered model.

    - `forward(x)` returns logits.
    - `stages(x)` returns the feature map after each stage by name, in order, and
      `classify(stages(x))` equals `forward(x)` up to rounding.
    - `forward_features`, `forward_head`, `num_features`, `get_classifier` and `reset_classifier`
      are those of timm.
    - `save_pretrained`, `push_to_hub` and `from_pretrained` are those of Hugging Face.
    - `scale_indices(x)` exists if the model pools over scale: the chosen index per stage.

    Calls leave no state behind. Filters that follow from the options are non-persistent buffers,
    so `state_dict` holds parameters and batch statistics only. `stages` never drops views.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        minimum_size: Smallest height and width the layers can work on.
    """

    head: nn.Module
    spec: ModelSpec

    def __init__(self, in_channels: int, num_classes: int, minimum_size: int) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_classes=num_classes)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.minimum_size = minimum_size
        self.class_names: tuple[str, ...] | None = None
        self._num_features: int | None = None
        self.global_pool: nn.Module = GlobalMaxPool()

    @abstractmethod
    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` the feature map `[N, O, ...]` after each stage, in order."""

    def classify(self, stages: dict[str, Tensor]) -> Tensor:
        """`stages(x) -> [N, num_classes]`."""
        return self.forward_head(self.last_features(stages))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`."""
        return self.classify(self.stages(x))

    def last_features(self, stages: dict[str, Tensor]) -> Tensor:
        """`stages(x) -> [N, num_features, ...]`: the last stage."""
        *_, last = stages.values()
        return last

    def forward_features(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_features, ...]`: the last feature map, before global pooling.

        A model that is run on several views returns their pooled features,
        `[N, views, num_features]`.
        """
        return self.last_features(self.stages(x))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """`forward_features(x) -> [N, num_classes]`: global max pooling and the classifier.

        With `pre_logits=True` the classifier is left out: `[N, num_features]`. Features of several
        views are then averaged.
        """
        pooled: Tensor = self.global_pool(features)
        return pooled if pre_logits else self.head(pooled)

    @property
    def num_features(self) -> int:
        """Number of features in front of the classifier."""
        linear = (m.in_features for m in self.head.modules() if isinstance(m, nn.Linear))
        found = next(linear, self._num_features)
        if found is None:
            raise OptionError(f"the classifier of {type(self).__name__} has no linear layer")
        return found

    def get_classifier(self) -> nn.Module:
        """Return the layer that maps features to logits."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a new linear layer, with weights drawn as for a new model.

        With 0 classes there is none: the model returns features, as `forward_head` does with
        `pre_logits=True`.
        """
        if num_classes != 0:
            check_positive(num_classes=num_classes)
        old, features = next(self.parameters()), self.num_features
        head = nn.Linear(features, num_classes) if num_classes else nn.Identity()
        self.head, self._num_features = head.to(old.device, old.dtype), features
        self.num_classes, self.class_names = num_classes, None
        if hasattr(self, "spec"):
            self.spec = replace(self.spec, num_classes=num_classes)

    def save_pretrained(
        self, save_directory: str | Path, *, card: WeightsCard | None = None, **options: object
    ) -> None:
        """Write the model, `config.json` and a model card to a directory.

        Args:
            save_directory: The directory; an existing `README.md` is kept.
            card: How the weights were trained, see `equiscale.models.hub.HubModel`.
            options: Those of `huggingface_hub.ModelHubMixin.save_pretrained`.
        """
        _hub_model()(self, card).save_pretrained(save_directory, **options)

    def push_to_hub(
        self, repo_id: str, *, card: WeightsCard | None = None, **options: object
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub; return the commit's URL.

        Args:
            repo_id: `user/name`; created if it does not exist.
            card: How the weights were trained, see `equiscale.models.hub.HubModel`.
            options: Those of `huggingface_hub.ModelHubMixin.push_to_hub`.
        """
        return str(_hub_model()(self, card).push_to_hub(repo_id, **options).commit_url)

    @classmethod
    def from_pretrained(cls: type[ClassifierT], name: str | Path, **options: object) -> ClassifierT:
        """Load a model from a directory or from the Hugging Face Hub, in evaluation mode.

        Args:
            name: A directory that `save_pretrained` wrote, or `user/name` on the Hub.
            options: Those of `load_model` (`num_classes`, `allow_import`) and of
                `huggingface_hub.ModelHubMixin.from_pretrained` (`revision`, `token`, …).
        """
        model = _hub_model().from_pretrained(name, **options).model
        if not isinstance(model, cls):
            raise OptionError(
                f"{name} holds a {type(model).__name__}, not a {cls.__name__}; use "
                f"Classifier.from_pretrained, or HubModel.from_pretrained(…).model for any module"
            )
        return model

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


def _hub_model() -> type[HubModel]:
    from equiscale.models.hub import HubModel  # huggingface_hub, only where it is needed

    return HubModel


@runtime_checkable
class PoolsOverScale(Protocol):
    """A model that pools over scale and reports the scale it chose."""

    def scale_indices(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` chosen scale index per stage, `[N, O, H', W']` or `[N, O]`."""
        ...


class TwoStageNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: convolution, ReLU, convolution, ReLU, global max, linear.

    The networks of the paper differ in their convolutions, some of which pool over scale.

    Args:
        conv1: First convolution, `in_channels` to `CHANNELS[0]`.
        conv2: Second convolution, to `CHANNELS[1]`.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        minimum_size: Smallest height and width both convolutions can work on.
        features: Channels after the second convolution.
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


class MultiViewNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: one network on several views, their logits pooled.

    A subclass names the feature maps of one view `…stageK…`.
    """

    last_stage = "stage2"
    pool: ViewPool = "mean"

    def pool_logits(self, logits: Tensor, kept: Tensor | None = None) -> Tensor:
        """`[N, views, num_classes] -> [N, num_classes]`; without a classifier, mean features."""
        return pool_views(logits, self.pool if self.num_classes else "mean", kept)

    def last_features(self, stages: dict[str, Tensor]) -> Tensor:
        """`stages(x) -> [N, views, num_features]`: the last stage of each view, pooled."""
        maps = [value for name, value in stages.items() if self.last_stage in name]
        return torch.stack([self.global_pool(value) for value in maps], dim=1)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """`[N, views, num_features] -> [N, num_classes]`, or the mean of the views' features."""
        if pre_logits:
            return features.mean(dim=1)
        return self.pool_logits(self.view_logits(features.unbind(dim=1)))

    def view_logits(self, features: Sequence[Tensor]) -> Tensor:
        """`views × [N, num_features] -> [N, views, num_classes]`."""
        return torch.stack([self.head(one) for one in features], dim=1)

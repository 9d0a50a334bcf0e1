"""The base of modules that wrap a classifier and add no parameters."""

from __future__ import annotations

from typing import Any

from torch import nn

from equiscale.core.errors import OptionError

PASSED_ON = (
    *("forward_features", "forward_head", "num_features", "pretrained_cfg"),
    *("get_classifier", "reset_classifier", "num_classes"),
)
"""timm's words, which mean the same for the wrapped network."""


class Wrapper(nn.Module):
    """A module around a classifier, which it calls `backbone`.

    Its checkpoint is that of the backbone: `load_state_dict` takes what the plain network has
    saved, and `state_dict` returns what the plain network can load. timm's `forward_features`,
    `forward_head`, `reset_classifier`, `num_classes` and the like are those of the backbone.

    Examples:
        >>> list(Wrapper(nn.Linear(2, 3)).state_dict())
        ['weight', 'bias']
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise OptionError(f"the backbone must be a torch.nn.Module, got {backbone!r}")
        self.backbone = backbone
        self.register_state_dict_post_hook(_drop_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type is that of the name
        if name in PASSED_ON:
            return getattr(self.backbone, name)
        return super().__getattr__(name)


def _drop_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    _rename(state, f"{prefix}backbone.", prefix)


def _add_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    _rename(state, prefix, f"{prefix}backbone.")


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    """Exchange the prefix of the keys that have it, in place; the order stays."""
    for key in list(state):
        value = state.pop(key)
        state[new + key[len(old) :] if key.startswith(old) else key] = value

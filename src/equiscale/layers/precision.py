"""Computing in float32 under autocast and for half precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_is_on(tensor: Tensor) -> bool:
    """Whether autocast is enabled for the tensor's device."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast for the tensor's device."""
    return (
        torch.autocast(tensor.device.type, enabled=False)
        if autocast_is_on(tensor)
        else nullcontext()
    )


def single(tensor: Tensor) -> Tensor:
    """Return half precision in float32, and other dtypes unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

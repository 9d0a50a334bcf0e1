"""What computes in float32 although half precision was asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_is_on(tensor: Tensor) -> bool:
    """Whether operations on the tensor's device are cast."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operations on the tensor's device are not cast."""
    return (
        torch.autocast(tensor.device.type, enabled=False)
        if autocast_is_on(tensor)
        else nullcontext()
    )


def single(tensor: Tensor) -> Tensor:
    """Return half-precision numbers in float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

"""A base class for metrics where torchmetrics is not installed, with the same methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

_MERGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "max": torch.maximum}


class Metric(nn.Module):
    """Accumulates states over batches and processes: `update`, `compute`, `reset`.

    A subclass adds its states in `__init__` and defines `update` and `compute`. If
    `torch.distributed` is initialised, `compute` first merges the states of all processes, so
    every process must call it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._defaults: dict[str, Tensor] = {}
        self._reductions: dict[str, Literal["sum", "max"]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:  # noqa: ANN401 - passed on
        super().__init_subclass__(**arguments)
        if "compute" in cls.__dict__:
            cls.compute = _over_all_processes(cls.compute)  # type: ignore[method-assign]

    def add_state(self, name: str, default: Tensor, dist_reduce_fx: Literal["sum", "max"]) -> None:
        """Add an attribute that starts at `default`, and say how two of its values merge."""
        self._defaults[name] = default.clone()
        self._reductions[name] = dist_reduce_fx
        self.register_buffer(name, default.clone(), persistent=False)

    def update(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the subclass says
        """Add a batch."""
        raise NotImplementedError

    def compute(self) -> dict[str, Tensor]:
        """Return the values over all batches so far."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all batches."""
        for name, default in self._defaults.items():
            setattr(self, name, default.to(getattr(self, name).device, copy=True))

    def forward(self, *arguments: Any, **named: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Add a batch and return the values of this batch alone, in this process."""
        so_far = {name: getattr(self, name) for name in self._defaults}
        self.reset()
        self.update(*arguments, **named)
        values: dict[str, Tensor] = type(self).compute.__wrapped__(self)  # type: ignore[attr-defined]
        for name, state in so_far.items():  # not in place: values may be views of a state
            merge = _MERGE[self._reductions[name]]
            setattr(self, name, merge(getattr(self, name), state))
        return values


def _over_all_processes(compute: Any) -> Any:  # noqa: ANN401 - a method
    @functools.wraps(compute)
    def merged(self: Metric) -> dict[str, Tensor]:
        if not (dist.is_available() and dist.is_initialized()):
            return compute(self)
        own = {name: getattr(self, name) for name in self._defaults}
        try:
            for name, state in own.items():
                total = state.clone()
                dist.all_reduce(total, getattr(dist.ReduceOp, self._reductions[name].upper()))
                setattr(self, name, total)
            return compute(self)
        finally:
            for name, state in own.items():
                setattr(self, name, state)

    return merged

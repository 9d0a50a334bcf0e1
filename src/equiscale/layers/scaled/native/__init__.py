"""The compiled library of the scaled convolution, and calling it. See `kernel.c`.

The library is part of the package: wheels contain it, and an installation from source builds it
if there is a C compiler. Without it the caller falls back to PyTorch operations.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equiscale.layers.scaled.native.build import LIBRARY

if TYPE_CHECKING:
    from equiscale.layers.scaled.spectral.plan import Plan

SWITCH = "EQUISCALE_NATIVE"
_log = logging.getLogger("equiscale")
_TYPES = {torch.float32: "f32", torch.float64: "f64"}
_POOLS = ("none", "pixel", "slice", "global", "chosen")
_ALIGNMENT = 64


_SIZES = (
    "samples",
    "groups",
    "channels",
    "outputs",
    "height",
    "width",
    "scales",
    "functions",
    "even",
    "row_frequencies",
    "column_frequencies",
    "pool",
    "track",
    "threads",
)
_POINTERS = (
    "row_extents",
    "column_extents",
    "row_reach",
    "column_reach",
    "row_analysis",
    "column_analysis",
    "row_waves",
    "column_waves",
    "row_kernels",
    "column_kernels",
    "x",
    "weight",
    "bias",
    "values",
    "choice",
    "grad",
    "weight_grad",
    "x_grad",
    "scratch",
)


class _Pass(ctypes.Structure):
    """`Pass` of kernel.c."""

    _fields_ = (
        *((name, ctypes.c_ssize_t) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("scratch_bytes", ctypes.c_ssize_t),
    )


class Library:
    """The functions of the library for the instructions of this processor.

    Args:
        path: The library's file.

    Raises:
        OSError: It cannot be loaded, or is not the one that this code belongs to.
    """

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        try:
            self._functions.equiscale_instructions.restype = ctypes.c_char_p
            self.instructions: str = self._functions.equiscale_instructions().decode()
            found = {self._call("pass_bytes", dtype) for dtype in _TYPES}
        except AttributeError as error:
            raise OSError(f"{path} is another version's: {error}") from error
        if found != {ctypes.sizeof(_Pass)}:
            raise OSError(f"{path} is another version's: install the package again")

    def _function(self, name: str, dtype: torch.dtype) -> Any:  # noqa: ANN401 - a C function
        function = getattr(self._functions, f"{_TYPES[dtype]}_{self.instructions}_{name}")
        function.restype = ctypes.c_int if name in ("forward", "backward") else ctypes.c_ssize_t
        return function

    def _call(self, name: str, dtype: torch.dtype, *arguments: object) -> int:
        return int(self._function(name, dtype)(*arguments))

    def is_suitable(self, x: Tensor, outputs_per_group: int) -> bool:
        """Whether an input can be convolved here, and fast: vectors hold output channels."""
        if x.device.type != "cpu" or x.dtype not in _TYPES:
            return False
        return 2 * outputs_per_group >= self._call("lanes", x.dtype)

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plan: Plan,
        pool: str,
        values: Tensor,
        choice: Tensor,
    ) -> None:
        """Compute maps, or pool them.

        Args:
            x: `[N, C, H, W]` input.
            weight: `[q, r, G, C/G, O/G]` in the basis of functions, see `to_basis`.
            bias: `[O]` or None.
            plan: Constants.
            pool: `"none"`, `"pixel"`, `"slice"`, `"global"`, or `"chosen"`, where the scale index
                of each map is given.
            values: Result: `[N, O, S, H', W']`, `[N, O, H', W']` or, for global, `[N, O]`.
            choice: Result: int16 scale indices, `[N, O, H', W']` for pixel, `[N, O]` for slice, or
                int64 places in `[S, H', W']` for global. Empty if not wanted. For chosen it is an
                argument.
        """
        arrays = {"bias": bias, "values": values, "choice": choice if choice.numel() else None}
        self._run("forward", x, weight, plan, pool, choice.numel() > 0, arrays)

    def backward(
        self,
        x: Tensor,
        weight: Tensor,
        plan: Plan,
        pool: str,
        choice: Tensor,
        grad: Tensor,
        weight_grad: Tensor,
        x_grad: Tensor | None,
    ) -> None:
        """Compute the gradients of weight (in its basis) and input from that of the values.

        Args as in `forward`; pool is `"none"`, `"pixel"` or `"chosen"`.
        """
        arrays = {"choice": choice, "grad": grad, "weight_grad": weight_grad, "x_grad": x_grad}
        self._run("backward", x, weight, plan, pool, False, arrays)

    def _run(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        plan: Plan,
        pool: str,
        track: bool,
        arrays: dict[str, Tensor | None],
    ) -> None:
        q, r, groups, channels, outputs = weight.shape
        samples, _, height, width = x.shape
        tensors = {**plan.arrays, "x": x.contiguous(), "weight": weight.contiguous(), **arrays}
        _check(tensors, x, (samples, groups * channels, *plan.input_size), (q, r), plan)
        arguments = _Pass(
            samples=samples,
            groups=groups,
            channels=channels,
            outputs=outputs,
            height=height,
            width=width,
            scales=plan.num_scales,
            functions=plan.num_functions,
            even=plan.num_even,
            row_frequencies=plan.rows.num_frequencies,
            column_frequencies=plan.columns.num_frequencies,
            pool=_POOLS.index(pool),
            track=track,
            threads=torch.get_num_threads(),
            **{key: tensor.data_ptr() for key, tensor in tensors.items() if tensor is not None},
        )
        needed = self._call("scratch", x.dtype, ctypes.byref(arguments))
        scratch = torch.empty(needed + _ALIGNMENT, dtype=torch.uint8)
        arguments.scratch = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        arguments.scratch_bytes = needed
        status = self._call(name, x.dtype, ctypes.byref(arguments))
        assert status == 0, "the library asked for too little memory"


_WHOLE = {"row_extents", "column_extents", "row_reach", "column_reach", "choice"}


def _check(
    tensors: dict[str, Tensor | None],
    x: Tensor,
    shape: tuple[int, ...],
    functions: tuple[int, int],
    plan: Plan,
) -> None:
    """Make sure that every pointer leads to what kernel.c reads and writes there."""
    assert x.shape == shape
    assert functions == (plan.num_functions, plan.num_functions)
    for name, tensor in tensors.items():
        if tensor is not None:
            assert tensor.is_contiguous(), name
            assert tensor.device.type == "cpu", name
            assert name in _WHOLE or tensor.dtype == x.dtype, name


def load_library() -> Library | None:
    """Return the library, or None if it is switched off or cannot be used; the log says why."""
    return None if os.environ.get(SWITCH, "1") == "0" else _load()


@cache
def _load() -> Library | None:
    path = Path(__file__).with_name(LIBRARY)
    if not path.exists():
        _log.warning(
            "the compiled library is not installed: the scaled convolution runs in PyTorch "
            "operations, several times slower. Install a C compiler and then equiscale again."
        )
        return None
    try:
        return Library(path)
    except OSError as error:
        _log.warning(
            "the compiled library cannot be loaded, PyTorch operations are used: %s", error
        )
        return None

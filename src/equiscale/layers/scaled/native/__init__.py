"""The compiled library of the scaled convolution, and calling it. See `kernel.c`.

The library is part of the package: wheels contain it, and an installation from source builds it
if there is a C compiler. Without it the caller falls back to PyTorch operations.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.scaled.native.build import LIBRARY

if TYPE_CHECKING:
    from equiscale.layers.scaled.spectral.plan import Plan
    from equiscale.layers.scaled.spectral.sparse import Places

SWITCH = "EQUISCALE_NATIVE"
_log = logging.getLogger("equiscale")
_TYPES = {torch.float32: "f32", torch.float64: "f64"}
_POOLS = ("none", "pixel", "slice", "global", "chosen")
_ALIGNMENT = 64
_LARGE, _LARGEST_KEPT = 32 << 20, 256 << 20  # bytes; glibc maps as much as _LARGE anew each time
_kept: list[Tensor] = []  # at most one block of scratch memory: new pages take time


def _structure(name: str, sizes: str, pointers: str) -> type[ctypes.Structure]:
    """Return a structure of kernel.c: numbers, then pointers, then the scratch memory."""
    fields: list[tuple[str, type]] = [(field, ctypes.c_ssize_t) for field in sizes.split()]
    fields += [(field, ctypes.c_void_p) for field in f"{pointers} scratch".split()]
    fields += [("scratch_bytes", ctypes.c_ssize_t)]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_Pass = _structure(
    "Pass",
    "samples groups channels outputs height width row_stride column_stride scales begin end "
    "functions even row_frequencies column_frequencies pool track threads",
    "row_extents column_extents row_reach column_reach row_analysis column_analysis row_waves "
    "column_waves row_kernels column_kernels x weight bias values choice grad weight_grad x_grad",
)
_Sparse = _structure(
    "Sparse",
    "samples groups vectors outputs height width base longest places threads",
    "row_starts column_starts kernel_sizes sample channel scale row column grad resampling x "
    "weight weight_grad x_grad",
)


def _allocate(size: int) -> Tensor:
    """Return bytes of scratch memory, much of it in huge pages where the system has them."""
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them, or too little memory
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            return torch.frombuffer(memory, dtype=torch.uint8)
    return torch.empty(size, dtype=torch.uint8)


@contextlib.contextmanager
def _scratch(size: int) -> Iterator[Tensor]:
    """Lend bytes of scratch memory; a large block is kept for the next pass."""
    try:
        kept = _kept.pop()
    except IndexError:  # none yet, or another thread has it
        kept = torch.empty(0, dtype=torch.uint8)
    memory = kept if len(kept) >= size else _allocate(size)
    try:
        yield memory
    finally:
        if _LARGE <= len(memory) <= _LARGEST_KEPT:
            kept = memory
        if len(kept) and not _kept:
            _kept.append(kept)


class Library:
    """The functions of the library for the instructions of this processor.

    Args:
        path: The library's file.

    Raises:
        OSError: It cannot be loaded, or is not the one that this code belongs to.
    """

    def __init__(self, path: Path) -> None:
        if not _is_whole(path):
            raise OSError(f"{path} is cut off: install the package again")
        self._functions = ctypes.CDLL(str(path))
        try:
            self._functions.equiscale_instructions.restype = ctypes.c_char_p
            self.instructions: str = self._functions.equiscale_instructions().decode()
            found = {
                (self._call("pass_bytes", dtype), self._call("sparse_bytes", dtype))
                for dtype in _TYPES
            }
        except AttributeError as error:
            raise OSError(f"{path} is another version's: {error}") from error
        if found != {(ctypes.sizeof(_Pass), ctypes.sizeof(_Sparse))}:
            raise OSError(f"{path} is another version's: install the package again")

    def _function(self, name: str, dtype: torch.dtype) -> Any:  # noqa: ANN401 - a C function
        function = getattr(self._functions, f"{_TYPES[dtype]}_{self.instructions}_{name}")
        is_pass = name in ("forward", "backward", "sparse")
        function.restype = ctypes.c_int if is_pass else ctypes.c_ssize_t
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
        tensors = {
            **plan.extent_arrays,
            "x": x.contiguous(),
            "weight": weight.contiguous(),
            **arrays,
        }
        _require(x.shape == (samples, groups * channels, *plan.input_size), "x")
        _require(q == r == plan.num_functions, "weight")
        _check(tensors, x)
        shared: dict[str, int] = {
            "samples": samples,
            "groups": groups,
            "channels": channels,
            "outputs": outputs,
            "height": height,
            "width": width,
            "row_stride": plan.stride[0],
            "column_stride": plan.stride[1],
            "scales": plan.num_scales,
            "functions": plan.num_functions,
            "even": plan.num_even,
            "pool": _POOLS.index(pool),
            "track": track,
            "threads": torch.get_num_threads(),
            **_pointers(tensors),
        }
        passes = []
        for period in plan.periods:
            _check(period.arrays, x)
            passes.append(
                _Pass(
                    begin=period.begin,
                    end=period.end,
                    row_frequencies=period.rows.num_frequencies,
                    column_frequencies=period.columns.num_frequencies,
                    **shared,
                    **_pointers(period.arrays),
                )
            )
        self._call_with_scratch(name, "scratch", x.dtype, passes)

    def _call_with_scratch(
        self, name: str, measure: str, dtype: torch.dtype, passes: list[Any]
    ) -> None:
        arguments = (type(passes[0]) * len(passes))(*passes)
        count = ctypes.c_ssize_t(len(passes))
        needed = self._call(measure, dtype, arguments, count)
        with _scratch(needed + _ALIGNMENT) as scratch:
            arguments[0].scratch = -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT
            arguments[0].scratch_bytes = needed
            status = self._call(name, dtype, arguments, count)
        _require(status == 0, "scratch memory")

    def sparse_backward(
        self, x: Tensor, weight: Tensor, places: Places, plan: Plan, input_wanted: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of input, if wanted, and weight, see `sparse.sparse_backward`."""
        (N, G, P), (O, C, k, _) = places.values.shape, weight.shape
        lanes = self._call("lanes", x.dtype)
        vectors = -(-C // lanes)

        def to_lanes(tensor: Tensor) -> Tensor:
            padded = F.pad(tensor, (0, 0, 0, 0, 0, vectors * lanes - C))
            return padded.unflatten(-3, (vectors, lanes)).movedim(-3, -1).contiguous()

        def from_lanes(tensor: Tensor) -> Tensor:
            return tensor.movedim(-1, -3).flatten(-4, -3)[..., :C, :, :]

        images = to_lanes(x.unflatten(1, (G, C)))
        weight_grad = images.new_zeros(O, vectors, k, k, lanes)
        x_grad = torch.zeros_like(images) if input_wanted else None
        tensors: dict[str, Tensor | None] = {
            **plan.windows,
            "sample": torch.arange(N).repeat_interleave(G * P),
            "channel": places.channel.contiguous(),
            "scale": places.scale.contiguous(),
            "row": places.row.contiguous(),
            "column": places.column.contiguous(),
            "grad": places.values.contiguous(),
            "x": images,
            "weight": to_lanes(weight),
            "weight_grad": weight_grad,
            "x_grad": x_grad,
        }
        _check(tensors, x)
        _require(x.shape[2:] == plan.input_size, "x")
        arguments = _Sparse(
            samples=N,
            groups=G,
            vectors=vectors,
            outputs=O // G,
            height=x.shape[2],
            width=x.shape[3],
            base=k,
            longest=plan.resampling.shape[2],
            places=places.values.numel(),
            threads=torch.get_num_threads(),
            **_pointers(tensors),
        )
        self._call_with_scratch("sparse", "sparse_scratch", x.dtype, [arguments])
        if x_grad is not None:
            x_grad = from_lanes(x_grad).flatten(1, 2).contiguous()
        return x_grad, from_lanes(weight_grad).contiguous()


def _pointers(tensors: Mapping[str, Tensor | None]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}


_INTEGERS = {
    *("row_extents", "column_extents", "row_reach", "column_reach", "row_starts", "column_starts"),
    *("kernel_sizes", "sample", "channel", "scale", "row", "column"),
}


def _check(tensors: Mapping[str, Tensor | None], x: Tensor) -> None:
    """Make sure that every pointer leads to what kernel.c reads and writes there."""
    for name, tensor in tensors.items():
        if tensor is not None:
            expected = torch.int64 if name in _INTEGERS else x.dtype
            known = name == "choice" or tensor.dtype == expected
            _require(tensor.is_contiguous() and tensor.device.type == "cpu" and known, name)


def _require(condition: bool, name: str) -> None:
    """Raise unless what kernel.c is given is as it expects; not an assertion, which -O drops."""
    if not condition:
        raise RuntimeError(f"the compiled scaled convolution cannot use this {name}")


def _is_whole(path: Path) -> bool:
    """Whether no end of a library is missing: loading such a file kills the process on Linux."""
    with path.open("rb") as file:
        head = file.read(64)
    if head[:5] != b"\x7fELF\x02" or len(head) < 64:
        return True  # not ELF with 64 bits: left to the loader
    (sections,) = struct.unpack_from("<Q", head, 40)  # they are the end of the file
    length, count = struct.unpack_from("<HH", head, 58)
    return bool(sections + length * count <= path.stat().st_size)


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

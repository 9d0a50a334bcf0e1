"""Compiled functions for the middle of the spectral method, see `native.c`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiscale.core.compiled import compiled_code_is_wanted, load_compiled
from equiscale.layers.scaled.spectral.plan import Plan

Rows = tuple[Tensor, Tensor]
"""Even and odd part of the maps of one kernel size, `[R, V, h, M]` each."""

_SOURCE = Path(__file__).with_name("native.c")
_WIDTH = 16  # at least what native.c calls so
_PANEL = 32  # at least four vectors of native.c
_WORTH_A_THREAD = 1 << 20  # multiply-adds
_NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_SIZE: Any = ctypes.c_ssize_t
_ARRAY: Any = ctypes.c_void_p
_COLUMNS: list[Any] = [*[_SIZE] * 5, *[_ARRAY] * 4, *[_SIZE] * 3]


def native_for(like: Tensor) -> Native | None:
    """Return the compiled functions if they can be had and take such numbers."""
    number = _NUMBERS.get(like.dtype)
    if number is None or like.device.type != "cpu" or not compiled_code_is_wanted():
        return None
    library = load_compiled(_SOURCE, f"REAL={number.__name__.removeprefix('c_')}")
    return None if library is None else Native(library, like)


class Native:
    """Compiled functions for one call of the layer, with their memory and threads."""

    def __init__(self, library: ctypes.CDLL, like: Tensor) -> None:
        number = _NUMBERS[like.dtype]
        library.equiscale_mix.argtypes = [*[_SIZE] * 10, *[_ARRAY] * 8]
        library.equiscale_peaks.argtypes = [*_COLUMNS, _ARRAY, _ARRAY]
        contest = [_ARRAY, _ARRAY, _SIZE, _SIZE, number]
        library.equiscale_challenge.argtypes = [*_COLUMNS, *contest, _ARRAY]
        self._library, self._like = library, like
        self._threads = torch.get_num_threads()
        self._scratch: dict[int, Tensor] = {}

    def mix(
        self, spectrum: Tensor, columns: Tensor, rows: Rows, plan: Plan, scale_index: int
    ) -> None:
        """Do what `FrequencyMixing.forward` does, see there.

        Args:
            spectrum: `[V, ±, U, G, (R, N), (R, C/G)]`.
            columns: `[V, r, (G, R, C/G, O/G)]` spectra of the kernels along the columns.
            rows: Results, `[R, V, h, M]`, laid out as `[V, h, R, M]`.
            plan: Constants.
            scale_index: Which kernel size.
        """
        V, _, U, G, N2, C2 = spectrum.shape
        kernel, (even, odd) = columns.shape[2], rows
        h, length = even.shape[2], 2 * even.shape[3]
        outputs, odd_functions = kernel // (G * C2), plan.num_functions - plan.num_even
        sizes = U, G, N2 // 2, C2, outputs, plan.num_even, odd_functions, h
        functions = plan.rows.kernels[scale_index].functions
        waves = plan.rows.waves[:, :h].unbind()
        memory = 2 * U * (length + _WIDTH) + 2 * (kernel + _WIDTH)

        def work(first: int, last: int) -> None:
            arrays = spectrum, columns, functions, *waves, even, odd, self._take(memory)
            self._library.equiscale_mix(first, last, *sizes, *_pointers(*arrays))

        self._share(V, U * (N2 * kernel + h * length), work)

    def peaks(self, rows: Rows, plan: Plan, scale_index: int) -> Tensor:
        """`2 × [R, V, h, M] -> [M]`: the maximum of every map."""
        maps = rows[0].shape[3]
        found: list[Tensor] = []

        def work(first: int, last: int) -> None:
            best = rows[0].new_full((maps,), -torch.inf)
            panel = self._take(_PANEL * plan.columns.num_frequencies)
            columns = _columns(rows, plan, scale_index)
            self._library.equiscale_peaks(first, last, *columns, *_pointers(best, panel))
            found.append(best)

        self._share(rows[0].shape[2], _pixel_work(rows, plan, scale_index), work)
        return found[0] if len(found) == 1 else torch.stack(found).amax(0)

    def challenge(
        self, best: Tensor, choice: Tensor | None, rows: Rows, plan: Plan, scale_index: int
    ) -> None:
        """Let the maps of a kernel size replace what they exceed, and be named in `choice`.

        Args:
            best: `[4, H/2, W/2, M]` largest values so far, as four quadrants.
            choice: The scale indices that attained them, as numbers of the same type.
            rows: The maps, `[R, V, h, M]`.
            plan: Constants.
            scale_index: Which kernel size.
        """

        def work(first: int, last: int) -> None:
            panel = self._take(_PANEL * plan.columns.num_frequencies)
            columns = _columns(rows, plan, scale_index)
            values = best.data_ptr(), 0 if choice is None else choice.data_ptr()
            places = *values, *best.stride()[:2], float(scale_index)
            self._library.equiscale_challenge(first, last, *columns, *places, *_pointers(panel))

        self._share(rows[0].shape[2], _pixel_work(rows, plan, scale_index), work)

    def _share(self, count: int, work_of_one: int, work: Callable[[int, int], None]) -> None:
        """Do `count` independent pieces of work, shared among threads if they are worth it.

        `work` holds on to the tensors whose memory it uses: an exception, such as an interrupt, may
        end this call before all threads have ended theirs.
        """
        workers = min(self._threads, count, 1 + count * work_of_one // _WORTH_A_THREAD)
        bounds = [count * worker // max(workers, 1) for worker in range(workers + 1)]
        shares = list(pairwise(bounds))
        helpers: list[Future[None]] = []
        with contextlib.suppress(RuntimeError):  # no more threads to be had: the rest is done here
            for share in shares[1:]:
                helpers.append(self._pool.submit(work, *share))
        try:
            for share in (*shares[:1], *shares[1 + len(helpers) :]):
                work(*share)
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads)

    def _take(self, size: int) -> Tensor:
        """Return memory of at least so many numbers, which this thread's next call overwrites."""
        thread = threading.get_ident()
        if thread not in self._scratch or self._scratch[thread].numel() < size:
            self._scratch[thread] = self._like.new_empty(size)
        return self._scratch[thread]


def _columns(rows: Rows, plan: Plan, scale_index: int) -> tuple[int, ...]:
    """Return the arguments that describe maps and waves in native.c."""
    even, odd = rows
    assert even.stride() == odd.stride()
    _, V, _, maps = even.shape
    part, column, row, _ = even.stride()
    half = plan.columns.half(scale_index)
    waves = plan.columns.waves[:, :half].unbind()
    return V, half, maps, *_pointers(*waves, even, odd), part, column, row


def _pixel_work(rows: Rows, plan: Plan, scale_index: int) -> int:
    """Multiply-adds of one row of all maps."""
    _, V, _, maps = rows[0].shape
    return 4 * plan.columns.half(scale_index) * V * maps


def _pointers(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)

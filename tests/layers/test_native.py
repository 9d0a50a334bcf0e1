"""The compiled twin of the spectral method against the definition and against PyTorch."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from equiscale.core.compiled import SWITCH
from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled.pooling import POOL_MODES
from equiscale.layers.scaled.spectral.native import native_for

POOLS: tuple[Any, ...] = (None, *POOL_MODES)
pytestmark = pytest.mark.needs("cc")


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator)


def both(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return what PyTorch computes, and what compiled code does."""
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        results.append(scaled_conv2d(*arguments, **options, method="spectral"))
    return results[0], results[1]


def test_it_is_used_for_single_and_double_precision_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert native_for(torch.zeros(1)) is not None
    assert native_for(torch.zeros(1, dtype=torch.float64)) is not None
    assert native_for(torch.zeros(1, dtype=torch.float16)) is None
    assert native_for(torch.zeros(1, device="meta")) is None
    monkeypatch.setenv(SWITCH, "0")
    assert native_for(torch.zeros(1)) is None


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("padding", "outputs", "groups"), [("valid", 9, 1), ("same", 37, 1), ("valid", 20, 2)]
)
def test_it_equals_the_definition(pool: Any, padding: Any, outputs: int, groups: int) -> None:
    shapes = (3, 4, 13, 12), (outputs, 4 // groups, 3, 3), (outputs,)
    x, weight, bias = tensors = [draw(*shape).requires_grad_() for shape in shapes]
    options: Any = {"pool": pool, "padding": padding, "groups": groups}
    methods: tuple[Any, ...] = ("direct", "spectral")
    expected, actual = (
        scaled_conv2d(x, weight, bias, **options, method=method) for method in methods
    )
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    grad = draw(*expected.shape)
    for own, other in zip(
        torch.autograd.grad(actual, tensors, grad),
        torch.autograd.grad(expected, tensors, grad),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pool", POOL_MODES)
def test_it_equals_pytorch_in_single_precision(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = (draw(*shape, dtype=torch.float32) for shape in ((5, 3, 20, 23), (24, 3, 7, 7)))
    expected, actual = both(monkeypatch, x, weight, pool=pool, return_indices=True)
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=1e-4)
    assert (actual[1] == expected[1]).double().mean() > 0.999


@pytest.mark.parametrize("pool", ["pixel", "global"])
def test_threads_change_nothing(pool: Any) -> None:
    x, weight = (draw(*shape, dtype=torch.float32) for shape in ((4, 8, 40, 40), (32, 8, 7, 7)))
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 5):
            torch.set_num_threads(count)
            results.append(scaled_conv2d(x, weight, pool=pool, method="spectral"))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)


def test_an_error_in_one_thread_waits_for_the_others() -> None:
    native, ended = native_for(torch.zeros(1)), threading.Event()
    assert native is not None
    native._threads = 2

    def work(first: int, last: int) -> None:
        if first == 0:
            raise MemoryError
        time.sleep(0.2)
        ended.set()

    with pytest.raises(MemoryError):
        native._share(2, 1 << 30, work)
    assert ended.is_set()


def test_work_is_done_here_if_there_are_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    native = native_for(torch.zeros(1))
    done: list[int] = []
    assert native is not None
    native._threads = 4
    monkeypatch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("no thread")))
    native._share(9, 1 << 30, lambda first, last: done.extend(range(first, last)))
    assert sorted(done) == list(range(9))


@pytest.mark.parametrize("pool", ["pixel", "slice", "global"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_a_number_goes_where_pytorch_lets_it_go(
    pool: Any, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = draw(2, 3, 12, 12), draw(9, 3, 3, 3)
    x[1, 0, 4, 4] = value
    weight[2, 1, 1, 1] = value
    expected, actual = both(monkeypatch, x, weight, pool=pool)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10, equal_nan=True)

"""The compiled library against the definition, against PyTorch operations, and on its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled import native
from equiscale.layers.scaled.native import SWITCH, Library, load_library
from equiscale.layers.scaled.native.build import INSTRUCTIONS, LIBRARY, CompilerError, build
from equiscale.layers.scaled.pooling import POOL_MODES

POOLS: tuple[Any, ...] = (None, *POOL_MODES)
installed = pytest.mark.skipif(
    not Path(native.__file__).with_name(LIBRARY).exists(),
    reason="installed without a C compiler: apt-get install gcc, then pip install -e .",
)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator)


def gradients(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, **options: Any
) -> list[Tensor]:
    """Return the output of a scaled convolution and its gradients."""
    tensors = [draw(*shape, dtype=dtype).requires_grad_() for shape in shapes]
    x, weight, bias = tensors
    output: Tensor = scaled_conv2d(x, weight, bias, **options)
    return [output, *torch.autograd.grad(output, tensors, draw(*output.shape, dtype=dtype))]


@installed
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("outputs", "groups", "padding"),
    [(9, 1, "valid"), (37, 1, "same"), (40, 2, "valid")],
)
def test_it_equals_the_definition(pool: Any, outputs: int, groups: int, padding: Any) -> None:
    for samples in (1, 9):
        shapes = (samples, 4, 13, 12), (outputs, 4 // groups, 3, 3), (outputs,)
        options: Any = {"pool": pool, "padding": padding, "groups": groups}
        expected = gradients(shapes, torch.float64, method="direct", **options)
        actual = gradients(shapes, torch.float64, method="spectral", **options)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@installed
@pytest.mark.parametrize("pool", POOLS)
def test_it_equals_pytorch_operations(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = (5, 3, 20, 23), (24, 3, 7, 7), (24,)
    actual = gradients(shapes, torch.float64, pool=pool, method="spectral")
    monkeypatch.setenv(SWITCH, "0")
    expected = gradients(shapes, torch.float64, pool=pool, method="spectral")
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@installed
@pytest.mark.parametrize("pool", POOLS)
def test_threads_change_not_a_bit(pool: Any) -> None:
    shapes = (20, 3, 18, 18), (40, 3, 5, 5), (40,)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(gradients(shapes, torch.float32, pool=pool, method="spectral")[:3])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@installed
@pytest.mark.parametrize("pool", ["pixel", "slice", "global"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_spread_as_in_pytorch_operations(
    pool: Any, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = draw(2, 3, 12, 12), draw(9, 3, 3, 3)
    x[1, 0, 4, 4] = value
    actual = scaled_conv2d(x, weight, pool=pool, method="spectral")
    monkeypatch.setenv(SWITCH, "0")
    expected = scaled_conv2d(x, weight, pool=pool, method="spectral")
    assert torch.equal(actual.isnan().flatten(1).any(1), expected.isnan().flatten(1).any(1))
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-10, atol=1e-10)


@installed
def test_ties_go_to_the_first_index() -> None:
    x, weight = torch.zeros(2, 3, 15, 15), draw(8, 3, 3, 3, dtype=torch.float32)
    for pool in ("pixel", "slice"):
        _, indices = scaled_conv2d(x, weight, pool=pool, return_indices=True, method="spectral")
        assert not indices.any()


@installed
def test_scratch_memory_is_kept_and_what_is_left_in_it_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_kept", [])
    monkeypatch.setattr(native, "_LARGE", 1)
    shapes = ((2, 3, 20, 20), (8, 3, 3, 3), (8,))
    first = gradients(shapes, torch.float32, pool="pixel", padding="same")
    (memory,) = native._kept
    memory.view(torch.float32)[:] = torch.nan
    again = gradients(shapes, torch.float32, pool="pixel", padding="same")
    assert native._kept[0] is memory
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_passes_at_one_time_do_not_share_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_kept", [])
    size = native._LARGE
    with native._scratch(size) as one, native._scratch(size) as other:
        assert one.data_ptr() != other.data_ptr()
    with native._scratch(2 * size) as larger:
        assert len(larger) == 2 * size
    assert len(native._kept) == 1
    with native._scratch(native._LARGEST_KEPT + 1):
        pass
    assert [len(memory) for memory in native._kept] == [2 * size]


@installed
@pytest.mark.parametrize("instructions", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(
    instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_library()
    assert library is not None
    order = ["baseline", "avx2", "avx512"]
    if order.index(instructions) > order.index(library.instructions):
        pytest.skip(f"this processor has no {instructions}")
    shapes = (5, 3, 16, 16), (24, 3, 5, 5), (24,)
    expected = gradients(shapes, torch.float64, pool="pixel", method="direct")
    monkeypatch.setattr(library, "instructions", instructions)
    actual = gradients(shapes, torch.float64, pool="pixel", method="spectral")
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@installed
def test_operators_keep_their_contract_with_torch() -> None:
    x, weight, bias = draw(2, 2, 9, 9), draw(8, 2, 3, 3), draw(8)
    settings: tuple[Any, ...] = ([3, 5, 7], [2, 1], [], False, "bicubic", 1)
    operators = torch.ops.equiscale
    for pool in ("none", "pixel", "slice", "global"):
        arguments = (x, weight, bias, *settings, pool, True)
        tensors = tuple(
            a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in arguments
        )
        torch.library.opcheck(operators.spectral_forward.default, tensors)
        values, choice = operators.spectral_forward(*arguments)
        backward = (draw(*values.shape), x, weight, choice, *settings, pool, True)
        torch.library.opcheck(operators.spectral_backward.default, backward)


def test_a_missing_library_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "LIBRARY", "no such file")
    native._load.cache_clear()
    try:
        assert load_library() is None
        assert load_library() is None
    finally:
        native._load.cache_clear()
    (record,) = caplog.records
    assert "not installed" in record.message


@installed
@pytest.mark.parametrize("missing", [1, 100, 100_000])
def test_a_library_without_its_end_is_refused(missing: int, tmp_path: Path) -> None:
    """Loading it would kill the process."""
    content = Path(native.__file__).with_name(LIBRARY).read_bytes()
    (tmp_path / LIBRARY).write_bytes(content[:-missing])
    with pytest.raises(OSError, match="is cut off"):
        Library(tmp_path / LIBRARY)


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_damaged_library_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(content)
    with pytest.raises(OSError, match="libscaled_conv"):
        Library(tmp_path / LIBRARY)


def test_without_a_compiler_the_build_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError, match="no C compiler"):
        build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(CompilerError, match="false"):
        build(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_half_a_library_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading one kills the process, at every start."""
    compiler = tmp_path / "half"
    cut = 'for made; do case $made in *.so) truncate -s 100000 "$made";; esac; done'
    compiler.write_text(f'#!/bin/sh\ncc "$@" || exit; {cut}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(CompilerError, match="broken library"):
        build(tmp_path / "installed", "-O0")
    assert not (tmp_path / "installed").exists()


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_sanitizers_find_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Odd and even sizes, groups, remainders of tiles and threads under ASan and UBSan."""
    if library := load_library():  # the instructions of this processor alone: three are slow
        used = library.instructions
        monkeypatch.setitem(build.__globals__, "INSTRUCTIONS", {used: INSTRUCTIONS[used]})
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g -O0"
    sanitized = build(tmp_path, flags)
    runtime = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    script = Path(__file__).with_name("sanitized.py")
    environment = {
        "PYTHONPATH": str(Path(native.__file__).parents[4]),
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, str(script), str(sanitized)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]

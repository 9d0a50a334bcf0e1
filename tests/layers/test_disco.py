"""The shipped DISCO basis: it is the minimum that its solver finds, and files are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from equiscale.core.errors import InputFileError, OptionError
from equiscale.layers.baselines.disco import load_raw_basis
from equiscale.layers.baselines.steerable import disco_basis, hermite_basis
from study.disco_basis import (
    SCALES,
    Settings,
    bicubic_deltas,
    correlated_images,
    measure_errors,
    solve,
    write_raw_basis,
)

SMALL = Settings(kernel_size=3, support=7, scales=(1.0, 1.41, 2.0), correlation=0.0)


def errors(basis: Tensor, correlation: float) -> dict[tuple[float, float], float]:
    images = correlated_images(2, 64, correlation, torch.Generator().manual_seed(99))
    return measure_errors(basis, SCALES, images)


def test_shipped_basis_is_the_solution() -> None:
    shipped = load_raw_basis()
    assert shipped.scales == SCALES
    torch.testing.assert_close(shipped.values, solve(Settings()), rtol=0, atol=1e-6)


def test_shipped_basis_has_its_reported_error() -> None:
    """White noise: 1.1 against 2.1 and 2.6. Smooth images: 0.007 against 0.034 from scale 1."""
    ours, bicubic = disco_basis(load_raw_basis().values), disco_basis(bicubic_deltas(Settings()))
    white = sum(errors(ours, 0.0).values())
    assert white < 1.25
    assert sum(errors(bicubic, 0.0).values()) > 1.7 * white
    assert sum(errors(hermite_basis(), 0.0).values()) > 2.1 * white
    smooth = [errors(basis, 0.9) for basis in (ours, bicubic)]
    from_one = [sum(e for (a, _), e in found.items() if a == 1) for found in smooth]
    assert from_one[1] > 4 * from_one[0]
    assert sum(smooth[1].values()) > sum(smooth[0].values())
    assert smooth[0][1.0, 2.0] < 1e-10  # integer scales are exact


def test_solution_is_a_minimum_on_images() -> None:
    """Moving away from it raises the squared error on images."""
    basis, generator = solve(SMALL), torch.Generator().manual_seed(1)
    x = correlated_images(8, 64, 0.0, generator)
    best = sum(measure_errors(basis, SMALL.scales, x).values())
    for _ in range(3):
        moved = basis.clone()
        moved[:, 1] += 0.05 * torch.randn(moved[:, 1].shape, generator=generator)
        assert sum(measure_errors(moved, SMALL.scales, x).values()) > best


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "basis.safetensors"
    settings = {"kernel_size": "3", "scales": [1.0], "support": 7}
    contents = [
        save({"raw": torch.zeros(1)}),
        save({"raw": torch.zeros(9, 1, 7, 7)}, {"settings": json.dumps(settings)}),
    ]
    for content in (None, b"not a basis", *contents):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputFileError, match="expected a DISCO basis"):
            load_raw_basis(path)
    write_raw_basis(path, torch.zeros(9, 3, 5, 5), SMALL)
    with pytest.raises(InputFileError, match=r"\[9, 3, 5, 5\], expected .* \[9, 3, 7, 7\]"):
        load_raw_basis(path)
    with pytest.raises(OptionError, match="must be the path of a file, got 3"):
        load_raw_basis(3)  # type: ignore[arg-type]

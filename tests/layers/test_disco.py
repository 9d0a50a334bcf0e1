"""The DISCO basis: a direct solution that is the minimum it claims to be, and the shipped file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from equiscale.core.errors import InputFileError, OptionError
from equiscale.layers.baselines.disco import (
    DiscoSettings,
    RawBasis,
    bicubic_deltas,
    correlated_images,
    dilated_deltas,
    load_raw_basis,
    measure_errors,
    solve_raw_basis,
    untrained_basis,
    write_raw_basis,
)
from equiscale.layers.baselines.steerable import disco_basis, hermite_basis

SMALL = DiscoSettings(kernel_size=3, support=7, scales=(1.0, 1.41, 2.0), correlation=0.0)


def images(correlation: float, count: int = 4) -> torch.Tensor:
    return correlated_images(count, 64, correlation, torch.Generator().manual_seed(99))


def total_error(basis: torch.Tensor, correlation: float) -> float:
    scales = DiscoSettings().scales
    return sum(measure_errors(basis, scales, images(correlation, count=2)).values())


def test_shipped_basis_is_what_the_command_makes() -> None:
    shipped, solved = load_raw_basis(), solve_raw_basis()
    assert shipped.settings == solved.settings
    torch.testing.assert_close(shipped.values, solved.values, rtol=0, atol=1e-6)


def test_shipped_basis_beats_the_three_yardsticks() -> None:
    """On held-out random images; white noise: 1.11 against 2.09, 2.58 and hundreds."""
    settings = DiscoSettings()
    generator = torch.Generator().manual_seed(0)
    ours = total_error(disco_basis(load_raw_basis().values), 0.0)
    assert ours < 1.25
    assert total_error(disco_basis(bicubic_deltas(settings)), 0.0) > 1.7 * ours
    assert total_error(hermite_basis(), 0.0) > 2.1 * ours
    assert total_error(disco_basis(untrained_basis(settings, generator)), 0.0) > 100 * ours


def test_on_smooth_images_it_beats_bicubic_clearly_from_scale_one_and_little_in_the_sum() -> None:
    """As the docs say: 0.007 against 0.034 from scale 1, 0.046 against 0.051 in all."""
    scales, x = DiscoSettings().scales, images(0.9, count=2)
    ours = measure_errors(disco_basis(load_raw_basis().values), scales, x)
    bicubic = measure_errors(disco_basis(bicubic_deltas(DiscoSettings())), scales, x)

    def from_one(errors: dict[tuple[float, float], float]) -> float:
        return sum(error for (a, _), error in errors.items() if a == 1)

    assert from_one(bicubic) > 4 * from_one(ours)
    assert sum(bicubic.values()) > sum(ours.values())


def test_integer_scales_are_exact() -> None:
    errors = measure_errors(load_raw_basis().values, DiscoSettings().scales, images(0.0, count=1))
    assert errors[1.0, 2.0] < 1e-10


def test_solution_is_a_minimum_on_images() -> None:
    """Moving away from it in any of several directions raises the squared error on images."""
    basis = solve_raw_basis(SMALL).values
    x = images(0.0, count=16)

    def error(values: torch.Tensor) -> float:
        return sum(measure_errors(values, SMALL.scales, x).values())

    generator = torch.Generator().manual_seed(1)
    best = error(basis)
    for _ in range(5):
        moved = basis.clone()
        moved[:, 1] += 0.05 * torch.randn(moved[:, 1].shape, generator=generator)
        assert error(moved) > best


def test_solution_keeps_the_sum_of_a_kernel() -> None:
    """A constant image has the same response at every scale."""
    sums = load_raw_basis().values.sum((2, 3))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=0.02)


def test_dilated_deltas() -> None:
    deltas = dilated_deltas(3, 7, 2)
    assert deltas.shape == (9, 7, 7)
    assert deltas.nonzero()[:3].tolist() == [[0, 1, 1], [1, 1, 3], [2, 1, 5]]


def test_images_have_the_correlation_asked_for() -> None:
    x = correlated_images(64, 32, 0.9, torch.Generator().manual_seed(0))
    assert abs(float(x.var()) - 1) < 0.1
    assert abs(float((x[..., 1:] * x[..., :-1]).mean() / x.var()) - 0.9) < 0.02


def test_file_round_trip(tmp_path: Path) -> None:
    solved = solve_raw_basis(SMALL)
    write_raw_basis(tmp_path / "basis.safetensors", solved)
    loaded = load_raw_basis(tmp_path / "basis.safetensors")
    assert loaded.settings == SMALL
    assert torch.equal(loaded.values.float(), solved.values.float())


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "basis.safetensors"
    with pytest.raises(InputFileError, match="found no file, expected a DISCO basis"):
        load_raw_basis(path)
    path.write_bytes(b"not a basis")
    with pytest.raises(InputFileError, match="expected a DISCO basis"):
        load_raw_basis(path)
    save_file({"raw": torch.zeros(1)}, path)
    with pytest.raises(InputFileError, match="expected a DISCO basis"):
        load_raw_basis(path)
    write_raw_basis(path, RawBasis(SMALL, torch.zeros(9, 3, 5, 5)))
    with pytest.raises(
        InputFileError,
        match=r"found shape \[9, 3, 5, 5\], expected finite numbers of shape \[9, 3, 7, 7\]",
    ):
        load_raw_basis(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd"),
        ({"support": 12}, "support must be odd"),
        ({"support": 11}, "at least 13"),
        ({"scales": (1.26, 1.59)}, "must be an integer"),
        ({"scales": (2.0, 1.0)}, "strictly increasing"),
        ({"correlation": 1.0}, "correlation must lie"),
    ],
)
def test_bad_settings_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DiscoSettings(**change)  # type: ignore[arg-type]

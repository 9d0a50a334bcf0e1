"""`equiscale basis`: steerable bases as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from equiscale.layers.baselines.disco import DiscoSettings, RawBasis

app = typer.Typer(help="Make and measure steerable bases.", no_args_is_help=True)

IMAGE_SIZE = 96
CORRELATIONS = {"white noise": 0.0, "smooth images, neighbours correlate 0.9": 0.9}


@app.callback()
def basis() -> None:
    """Make and measure steerable bases."""


@app.command()
def disco(
    out: Path = typer.Option(Path("disco_basis.safetensors"), help="The file to write."),  # noqa: B008
    kernel_size: int = typer.Option(7, help="Effective size; the basis has its square."),
    support: int = typer.Option(15, help="Side of the kernels."),
    scale: list[float] = typer.Option([1.0, 1.26, 1.59, 2.0], help="A scale; give several."),  # noqa: B008
    correlation: float = typer.Option(0.9, help="Of neighbouring pixels, 0 for white noise."),
    images: int = typer.Option(8, min=1, help="Held-out images to measure errors on."),
    seed: int = typer.Option(0, help="Of the held-out images and the untrained yardstick."),
) -> None:
    """Solve for the raw DISCO basis, write it, and report its equivariance error.

    The error of a pair of scales is that of resizing after against before the convolution,
    relative and squared, for the normalised basis that a network uses. Three yardsticks: the
    standard basis enlarged bicubically, the Hermite basis, and noise instead of the solution.
    """
    from equiscale.layers.baselines.disco import DiscoSettings, solve_raw_basis, write_raw_basis

    settings = DiscoSettings(kernel_size, support, tuple(scale), correlation)
    solution = solve_raw_basis(settings)
    console = Console()
    for table in _error_tables(solution, images, seed, console):
        console.print(table)
    write_raw_basis(out, solution)
    console.print(f"Wrote {out}", highlight=False, soft_wrap=True)


def _error_tables(solution: RawBasis, images: int, seed: int, console: Console) -> list[Table]:
    import torch

    from equiscale.layers.baselines.disco import correlated_images, measure_errors

    generator = torch.Generator().manual_seed(seed)
    candidates = _candidates(solution, generator)
    held_out = {
        title: correlated_images(images, IMAGE_SIZE, value, generator)
        for title, value in CORRELATIONS.items()
    }
    jobs = [(title, name) for title in held_out for name in candidates]
    tables: dict[str, Table] = {}
    for title, name in track(jobs, "Measuring", console=console, transient=True):
        errors = measure_errors(candidates[name], solution.settings.scales, held_out[title])
        if title not in tables:
            pairs = [f"{a:g}→{b:g}" for a, b in errors]
            tables[title] = Table(box=None, title=f"Equivariance error on {title}")
            for column in ("basis", *pairs, "sum"):
                tables[title].add_column(column, no_wrap=True)
        cells = [f"{error:.3g}" for error in (*errors.values(), sum(errors.values()))]
        tables[title].add_row(name, *cells)
    return list(tables.values())


def _candidates(solution: RawBasis, generator: torch.Generator) -> dict[str, Tensor]:
    from equiscale.layers.baselines.disco import bicubic_deltas, untrained_basis
    from equiscale.layers.baselines.steerable import disco_basis

    settings = solution.settings
    return {
        "solved": disco_basis(solution.values),
        "bicubic": disco_basis(bicubic_deltas(settings)),
        "hermite": _hermite(settings),
        "untrained": disco_basis(untrained_basis(settings, generator)),
    }


def _hermite(settings: DiscoSettings) -> Tensor:
    """Return Hermite functions at scales in the same ratios, the smallest as in the paper."""
    from equiscale.layers.baselines.steerable import HERMITE_SCALES, hermite_basis

    sigmas = [HERMITE_SCALES[0] * scale / settings.scales[0] for scale in settings.scales]
    return hermite_basis(settings.kernel_size, settings.support, sigmas)

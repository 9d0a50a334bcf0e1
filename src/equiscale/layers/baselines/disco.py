"""Files of raw DISCO bases (Sosnovik et al. 2021).

A raw basis β `[k², S, K, K]` holds what one pixel of a kernel becomes at each scale. The one that
comes with the package was solved for directly, see
`docs/decisions/0203-disco-basis-by-direct-solve.md`; `python -m study.disco_basis` makes others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from equiscale.core.errors import InputFileError, OptionError
from equiscale.layers.baselines.steerable import check_scales

_ASSET = "disco_basis.safetensors"
_EXPECTED = "a DISCO basis"
_HINT = "write one with `python -m study.disco_basis` in a clone of the repository"


@dataclass(frozen=True)
class RawBasis:
    """A raw basis β `[k², S, K, K]`, in float64, and its S scales."""

    scales: tuple[float, ...]
    values: Tensor


def load_raw_basis(path: str | Path | None = None) -> RawBasis:
    """Read a raw basis; without a path, the one that comes with the package.

    Raises:
        OptionError: `path` is not the path of a file.
        InputFileError: The file does not hold a raw basis.
    """
    if path is None:
        with as_file(files("equiscale.layers.baselines") / "assets" / _ASSET) as asset:
            return _read_raw_basis(asset)
    if not isinstance(path, (str, Path)):
        raise OptionError(f"basis must be the path of a file, got {path!r}")
    return _read_raw_basis(Path(path))


def _read_raw_basis(path: Path) -> RawBasis:
    try:
        if not path.is_file():
            found = "something that is not a regular file" if path.exists() else "no file"
            raise InputFileError(path, found, _EXPECTED, _HINT)
        with safe_open(path, framework="pt") as file:
            settings = json.loads(file.metadata()["settings"])
            values = file.get_tensor("raw").double()
        scales = tuple(settings["scales"])
        shape = (settings["kernel_size"] ** 2, len(scales), *[settings["support"]] * 2)
        check_scales(scales)
    except InputFileError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise InputFileError(path, str(error), _EXPECTED, _HINT) from error
    if values.shape != shape or not values.isfinite().all():
        found = f"shape {list(values.shape)}"
        raise InputFileError(path, found, f"finite numbers of shape {list(shape)}", _HINT)
    return RawBasis(scales, values)

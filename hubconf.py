"""Models for `torch.hub.load(repository, "pixel_pool", pretrained=True)`: one entry per model."""

import functools as _functools
import sys as _sys
from pathlib import Path as _Path

dependencies = ["torch", "numpy", "safetensors"]

_sys.path.insert(0, str(_Path(__file__).parent / "src"))

from equiscale import models as _models  # noqa: E402

for _name in _models.list_models():
    _entry = _functools.partial(_models.create_model, _name)
    _functools.update_wrapper(_entry, _models.create_model)
    globals()[_name] = _entry

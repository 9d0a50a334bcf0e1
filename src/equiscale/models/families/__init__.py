"""The models of the package, one file per family.

Every file in this directory is imported, and its `register_model` decorators do the rest.
"""

from __future__ import annotations

import importlib
import pkgutil

_ORDER = (
    *("plain", "prior_work", "steerable", "scaled_conv"),  # as in the paper's tables
    *("scale_channels", "deep_channels", "gaussian_derivative", "riesz"),
)
_FILES = {module.name for module in pkgutil.iter_modules(__path__)}

for _name in (*_ORDER, *sorted(_FILES.difference(_ORDER))):
    importlib.import_module(f"{__name__}.{_name}")

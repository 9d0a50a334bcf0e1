"""The eleven models of the paper and the registry they live in. Knows no datasets."""

from equiscale.models import plain, scaled_conv_nets  # noqa: F401 - they register their models
from equiscale.models.base import (
    Classifier,
    ModelCard,
    ModelSpec,
    PoolsOverScale,
    create_model,
    list_models,
    model_card,
    register_model,
)

__all__ = [
    "Classifier",
    "ModelCard",
    "ModelSpec",
    "PoolsOverScale",
    "create_model",
    "list_models",
    "model_card",
    "register_model",
]

"""The models of the paper, models beyond it, and their registry. Imports no dataset."""

from equiscale.core.variants import VARIANTS, Variant
from equiscale.models.checkpoint import Checkpoint, load_model, read_checkpoint, save_model
from equiscale.models.classifier import Classifier, PoolsOverScale
from equiscale.models.create import FeatureMaps, create_model
from equiscale.models.registry import (
    MODEL_GROUPS,
    ModelCard,
    ModelGroup,
    ModelSpec,
    list_models,
    model_card,
    register_model,
)
from equiscale.models.shipped import WeightsCard, list_weights, weights_card

__all__ = [
    "MODEL_GROUPS",
    "VARIANTS",
    "Checkpoint",
    "Classifier",
    "FeatureMaps",
    "ModelCard",
    "ModelGroup",
    "ModelSpec",
    "PoolsOverScale",
    "Variant",
    "WeightsCard",
    "create_model",
    "list_models",
    "list_weights",
    "load_model",
    "model_card",
    "read_checkpoint",
    "register_model",
    "save_model",
    "weights_card",
]

# Registers the models. Last, so that a family can import what is above.
from equiscale.models import families  # noqa: F401

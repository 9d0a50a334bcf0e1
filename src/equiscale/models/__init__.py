"""The models of the paper, those beyond it, and the registry they live in. Knows no datasets."""

from equiscale.models import (  # noqa: F401, I001 - they register their models, in this order
    plain,
    prior_work,
    steerable_nets,
    scaled_conv_nets,
    scaled_conv_siblings,
    scale_channel_nets,
    gaussian_derivative_nets,
    riesz_nets,
    controls,
)
from equiscale.models.base import (
    MODEL_GROUPS,
    Classifier,
    ModelCard,
    ModelGroup,
    ModelSpec,
    PoolsOverScale,
    create_model,
    list_models,
    model_card,
    register_model,
)
from equiscale.models.checkpoint import Checkpoint, load_model, read_checkpoint, save_model
from equiscale.models.shipped import WeightsCard, list_weights, weights_card

__all__ = [
    "MODEL_GROUPS",
    "Checkpoint",
    "Classifier",
    "ModelCard",
    "ModelGroup",
    "ModelSpec",
    "PoolsOverScale",
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

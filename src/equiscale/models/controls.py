"""Controls: what the paper's simple models reach with the same means as those that go beyond it."""

from __future__ import annotations

from functools import partial

from equiscale.models.base import register_model
from equiscale.models.plain import WIDE, StandardNet
from equiscale.models.prior_work import EnsembleNet

register_model(
    "standard_bn",
    title="Standard CNN, batch norm",
    group="control",
    citation="control for gaussian_derivative and riesz",
    guarantee="As standard: shifts leave the logits unchanged, nothing under rescaling.",
    limits="Those of standard.",
)(partial(StandardNet, batch_norm=True))

register_model(
    "standard_wide",
    title="Standard CNN, wider",
    group="control",
    citation="control for scale_channels",
    guarantee="As standard: shifts leave the logits unchanged, nothing under rescaling.",
    limits="Those of standard, at 5.9 times its arithmetic and 5.8 times its parameters.",
)(partial(StandardNet, widths=WIDE))

register_model(
    "ensemble_dropout",
    title="Image pyramid ensemble, dropout of levels",
    group="control",
    citation="control for scale_channels and gaussian_derivative",
    guarantee="As ensemble; in training, each level is hidden from each image with probability "
    "0.5, so that every level learns to answer alone.",
    limits="Those of ensemble: factors of two only, three levels.",
)(partial(EnsembleNet, dropout=0.5))

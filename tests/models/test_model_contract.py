"""The contract of every registered model; a new model is tested here by being registered.

Variants are option sets of these models: they only have to equal their base with those options.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.models import (
    MODEL_GROUPS,
    VARIANTS,
    Classifier,
    PoolsOverScale,
    create_model,
    list_models,
    model_card,
)
from equiscale.models.families.scaled_conv import ScalePoolingNet
from equiscale.testing import assert_classifier_contract

PAPER_PARAMETERS = {
    "standard": 27_108,
    "spatial_transform": 95_242,
    "ensemble": 27_108,
    "xu": 27_060,
    "kanazawa": 27_108,
    "hermite": 27_108,
    "disco": 27_108,
    "pixel_pool": 27_108,
    "slice_pool": 27_108,
    "energy_pool": 27_108,
    "conv3d": 177_636,
}
POOLS_OVER_SCALE = {"xu", "kanazawa", "pixel_pool", "slice_pool", "energy_pool"}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What batch normalisation learns from the images besides its parameters."""

MODELS = [name for name in list_models() if name not in VARIANTS]


def build(name: str, image_size: tuple[int, int] = (16, 17), **arguments: Any) -> Classifier:
    """Build a model with fixed weights, not training; `image_size` reaches those that need it."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"in_channels": 1, "num_classes": 5, **arguments}
    if "image_size" in model_card(name).options:
        options["image_size"] = image_size
    model = create_model(name, **options)
    assert isinstance(model, Classifier)
    return model.eval()


def images_for(model: Classifier, batch: int = 2) -> Tensor:
    """Random images a little larger than the smallest the model accepts, not square."""
    generator = torch.Generator().manual_seed(0)
    size = max(13, model.minimum_size)
    return torch.rand(batch, model.in_channels, size + 3, size + 4, generator=generator)


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_registry_holds_the_papers_models_first() -> None:
    assert list_models("paper") == list(PAPER_PARAMETERS) == list_models()[:11]
    grouped = [name for group in MODEL_GROUPS for name in list_models(group)]
    assert sorted(grouped) == sorted(list_models())


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_is_its_base_with_options(variant: str) -> None:
    options = VARIANTS[variant].options
    given = {} if "pool" in options else options  # `pool` makes a model and is not an option
    ours, base = build(variant), build(VARIANTS[variant].base, **given)
    for (key, mine), (other, theirs) in zip(
        ours.state_dict().items(), base.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(mine, theirs)
    x = images_for(ours)
    assert torch.equal(ours(x), base(x)) == bool(given)
    card = model_card(variant)
    assert card.options == {**model_card(VARIANTS[variant].base).options, **given}
    assert card.citation == model_card(VARIANTS[variant].base).citation
    assert card.limits == f"Not measured for this variant; see {VARIANTS[variant].base}."


def test_card_is_complete_and_counts_parameters(name: str) -> None:
    card = model_card(name)
    assert all((card.title, card.citation, card.guarantee, card.limits))
    before = torch.get_rng_state()
    assert card.count_parameters() == PAPER_PARAMETERS.get(name, card.count_parameters())
    assert torch.equal(before, torch.get_rng_state())


def test_the_contract_of_a_classifier_is_kept(name: str) -> None:
    assert_classifier_contract(partial(build, name, (32, 32)), image_size=32)
    model = build(name, in_channels=3, num_classes=4)
    assert model(images_for(model)[:0]).shape == (0, 4)


def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name)
    for parameter in model.parameters():  # some start at zero, which hides those in front
        nn.init.normal_(parameter, std=0.1)
    model(images_for(model, batch=4)).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_state_dict_holds_parameters_in_reading_order(name: str) -> None:
    """Parameters and, with batch normalisation, the running statistics of the images."""
    model = build(name)
    keys = [key for key in model.state_dict() if key.rpartition(".")[2] not in STATISTICS]
    assert keys == [key for key, _ in model.named_parameters()]
    assert keys[-2:] == ["head.weight", "head.bias"]
    if name in PAPER_PARAMETERS:
        stages = [key.split(".")[-2] for key in keys if ".weight" in key]
        assert stages[-3:] == ["conv1", "conv2", "head"]


def test_training_steps_draw_from_the_global_generator_alone(name: str) -> None:
    """Same seed, same weights, same step: dropout and batch statistics included."""
    outcomes = []
    for _ in range(2):
        model = build(name).train()
        torch.manual_seed(3)
        model(images_for(model, batch=4)).square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        outcomes.append([*gradients, *model.buffers()])
    for first, second in zip(*outcomes, strict=True):
        assert first is not None
        assert torch.equal(first, second)


def test_stages_are_what_the_logits_come_from(name: str) -> None:
    model = build(name)
    x = images_for(model)
    attributes = set(vars(model))
    stages = model.stages(x)
    if isinstance(model, ScalePoolingNet):  # finds the maximum of stage 2 without its maps
        torch.testing.assert_close(model.classify(stages), model(x))
    else:
        assert torch.equal(model.classify(stages), model(x))
    assert all(value.ndim >= 4 and len(value) == len(x) for value in stages.values())
    assert all((value >= 0).all() for value in stages.values()), "after the ReLU"
    assert set(vars(model)) == attributes, "calls leave no trace"
    training, again = model.train().stages(x), model.stages(x)
    assert all(torch.equal(training[stage], again[stage]) for stage in stages), "no dropout"


def test_timms_verbs(name: str) -> None:
    model = build(name)
    x = images_for(model)
    features = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(features), model(x))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    assert model.get_classifier() is model.head
    body = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("head.")}
    model.reset_classifier(7)
    assert model(x).shape == (2, 7)
    assert model.spec.num_classes == model.num_classes == 7
    assert all(torch.equal(model.state_dict()[key], value) for key, value in body.items())


def test_features_only_returns_the_stage_maps(name: str) -> None:
    model = build(name)
    x = images_for(model)
    torch.manual_seed(0)
    options = {k: v for k, v in model.spec.options.items() if k == "image_size"}
    extractor = create_model(name, in_chans=1, features_only=True, **options).eval()
    maps, stages = extractor(x), model.stages(x)
    assert [value.shape for value in maps] == [value.shape for value in stages.values()]
    assert all(torch.equal(a, b) for a, b in zip(maps, stages.values(), strict=True))
    assert not [key for key, _ in extractor.named_parameters() if "head" in key]


def test_scale_indices_match_the_stages(name: str) -> None:
    model = build(name)
    assert isinstance(model, PoolsOverScale) or name not in POOLS_OVER_SCALE
    if not isinstance(model, PoolsOverScale):
        return
    x = images_for(model)
    indices, stages = model.scale_indices(x), model.stages(x)
    assert set(indices) <= set(stages)
    assert "stage2" in indices
    for stage, index in indices.items():
        assert index.dtype == torch.int64
        assert index.shape in (stages[stage].shape, stages[stage].shape[:2])
        assert index.min() >= 0


def test_unusable_images_are_named(name: str) -> None:
    size = build(name).minimum_size
    model = build(name, image_size=(size, size))
    assert model(torch.rand(1, 1, size, size)).shape == (1, 5)
    for images, message in (
        (torch.rand(1, 1, size - 1, size), f"at least {size}×{size} pixels"),
        (torch.rand(1, 4, 64, 64), r"needs images \[N, 1, H, W\], got \[1, 4, 64, 64\]"),
        (torch.rand(1, 64, 64), "needs images"),
        (torch.zeros(1, 1, 64, 64, dtype=torch.uint8), r"floating point, 0 to 1, got torch\.uint8"),
    ):
        with pytest.raises(ShapeError, match=message):
            model(images)


def test_bad_options_are_named(name: str) -> None:
    option = next(iter(model_card(name).options))
    unknown: Any = {f"{option}x": 7}
    with pytest.raises(OptionError, match=rf"'{option}x'; did you mean '{option}'"):
        build(name, **unknown)
    known = "kernel_size" in model_card(name).options
    for value in (0, 7.0, True, "7"):
        for size in ("in_channels", "num_classes", *(["kernel_size"] if known else [])):
            if (size, value) == ("num_classes", 0):
                continue  # no classifier
            arguments: Any = {"in_channels": 1, "num_classes": 5, size: value}
            with pytest.raises(OptionError, match=f"{size} must be an integer of at least 1"):
                create_model(name, **arguments)


def test_copies_gradients_of_images_and_memory_formats(name: str) -> None:
    """A deep copy in double precision gives the input gradient of the channels-last model."""
    model = build(name, in_channels=2)
    images = images_for(model)
    double = copy.deepcopy(model).double()
    found = []
    for net, x in (
        (model, images.to(memory_format=torch.channels_last)),
        (double, images.double()),
    ):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).square().sum(), x)
        found.append(gradient.double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)

"""What every registered model must keep; a model added to the registry is tested here by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equiscale
from equiscale.core.errors import OptionError, ShapeError
from equiscale.models import (
    MODEL_GROUPS,
    Classifier,
    PoolsOverScale,
    create_model,
    list_models,
    model_card,
)
from equiscale.models.scaled_conv_nets import ScalePoolingNet

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

NO_CHOICE = (
    *("standard", "spatial_transform", "ensemble", "hermite", "disco", "conv3d"),
    *(
        "scale_channels",
        "gaussian_derivative",
        "riesz",
        "standard_bn",
        "standard_wide",
        "ensemble_dropout",
    ),
)
"""Models without a pooling over scale inside."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What batch normalisation learns from the images besides its parameters."""


def build(name: str, image_size: tuple[int, int] = (16, 17), **arguments: int) -> Classifier:
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


@pytest.fixture(params=list_models())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_registry_holds_the_papers_models() -> None:
    assert equiscale.list_models("paper") == list(PAPER_PARAMETERS)


def test_every_model_is_in_one_group() -> None:
    grouped = [name for group in MODEL_GROUPS for name in equiscale.list_models(group)]
    assert sorted(grouped) == sorted(equiscale.list_models())
    assert equiscale.list_models()[:11] == equiscale.list_models("paper")
    with pytest.raises(OptionError, match="did you mean 'paper'"):
        equiscale.list_models("papers")  # type: ignore[arg-type]


@pytest.mark.parametrize("paper", PAPER_PARAMETERS)  # others: tests/models/test_documentation.py
def test_parameter_count_is_that_of_the_paper(paper: str) -> None:
    assert model_card(paper).count_parameters() == PAPER_PARAMETERS[paper]


def test_card_says_everything(name: str) -> None:
    card = model_card(name)
    assert card.name == name
    assert all((card.title, card.citation, card.guarantee, card.limits))


def test_counting_parameters_leaves_the_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    model_card(name).count_parameters()
    assert torch.equal(before, torch.get_rng_state())


def test_same_seed_same_weights(name: str) -> None:
    for (key, first), second in zip(
        build(name).state_dict().items(), build(name).state_dict().values(), strict=True
    ):
        assert torch.equal(first, second), key


def test_logits_have_one_column_per_class(name: str) -> None:
    model = build(name, in_channels=3, num_classes=4)
    logits = model(images_for(model))
    assert logits.shape == (2, 4)
    assert logits.isfinite().all()


def test_empty_batch(name: str) -> None:
    model = build(name)
    assert model(images_for(model)[:0]).shape == (0, 5)


def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name)
    for parameter in model.parameters():  # some start at zero, which hides those in front
        nn.init.normal_(parameter, std=0.1)
    model(images_for(model, batch=4)).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_state_dict_holds_only_what_is_learned(name: str) -> None:
    """Parameters and, with batch normalisation, the running statistics of the images."""
    model = build(name)
    keys = [key for key in model.state_dict() if key.rpartition(".")[2] not in STATISTICS]
    assert keys == [key for key, _ in model.named_parameters()]


def test_training_steps_draw_from_the_global_generator_alone(name: str) -> None:
    """So that a loop that seeds it gets the same step again, dropout and statistics included."""
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


def test_parameters_come_in_reading_order(name: str) -> None:
    keys = [key for key, _ in build(name).named_parameters()]
    assert keys[-2:] == ["head.weight", "head.bias"]
    if name not in PAPER_PARAMETERS:
        return
    stages = [key.split(".")[-2] for key in keys if ".weight" in key]
    assert stages[-3:] == ["conv1", "conv2", "head"]


def test_calls_leave_no_trace(name: str) -> None:
    """A second call, after others of another size and other methods, gives the same bits."""
    model = build(name).eval()
    x = images_for(model)
    with torch.no_grad():
        first = model(x)
        attributes = set(vars(model))
        model.stages(x[:1])
        assert torch.equal(model(x), first)
    assert set(vars(model)) == attributes


def test_stages_are_what_the_logits_come_from(name: str) -> None:
    model = build(name)
    x = images_for(model)
    stages = model.stages(x)
    if isinstance(model, ScalePoolingNet):  # finds the maximum of stage 2 without its maps
        torch.testing.assert_close(model.classify(stages), model(x))
    else:
        assert torch.equal(model.classify(stages), model(x))
    assert all(value.ndim >= 4 and len(value) == len(x) for value in stages.values())
    assert all((value >= 0).all() for value in stages.values()), "after the ReLU"


def test_stages_have_no_dropout(name: str) -> None:
    model = build(name).train()
    x = images_for(model)
    with torch.no_grad():
        first, second = model.stages(x), model.stages(x)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[stage], second[stage]) for stage in first)


def test_samples_do_not_see_each_other(name: str) -> None:
    model = build(name).eval()
    x = images_for(model, batch=3)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]))


def test_scale_indices_match_the_stages(name: str) -> None:
    model = build(name)
    if not isinstance(model, PoolsOverScale):
        assert name in NO_CHOICE, "offer scale_indices(x), or add the name to NO_CHOICE"
        return
    x = images_for(model)
    indices, stages = model.scale_indices(x), build(name).stages(x)
    assert set(indices) <= set(stages)
    assert "stage2" in indices
    for stage, index in indices.items():
        assert index.dtype == torch.int64
        assert index.shape in (stages[stage].shape, stages[stage].shape[:2])
        assert index.min() >= 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 4, 64, 64), r"needs images \[N, 1, H, W\], got \[1, 4, 64, 64\]"), ((1, 64, 64), "got")],
)
def test_wrong_images_are_named(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        build(name)(torch.zeros(shape))


def test_smallest_image_works_and_a_smaller_one_is_named(name: str) -> None:
    size = build(name).minimum_size
    model = build(name, image_size=(size, size))
    assert model(torch.rand(1, 1, size, size)).shape == (1, 5)
    with pytest.raises(ShapeError, match=f"at least {size}×{size} pixels"):
        model(torch.rand(1, 1, size - 1, size))


def test_unknown_option_lists_near_matches(name: str) -> None:
    option = next(iter(model_card(name).options))
    with pytest.raises(OptionError, match=rf"'{option}x'; did you mean '{option}'"):
        create_model(name, in_channels=1, num_classes=5, **{f"{option}x": 7})


def test_bytes_are_named(name: str) -> None:
    with pytest.raises(ShapeError, match=r"floating point, 0 to 1, got torch\.uint8"):
        build(name)(torch.zeros(1, 1, 64, 64, dtype=torch.uint8))


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


@pytest.mark.parametrize("kernel_size", [0, -3, 7.0, True, "7"])
def test_bad_kernel_size_is_named(name: str, kernel_size: object) -> None:
    known = "kernel_size" in model_card(name).options
    message = "must be an integer of at least 1" if known else "unknown option"
    with pytest.raises(OptionError, match=message):
        create_model(name, in_channels=1, num_classes=5, kernel_size=kernel_size)


def test_weights_can_be_copied(name: str) -> None:
    first, second = build(name), build(name)
    for parameter in second.parameters():
        nn.init.zeros_(parameter)
    second.load_state_dict(first.state_dict())
    x = images_for(first)
    assert torch.equal(first(x), second(x))

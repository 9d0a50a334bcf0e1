from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import ImagePyramid, ScaleChannels, scale_channels, scale_factors
from equiscale.layers.channel_pool import CHANNEL_POOLS, pool_channels
from equiscale.layers.channels import CANVASES, resize_images

FACTORS = (0.5, 0.7, 1.0, 1.3)


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def images(batch: int = 4, size: int = 20) -> Tensor:
    return torch.rand(batch, 2, size, size + 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.71, 1.0, 1.41, 2.0])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_resizing_is_torchs_antialiased_one(factor: float, interpolation: Any) -> None:
    x = images().double()
    size = [round(side * factor) for side in x.shape[2:]]
    expected = F.interpolate(x, size, mode=interpolation, antialias=factor < 1)
    torch.testing.assert_close(resize_images(x, factor, interpolation), expected)


def test_resizing_has_exact_gradients() -> None:
    x = images(1, 6).double().requires_grad_()
    for factor, blur in ((0.6, 0.0), (1.5, 0.7), (1.0, 0.7)):
        assert torch.autograd.gradcheck(lambda x: resize_images(x, factor, blur=blur), x)  # noqa: B023


def test_an_image_of_its_own_size_is_not_touched_and_a_tiny_one_keeps_a_pixel() -> None:
    x = images()
    assert resize_images(x, 1.0) is x
    assert resize_images(x, 0.01).shape == (4, 2, 1, 1)


def test_blur_is_a_gaussian_in_pixels_of_the_copy() -> None:
    point = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    point[0, 0, 16, 16] = 1
    for factor in (1.0, 2.0):
        copy = resize_images(point, factor, "nearest", blur=2.0)[0, 0]
        row = copy.sum(0) / copy.sum()
        position = torch.arange(len(row), dtype=torch.float64)
        mean = (row * position).sum()
        variance = (row * (position - mean) ** 2).sum()
        extent = (factor**2 - 1) / 12  # of the enlarged pixel itself
        assert variance == pytest.approx(4 + extent, rel=1e-3)


def test_factors_are_geometric_and_contain_one() -> None:
    assert scale_factors(0.25, 1.0, 1) == (0.25, 0.5, 1.0)
    assert 1.0 in scale_factors(0.3, 1.9, 3)
    assert all(0.3 <= f <= 1.9 for f in scale_factors(0.3, 1.9, 3))


@pytest.mark.parametrize(
    "arguments", [(0.0, 1.0, 2), (2.0, 1.0, 2), (0.5, 1.0, 0), (1.0, math.inf, 1)]
)
def test_impossible_factors_are_named(arguments: tuple[float, float, int]) -> None:
    with pytest.raises(OptionError, match="0 < smallest <= largest"):
        scale_factors(*arguments)
    with pytest.raises(OptionError, match=r"lies between 0\.8 and 0\.9"):
        scale_factors(0.8, 0.9, 1)


@pytest.mark.parametrize("pool", CHANNEL_POOLS)
def test_every_copy_is_asked_and_the_answers_are_pooled(pool: Any) -> None:
    network = backbone().eval()
    channels = ScaleChannels(network, FACTORS, pool=pool).eval()
    x = images()
    answers = torch.stack([network(resize_images(x, factor)) for factor in FACTORS], dim=1)
    assert torch.equal(channels.channel_logits(x), answers)
    torch.testing.assert_close(channels(x), pool_channels(answers, pool))


def test_a_mixture_is_the_mean_of_probabilities() -> None:
    logits = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = logits.softmax(2).mean(1)
    torch.testing.assert_close(pool_channels(logits, "mixture").exp(), expected)
    kept = torch.tensor([[True, False, True]] * 5)
    expected = logits[:, [0, 2]].softmax(2).mean(1)
    torch.testing.assert_close(pool_channels(logits, "mixture", kept).exp(), expected)


def test_in_a_vote_a_channel_counts_by_the_classes_it_hesitates_between() -> None:
    certain, torn, clueless = [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25] * 4
    logits = torch.tensor([[certain, torn, clueless]]).log()
    weights = torch.tensor([1, 1 / 2, 1 / 4]) / 1.75
    expected = (logits.exp() * weights[:, None]).sum(1)
    torch.testing.assert_close(pool_channels(logits, "vote").exp(), expected)
    kept = torch.tensor([[False, True, True]])
    expected = pool_channels(logits[:, 1:], "vote")
    torch.testing.assert_close(pool_channels(logits, "vote", kept), expected)


def test_a_vote_has_exact_gradients_and_survives_certainty() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    kept = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) > 0.3
    assert torch.autograd.gradcheck(
        lambda x: pool_channels(x, "vote", kept), logits.requires_grad_()
    )
    sure = torch.tensor([[[1e4, 0.0], [0.0, 1e3]]], requires_grad=True)
    pool_channels(sure, "vote").sum().backward()
    assert sure.grad is not None
    assert sure.grad.isfinite().all()


def test_half_precision_is_pooled_in_single() -> None:
    logits = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0))
    coarse = logits.bfloat16()
    expected = pool_channels(coarse.float(), "mixture")
    assert torch.equal(pool_channels(coarse, "mixture"), expected.bfloat16())
    with torch.autocast("cpu"):
        assert torch.equal(pool_channels(coarse, "mixture"), expected)


def test_one_logit_has_no_mixture() -> None:
    with pytest.raises(ShapeError, match="one logit per image"):
        pool_channels(torch.zeros(2, 3, 1), "mixture")
    with pytest.raises(ShapeError, match="one logit per image"):
        pool_channels(torch.zeros(2, 3, 1), "vote")
    assert pool_channels(torch.ones(2, 3, 1), "mean").tolist() == [[1.0], [1.0]]


def test_an_unknown_pool_is_named() -> None:
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        pool_channels(torch.zeros(2, 3, 4), "meen")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("pool", CHANNEL_POOLS)
def test_pooled_logits_have_the_precision_of_the_channels(pool: Any, dtype: torch.dtype) -> None:
    assert pool_channels(torch.zeros(2, 3, 4, dtype=dtype), pool).dtype == dtype


def test_dropout_leaves_one_copy_at_least_and_the_right_number_on_average() -> None:
    pyramid = ImagePyramid(FACTORS, dropout=0.75)
    x = images(1, 4)
    torch.manual_seed(0)
    drawn = [tuple(pyramid(x)) for _ in range(2000)]
    assert min(map(len, drawn)) == 1
    alone = 0.75**4  # nothing drawn: one stays
    assert sum(map(len, drawn)) / 2000 == pytest.approx(4 * 0.25 + alone, abs=0.06)
    for factor in FACTORS:
        share = sum(factor in kept for kept in drawn) / 2000
        assert share == pytest.approx(0.25 + alone / 4, abs=0.04)


def test_training_and_asking_may_differ_in_their_factors() -> None:
    pyramid = ImagePyramid((1.0,), train_factors=(0.5, 2.0))
    assert tuple(pyramid(images())) == (0.5, 2.0)
    assert tuple(pyramid.eval()(images())) == (1.0,)


def test_of_copies_larger_than_any_asked_training_sees_a_part() -> None:
    pyramid, x = ImagePyramid((0.5, 1.5), train_factors=(1.5, 3.0)), images()
    whole = resize_images(x, 3.0)
    torch.manual_seed(0)
    places = set()
    for _ in range(20):
        copies = pyramid(x)
        assert copies[1.5].shape == (4, 2, 30, 34)
        assert copies[3.0].shape == x.shape
        windows = whole.unfold(2, 20, 1).unfold(3, 23, 1).flatten(0, 1)
        near = (windows - copies[3.0].flatten(0, 1)[:, None, None]).abs().amax((0, 3, 4)) < 1e-5
        assert near.sum() == 1
        places.add(tuple(near.nonzero()[0].tolist()))
    assert len(places) > 15


def test_evaluation_draws_nothing() -> None:
    channels = ScaleChannels(backbone(), FACTORS, dropout=0.5).eval()
    before = torch.get_rng_state()
    assert torch.equal(channels(images()), channels(images()))
    assert torch.equal(before, torch.get_rng_state())


def test_an_object_of_another_size_is_seen_by_another_channel() -> None:
    """Halving a smooth object moves what the channels say by one octave."""
    position = torch.arange(64) - 31.5
    distance = position[:, None] ** 2 + position**2
    large, small = (torch.exp(-distance / (2 * s**2)).expand(1, 2, 64, 64) for s in (8.0, 4.0))
    channels = ScaleChannels(backbone(), (0.25, 0.5, 1.0)).eval()
    with torch.no_grad():
        of_large, of_small = channels.channel_logits(large)[0], channels.channel_logits(small)[0]
    same_channel = (of_large - of_small).abs().max()
    next_channel = (of_large[:2] - of_small[1:]).abs().max()
    assert next_channel < 0.1 * same_channel


def test_a_backbone_is_a_module() -> None:
    with pytest.raises(OptionError, match=r"must be a torch\.nn\.Module, got 3"):
        scale_channels(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": ()}, "factors must be"),
        ({"factors": (f for f in (0.5, 1.0))}, "factors must be"),
        ({"factors": (1.0, -1.0)}, "positive"),
        ({"factors": (1.0,), "train_factors": (0.0,)}, "train_factors must be"),
        ({"factors": (1.0,), "pool": "maxx"}, "did you mean 'max'"),
        ({"factors": (1.0,), "dropout": 1.0}, "dropout must be"),
        ({"factors": (1.0, 1.0)}, "differ"),
        ({"factors": (1.0, 1.0001)}, "differ"),
        ({"factors": (1.0,), "blur": -1.0}, "blur must"),
        ({"factors": (1.0,), "blur": "much"}, "blur must"),
        ({"factors": (1.0,), "interpolation": "cubic"}, "did you mean 'bicubic'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ScaleChannels(backbone(), **options)


def test_images_of_another_rank_are_named() -> None:
    with pytest.raises(ShapeError, match=r"\[N, C, H, W\] of .*, got \[2, 20, 20\]"):
        scale_channels(backbone())(torch.zeros(2, 20, 20))


def test_images_of_integers_are_named() -> None:
    with pytest.raises(ShapeError, match=r"floating-point numbers, got .* of torch\.uint8"):
        scale_channels(backbone())(torch.zeros(2, 2, 20, 20, dtype=torch.uint8))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_backbone_that_returns_no_logits_is_named(batch: int) -> None:
    maps = nn.Sequential(nn.Conv2d(2, 5, 3), nn.AdaptiveMaxPool2d(1))
    with pytest.raises(ShapeError, match=rf"logits \[{batch}, K\], got \[{batch}, 5, 1, 1\]"):
        scale_channels(maps)(images(batch, 64))


def test_a_copy_that_the_backbone_refuses_is_named() -> None:
    network = nn.Sequential(nn.Conv2d(2, 5, 7), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    wrapped = ScaleChannels(network, factors=(0.25, 1.0))
    with pytest.raises(ShapeError, match=r"not a copy of 5×6 pixels \(factor 0\.25\)"):
        wrapped(images(2, 20))


def test_an_error_of_the_backbones_own_is_not_blamed_on_a_copy() -> None:
    with pytest.raises(RuntimeError, match="to have 2 channels, but got 3"):
        ScaleChannels(backbone(), factors=(0.5, 1.0))(torch.zeros(2, 3, 20, 20))


def test_a_tiny_blur_is_none() -> None:
    x = images()
    torch.testing.assert_close(resize_images(x, 0.5, blur=1e-200), resize_images(x, 0.5))


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_wrapped_network_is_exported_with_a_free_batch(canvas: Any) -> None:
    wrapped = scale_channels(backbone(), canvas=canvas).eval()
    free = {0: torch.export.Dim("batch")}
    program = torch.export.export(wrapped, (images(2),), dynamic_shapes=(free,))
    torch.testing.assert_close(program.module()(images(5)), wrapped(images(5)))


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_wrapped_network_is_compiled_for_several_sizes(canvas: Any) -> None:
    wrapped = scale_channels(backbone(), canvas=canvas).eval()
    torch.compiler.reset()  # it counts the sizes of all tests against one limit
    compiled = torch.compile(wrapped, fullgraph=True, backend="eager")
    for size in (20, 24, 31):
        torch.testing.assert_close(compiled(images(2, size)), wrapped(images(2, size)))


def test_factors_may_be_an_array() -> None:
    assert ScaleChannels(backbone(), np.array([0.5, 1.0])).pyramid.factors == (0.5, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("canvas", "mode"), [("zeros", "constant"), ("replicate", "replicate")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_canvas_reduced_copies_lie_in_the_middle(
    canvas: Any, mode: str, dtype: torch.dtype
) -> None:
    x = images(2, 21).to(dtype)
    factors = (0.25, 0.5, 1.0, 1.5)
    bare = ImagePyramid(factors)(x)
    for factor, copy in ImagePyramid(factors, canvas=canvas)(x).items():
        small = bare[factor]
        if factor >= 1:
            assert torch.equal(copy, small)
            continue
        assert copy.shape == x.shape
        down, across = x.shape[2] - small.shape[2], x.shape[3] - small.shape[3]
        margins = across // 2, -(-across // 2), down // 2, -(-down // 2)
        assert torch.equal(copy, F.pad(small, margins, mode=mode))


def test_parts_of_enlarged_copies_need_no_canvas() -> None:
    pyramid = ImagePyramid((0.5, 1.0), train_factors=(0.25, 2.0), canvas="zeros").train()
    assert {copy.shape for copy in pyramid(images()).values()} == {images().shape}


def test_a_canvas_is_not_seen_by_padded_networks_without_bias_stride_or_mean() -> None:
    """Black stays black there: there is no telling where a black margin ends."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 5, padding=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    ).eval()
    bare, surrounded = (
        ScaleChannels(network, (0.35, 0.5, 1.0), canvas=canvas) for canvas in ("none", "zeros")
    )
    x = F.pad(images(2, 20), [20] * 4)
    torch.testing.assert_close(surrounded(x), bare(x))


class OneSize(nn.Module):
    """Takes images of 20×23 pixels, and says so as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * 20 * 23, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[2] == 20, "wrong height")
        return self.head(x.flatten(1))


def test_a_network_for_one_size_is_asked_on_a_canvas() -> None:
    wrapped = scale_channels(OneSize(), factors=(0.35, 0.5, 1.0))
    assert wrapped(images(2, 20)).shape == (2, 3)
    for canvas in CANVASES:
        refused = scale_channels(OneSize(), factors=(0.35, 1.0, 1.5), dropout=0, canvas=canvas)
        with pytest.raises(ShapeError, match=r"wrong height.*factors of at most 1, on a canvas"):
            refused(images(2, 20))


def test_an_unknown_canvas_is_named() -> None:
    with pytest.raises(OptionError, match="did you mean 'zeros'"):
        scale_channels(backbone(), canvas="zero")  # type: ignore[arg-type]


def test_modules_of_before_there_was_a_canvas_go_on() -> None:
    pyramid = ImagePyramid((0.5, 1.0))
    del pyramid.__dict__["canvas"]
    assert pyramid(images())[0.5].shape[2:] == (10, 12)

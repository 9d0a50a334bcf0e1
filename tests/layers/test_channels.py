"""Views, pooling of their answers, and the wrapper."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import (
    RescaledViews,
    ScaleChannels,
    pool_views,
    scale_channels,
    scale_factors,
)
from equiscale.layers.channels import (
    CANVASES,
    VIEW_POOLS,
    draw_views,
    resize_images,
    spread_views,
)

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


# --- Views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.25, 0.71, 1.0, 1.41])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_resizing_is_torchs_antialiased_one(factor: float, interpolation: Any) -> None:
    x = images().double()
    size = [round(side * factor) for side in x.shape[2:]]
    expected = F.interpolate(x, size, mode=interpolation, antialias=factor < 1)
    torch.testing.assert_close(resize_images(x, factor, interpolation), expected)


def test_resizing_has_exact_gradients() -> None:
    x = images(1, 6).double().requires_grad_()
    for factor, blur in ((0.6, 0.0), (1.5, 0.7)):
        assert torch.autograd.gradcheck(lambda x: resize_images(x, factor, blur=blur), x)  # noqa: B023


def test_an_image_of_its_own_size_is_not_touched_and_a_tiny_one_keeps_a_pixel() -> None:
    x = images()
    assert resize_images(x, 1.0) is x
    assert resize_images(x, 0.01).shape == (4, 2, 1, 1)


def test_blur_is_a_gaussian_in_pixels_of_the_view() -> None:
    point = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    point[0, 0, 16, 16] = 1
    for factor in (1.0, 2.0):
        view = resize_images(point, factor, "nearest", blur=2.0)[0, 0]
        row = view.sum(0) / view.sum()
        position = torch.arange(len(row), dtype=torch.float64)
        variance = (row * (position - (row * position).sum()) ** 2).sum()
        extent = (factor**2 - 1) / 12  # of the enlarged pixel itself
        assert variance == pytest.approx(4 + extent, rel=1e-3)
    x = images()
    torch.testing.assert_close(resize_images(x, 0.5, blur=1e-200), resize_images(x, 0.5))


def test_factors_are_geometric_and_contain_one() -> None:
    assert scale_factors(0.25, 1.0, 1) == (0.25, 0.5, 1.0)
    assert 1.0 in scale_factors(0.3, 1.9, 3)
    assert all(0.3 <= f <= 1.9 for f in scale_factors(0.3, 1.9, 3))
    for arguments in ((0.0, 1.0, 2), (2.0, 1.0, 2), (0.5, 1.0, 0), (1.0, math.inf, 1)):
        with pytest.raises(OptionError, match="0 < smallest <= largest"):
            scale_factors(*arguments)
    with pytest.raises(OptionError, match=r"lies between 0\.8 and 0\.9"):
        scale_factors(0.8, 0.9, 1)


def test_dropout_keeps_at_least_one_view_and_the_right_number_on_average() -> None:
    views = RescaledViews(FACTORS, dropout=0.75)
    x = images(1, 4)
    torch.manual_seed(0)
    drawn = [tuple(views(x)) for _ in range(1000)]
    assert min(map(len, drawn)) == 1
    alone = 0.75**4  # nothing drawn: one stays
    assert sum(map(len, drawn)) / 1000 == pytest.approx(4 * 0.25 + alone, abs=0.08)
    for factor in FACTORS:
        share = sum(factor in kept for kept in drawn) / 1000
        assert share == pytest.approx(0.25 + alone / 4, abs=0.05)


def test_large_views_are_cropped_at_random_in_training_only() -> None:
    views = RescaledViews((0.5, 1.5), (1.5, 3.0), dropout=0, canvas="none")
    x = images()
    windows = resize_images(x, 3.0).unfold(2, 20, 1).unfold(3, 23, 1).flatten(0, 1)
    torch.manual_seed(0)
    places = set()
    for _ in range(20):
        made = views(x)
        assert tuple(made) == (1.5, 3.0)
        assert made[1.5].shape == (4, 2, 30, 34)
        near = (windows - made[3.0].flatten(0, 1)[:, None, None]).abs().amax((0, 3, 4)) < 1e-5
        assert near.sum() == 1
        places.add(tuple(near.nonzero()[0].tolist()))
    assert len(places) > 15
    assert tuple(views.eval()(x)) == (0.5, 1.5)


@pytest.mark.parametrize(("canvas", "mode"), [("zeros", "constant"), ("replicate", "replicate")])
def test_on_a_canvas_reduced_views_lie_in_the_middle(canvas: Any, mode: str) -> None:
    x = images(2, 21).bfloat16()
    factors = (0.25, 0.5, 1.0, 1.5)
    bare = RescaledViews(factors, canvas="none").eval()(x)
    for factor, view in RescaledViews(factors, canvas=canvas).eval()(x).items():
        small = bare[factor]
        if factor >= 1:
            assert torch.equal(view, small)
            continue
        down, across = x.shape[2] - small.shape[2], x.shape[3] - small.shape[3]
        margins = across // 2, -(-across // 2), down // 2, -(-down // 2)
        assert torch.equal(view, F.pad(small, margins, mode=mode))


def test_views_are_resampled_in_float32_under_autocast() -> None:
    x, views = images(2, 21), RescaledViews((0.5, 1.5)).eval()
    expected = views(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = views(x)
    assert all(torch.equal(found[factor], expected[factor]) for factor in expected)


def test_padded_networks_without_bias_stride_or_mean_do_not_see_a_black_canvas() -> None:
    network = nn.Sequential(
        nn.Conv2d(2, 4, 5, padding=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )
    bare, surrounded = (
        scale_channels(network, factors=(0.35, 0.5, 1.0), canvas=canvas).eval()
        for canvas in ("none", "zeros")
    )
    x = F.pad(images(2, 20), [20] * 4)
    torch.testing.assert_close(surrounded(x), bare(x))


# --- Pooling --------------------------------------------------------------------------------------


def test_a_mixture_is_the_mean_of_probabilities() -> None:
    logits = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = logits.softmax(2).mean(1)
    torch.testing.assert_close(pool_views(logits, "mixture").exp(), expected)
    kept = torch.tensor([[True, False, True]] * 5)
    expected = logits[:, [0, 2]].softmax(2).mean(1)
    torch.testing.assert_close(pool_views(logits, "mixture", kept).exp(), expected)


def test_in_a_vote_a_view_counts_by_the_classes_it_hesitates_between() -> None:
    certain, torn, clueless = [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25] * 4
    logits = torch.tensor([[certain, torn, clueless]]).log()
    weights = torch.tensor([1, 1 / 2, 1 / 4]) / 1.75
    expected = (logits.exp() * weights[:, None]).sum(1)
    torch.testing.assert_close(pool_views(logits, "vote").exp(), expected)
    kept = torch.tensor([[False, True, True]])
    expected = pool_views(logits[:, 1:], "vote")
    torch.testing.assert_close(pool_views(logits, "vote", kept), expected)


def test_a_vote_has_exact_gradients_and_survives_certainty() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    kept = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) > 0.3
    assert torch.autograd.gradcheck(lambda x: pool_views(x, "vote", kept), logits.requires_grad_())
    sure = torch.tensor([[[1e4, 0.0], [0.0, 1e3]]], requires_grad=True)
    pool_views(sure, "vote").sum().backward()
    assert sure.grad is not None
    assert sure.grad.isfinite().all()


@pytest.mark.parametrize("pool", VIEW_POOLS)
def test_half_precision_is_pooled_in_single_and_returned_in_half(pool: Any) -> None:
    coarse = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = pool_views(coarse.float(), pool)
    assert torch.equal(pool_views(coarse, pool), expected.bfloat16())
    with torch.autocast("cpu"):
        assert torch.equal(pool_views(coarse, pool), expected)
    assert pool_views(coarse.double(), pool).dtype == torch.float64


@pytest.mark.parametrize("mode", ["mean", "max", "logsumexp"])
def test_pooling_takes_kept_views_only(mode: Any) -> None:
    logits, kept = torch.randn(6, 4, 3, dtype=torch.float64), draw_views(6, 4, 0.5)
    pooled = pool_views(logits, mode, kept)
    for row, own, seen in zip(pooled, logits, kept, strict=True):
        torch.testing.assert_close(row, pool_views(own[seen][None], mode)[0])
    torch.testing.assert_close(pool_views(logits[:, :1], mode), logits[:, 0])


def test_spreading_puts_each_answer_in_its_place() -> None:
    kept = torch.tensor([[True, False], [True, True]])
    whole = spread_views([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])], kept)
    assert whole[..., 0].tolist() == [[1.0, 0.0], [2.0, 3.0]]


def test_one_logit_has_no_mixture() -> None:
    for pool in ("mixture", "vote"):
        with pytest.raises(ShapeError, match="got one logit per image"):
            pool_views(torch.zeros(2, 3, 1), pool)
    assert pool_views(torch.ones(2, 3, 1), "mean").tolist() == [[1.0], [1.0]]
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        pool_views(torch.zeros(2, 3, 4), "meen")  # type: ignore[arg-type]


# --- The wrapper ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", VIEW_POOLS)
def test_the_network_is_run_on_every_view_and_the_answers_are_pooled(pool: Any) -> None:
    network, x = backbone(), images()
    wrapped = ScaleChannels(network, FACTORS, pool=pool, canvas="none").eval()
    answers = torch.stack([network(resize_images(x, factor)) for factor in FACTORS], dim=1)
    assert torch.equal(wrapped.view_logits(x), answers)
    torch.testing.assert_close(wrapped(x), pool_views(answers, pool))


def test_function_class_and_views_have_one_set_of_defaults() -> None:
    function, module = scale_channels(backbone()), ScaleChannels(backbone())
    assert repr(function) == repr(module)
    x = images(2, 64)
    for training in (False, True):
        torch.manual_seed(3)
        expected = module.train(training)(x)
        torch.manual_seed(3)
        assert torch.equal(function.train(training)(x), expected)
    torch.testing.assert_close(expected.exp().sum(1), torch.ones(2))  # log-probabilities
    wrapper, views = (inspect.signature(c).parameters for c in (ScaleChannels, RescaledViews))
    assert all(wrapper[name].default == views[name].default for name in views)


def test_evaluation_draws_nothing() -> None:
    wrapped = scale_channels(backbone()).eval()
    before = torch.get_rng_state()
    assert torch.equal(wrapped(images()), wrapped(images()))
    assert torch.equal(before, torch.get_rng_state())


def test_an_object_of_another_size_is_seen_by_another_view() -> None:
    """Halving a smooth object moves the answers by one octave."""
    position = torch.arange(64) - 31.5
    distance = position[:, None] ** 2 + position**2
    large, small = (torch.exp(-distance / (2 * s**2)).expand(1, 2, 64, 64) for s in (8.0, 4.0))
    wrapped = ScaleChannels(backbone(), (0.25, 0.5, 1.0), canvas="none").eval()
    with torch.no_grad():
        of_large, of_small = wrapped.view_logits(large)[0], wrapped.view_logits(small)[0]
    same_view = (of_large - of_small).abs().max()
    next_view = (of_large[:2] - of_small[1:]).abs().max()
    assert next_view < 0.1 * same_view


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": ()}, "factors must be"),
        ({"factors": (f for f in (0.5, 1.0))}, "factors must be"),
        ({"factors": (1.0, -1.0)}, "positive"),
        ({"factors": (1.0, 1.0001)}, "differ"),
        ({"train_factors": (0.0,)}, "train_factors must be"),
        ({"pool": "maxx"}, "did you mean 'max'"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"blur": -1.0}, "blur must"),
        ({"blur": "much"}, "blur must"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
        ({"canvas": "zero"}, "did you mean 'zeros'"),
        ({"backbone": 3}, r"must be a torch\.nn\.Module, got 3"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        scale_channels(**{"backbone": backbone(), **options})


def test_factors_may_be_an_array() -> None:
    wrapped = ScaleChannels(backbone(), np.array([0.5, 1.0]))  # type: ignore[arg-type]
    assert wrapped.views.factors == (0.5, 1.0)


def test_wrong_images_are_named() -> None:
    with pytest.raises(ShapeError, match=r"\[N, C, H, W\] of .*, got \[2, 20, 20\]"):
        scale_channels(backbone())(torch.zeros(2, 20, 20))
    with pytest.raises(ShapeError, match=r"floating-point numbers, got .* of torch\.uint8"):
        scale_channels(backbone())(torch.zeros(2, 2, 20, 20, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="to have 2 channels, but got 3"):  # not of a view
        scale_channels(backbone())(torch.zeros(2, 3, 20, 20))


def test_a_backbone_that_returns_no_logits_is_named() -> None:
    maps = nn.Sequential(nn.Conv2d(2, 5, 3), nn.AdaptiveMaxPool2d(1))
    with pytest.raises(ShapeError, match=r"logits \[1, K\], got \[1, 5, 1, 1\]"):
        scale_channels(maps)(images(1, 64))


def test_a_view_that_the_backbone_refuses_is_named() -> None:
    network = nn.Sequential(nn.Conv2d(2, 5, 7), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    wrapped = scale_channels(network, factors=(0.25, 1.0), dropout=0, canvas="none")
    with pytest.raises(ShapeError, match=r"not its view of 5×6 pixels \(factor 0\.25\)"):
        wrapped(images(2, 20))


class OneSize(nn.Module):
    """Takes images of 20×23 pixels, and refuses others as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * 20 * 23, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[2] == 20, "wrong height")
        return self.head(x.flatten(1))


def test_a_network_for_one_size_needs_a_canvas_and_no_enlarged_view() -> None:
    wrapped = scale_channels(OneSize(), factors=(0.35, 0.5, 1.0))
    assert wrapped(images(2, 20)).shape == (2, 3)
    for canvas in CANVASES:
        refused = scale_channels(OneSize(), factors=(0.35, 1.0, 1.5), dropout=0, canvas=canvas)
        with pytest.raises(ShapeError, match=r"wrong height.*factors of at most 1 and a canvas"):
            refused(images(2, 20))


def test_a_wrapped_network_is_exported_with_a_free_batch_and_compiled() -> None:
    wrapped = scale_channels(backbone()).eval()
    free = {0: torch.export.Dim("batch")}
    program = torch.export.export(wrapped, (images(2),), dynamic_shapes=(free,))
    torch.testing.assert_close(program.module()(images(5)), wrapped(images(5)))
    torch.compiler.reset()  # it counts the sizes of all tests against one limit
    compiled = torch.compile(wrapped, fullgraph=True, backend="eager")
    for size in (20, 24, 31):
        torch.testing.assert_close(compiled(images(2, size)), wrapped(images(2, size)))

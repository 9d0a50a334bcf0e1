"""What each model claims under shifts and rescaling, and by how much an ordinary one fails it.

The figures here are those of the cards and of `docs/models.md`; bounds leave a little room.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import SConv2d, scaled_conv2d
from equiscale.layers.baselines.disco import load_raw_basis
from equiscale.layers.baselines.gaussian_derivative import discrete_gaussian, smoothing_matrix
from equiscale.layers.baselines.multi_scale import KanazawaConv2d, XuConv2d
from equiscale.layers.baselines.steerable import (
    HERMITE_SCALES,
    SteerableLift2d,
    disco_basis,
    hermite_basis,
)
from equiscale.models import Classifier, create_model, list_models, model_card
from equiscale.models.prior_work import gaussian_pyramid
from study.disco_basis import correlated_images

SIGMAS = (2, 3, 4, 5, 6, 7, 8, 9)


def build(name: str, image_size: int) -> Classifier:
    torch.manual_seed(0)
    options = {"image_size": image_size} if "image_size" in model_card(name).options else {}
    model = create_model(name, in_channels=1, num_classes=10, **options).eval()
    assert isinstance(model, Classifier)
    return model


def object_at(top: int, left: int, canvas: int) -> Tensor:
    """An 8×8 object on a black canvas."""
    image = torch.zeros(1, 1, canvas, canvas)
    image[..., top : top + 8, left : left + 8] = torch.rand(
        8, 8, generator=torch.Generator().manual_seed(0)
    )
    return image


def blobs(canvas: int = 64) -> Tensor:
    """Gaussian blobs of growing size, centred."""
    y = torch.arange(canvas) - (canvas - 1) / 2
    squares = y[:, None] ** 2 + y**2
    return torch.stack([torch.exp(-squares / (2 * sigma**2))[None] for sigma in SIGMAS])


def blob_detector() -> Tensor:
    """A 7×7 kernel with a bright centre and mean zero."""
    y = torch.arange(7) - 3.0
    centre = torch.exp(-(y[:, None] ** 2 + y**2) / (2 * 1.2**2))
    return (centre / centre.sum() - 1 / 49)[None, None]


def largest(maps: Tensor) -> list[float]:
    return [float(value) for value in maps.flatten(1).amax(1)]


# Largest relative change of the logits when the object moves by four pixels, weights untrained.
# Zero where nothing but the border can break the symmetry and the border is far enough away.
SHIFT_BOUNDS = {
    "standard": 1e-5,
    "spatial_transform": 1e-5,
    "xu": 1e-5,
    "hermite": 1e-5,
    "disco": 1e-5,
    "slice_pool": 0.02,
    "conv3d": 0.02,
    "ensemble": 0.025,
    "pixel_pool": 0.03,
    "kanazawa": 0.08,
    "energy_pool": 0.12,
    "pixel_pool_same": 0.015,
    "slice_pool_same": 0.012,
    "pixel_pool_full": 0.02,
    "slice_pool_full": 1e-5,
    "energy_pool_mean": 0.6,
    "scale_channels": 0.005,  # in log-probabilities
    "gaussian_derivative": 0.06,
    "riesz": 1e-5,
    "standard_bn": 1e-5,
    "standard_wide": 1e-5,
    "ensemble_dropout": 0.025,
}


@pytest.mark.parametrize("name", list_models())
def test_logits_stay_when_the_object_moves(name: str) -> None:
    canvas = 72 if name in ("hermite", "disco") else 48
    middle = (canvas - 8) // 2
    model = build(name, canvas)
    with torch.no_grad():
        still = model(object_at(middle, middle, canvas))
        signal = (still - model.head.bias).norm()
        for down, right in ((0, 4), (4, -4), (-4, 0)):
            moved = model(object_at(middle + down, middle + right, canvas))
            assert (moved - still).norm() / signal <= SHIFT_BOUNDS[name]


def equivariance_error(before: Tensor, after: Tensor) -> float:
    inner = (..., slice(8, -8), slice(8, -8))
    return float((before - after)[inner].square().sum() / before[inner].square().sum())


@pytest.mark.parametrize(
    ("name", "pair", "bound"),
    [
        ("disco", (0, 1), 0.003),
        ("disco", (0, 2), 0.006),
        ("disco", (0, 3), 1e-6),
        ("disco", (1, 3), 0.03),
        ("hermite", (0, 1), 0.04),
        ("hermite", (0, 3), 0.11),
    ],
)
def test_steerable_layers_commute_with_rescaling(
    name: str, pair: tuple[int, int], bound: float
) -> None:
    """Rescaling moves the response to another scale; an ordinary kernel is far from that."""
    margin = 5 if name == "disco" else 1.9
    scales = HERMITE_SCALES if name == "hermite" else load_raw_basis().scales
    basis = hermite_basis() if name == "hermite" else disco_basis(load_raw_basis().values)
    small, large = pair
    factor = scales[small] / scales[large]
    torch.manual_seed(0)
    steerable, ordinary = SteerableLift2d(1, 16, basis), nn.Conv2d(1, 16, 7, bias=False)
    x = correlated_images(4, 96, 0.9, torch.Generator().manual_seed(0))

    def resize(maps: Tensor) -> Tensor:
        return F.interpolate(maps, scale_factor=factor, mode="bicubic", align_corners=False)

    with torch.no_grad():
        wide, narrow = ([7] * 4, [3] * 4)
        maps = steerable(F.pad(x, wide, mode="circular"))[:, :, large]
        resized_maps = steerable(F.pad(resize(x), wide, mode="circular"))[:, :, small]
        assert equivariance_error(resize(maps), resized_maps) < bound
        plain = ordinary(F.pad(x, narrow, mode="circular"))
        resized_plain = ordinary(F.pad(resize(x), narrow, mode="circular"))
        assert equivariance_error(resize(plain), resized_plain) > max(0.06, margin * bound)


def test_slice_pool_chooses_a_kernel_that_follows_the_size() -> None:
    """Kernel sizes 9 to 43 for blobs of σ 2 to 9, r = 0.999."""
    _, index = scaled_conv2d(blobs(), blob_detector(), pool="slice", return_indices=True)
    sizes = 7.0 + 2.0 * index[:, 0]
    assert (sizes.diff() > 0).all()
    assert torch.corrcoef(torch.stack([torch.tensor(SIGMAS).float(), sizes]))[0, 1] > 0.995


def test_pixel_pool_responds_alike_to_all_sizes() -> None:
    """From σ 2 to 9 its response varies by 6 %, while an ordinary one falls by 89 %."""
    pooled = scaled_conv2d(blobs(), blob_detector(), pool="pixel")
    assert isinstance(pooled, Tensor)
    ours, ordinary = largest(pooled), largest(F.conv2d(blobs(), blob_detector()))
    assert min(ours) > 0.93 * max(ours)
    assert ordinary[-1] < 0.12 * ordinary[0]


def test_padding_reaches_large_blobs_near_the_corner() -> None:
    """Valid kernels lose 33 % of a blob of σ 9 there, padded ones nothing."""
    centred = blobs()[-1:]
    moved = torch.roll(centred, (-22, -22), (2, 3))
    (whole,) = largest(scaled_conv2d(centred, blob_detector(), pool="pixel"))
    (valid,) = largest(scaled_conv2d(moved, blob_detector(), pool="pixel"))
    (same,) = largest(scaled_conv2d(moved, blob_detector(), pool="pixel", padding="same"))
    assert valid < 0.7 * whole
    assert same > 0.99 * whole


def test_shrunken_kernels_follow_small_blobs() -> None:
    """A blob of σ 1 is met by a 5×5 kernel, where the paper's kernels stop at 7×7."""
    model = build("slice_pool_full", 64)
    assert isinstance(model.conv1, SConv2d)
    with torch.no_grad():
        model.conv1.weight.copy_(blob_detector().expand_as(model.conv1.weight))
        assert model.conv1.bias is not None
        model.conv1.bias.zero_()
        y = torch.arange(64) - 31.5
        small = torch.exp(-(y[:, None] ** 2 + y**2) / 2)[None, None]
        _, index = model.conv1(small, return_indices=True)
    sizes = model.conv1.geometry((64, 64)).kernel_sizes
    assert {sizes[int(i)] for i in index.flatten()} == {5}
    assert sizes == tuple(range(3, 64, 2))


def test_mean_energy_has_no_liking_for_small_kernels() -> None:
    """On images without objects, the sum always takes 7×7, the mean takes many sizes."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(8, 1, 64, 64, generator=generator)
    kernel = torch.rand(1, 1, 7, 7, generator=generator)
    _, by_sum = scaled_conv2d(noise, kernel, pool="energy", return_indices=True)
    _, by_mean = scaled_conv2d(noise, kernel, pool="mean_energy", return_indices=True)
    assert (by_sum == 0).all()
    assert len(by_mean.unique()) > 2


def test_gaussian_derivative_sees_a_halved_image_two_channels_down() -> None:
    """Relative squared error of the whole network's maps at most 0.035; of standard's, 0.24."""
    model = build("gaussian_derivative", 96)
    standard = build("standard", 96)
    blur = smoothing_matrix(discrete_gaussian(2.0).float(), 96, "replicate")
    noise = correlated_images(4, 96, 0.9, torch.Generator().manual_seed(0))
    image = blur @ noise @ blur.T
    with torch.no_grad():
        fine, whole = model.stages(image[..., ::2, ::2]), model.stages(image)
        errors = [
            map_error(fine[f"channel{j}.stage{k}"], whole[f"channel{j + 2}.stage{k}"])
            for j in (0, 1, 2)
            for k in (1, 2, 3, 4)
        ]
        halved, full = (standard.stages(x)["stage1"] for x in (image[..., ::2, ::2], image))
        plain = map_error(halved, full[..., 3:-3:2, 3:-3:2])
    assert max(errors) < 0.05
    assert plain > 0.2


def map_error(small: Tensor, large: Tensor) -> float:
    """Relative squared error between maps of which one may have twice the pixels, inside."""
    if large.shape[-1] >= 2 * small.shape[-1] - 1:
        large = large[..., ::2, ::2]
    side = min(small.shape[-1], large.shape[-1])
    inner = (..., slice(side // 4, side - side // 4), slice(side // 4, side - side // 4))
    return float((small[inner] - large[inner]).square().sum() / small[inner].square().sum())


@pytest.mark.parametrize("option", ["sampling", "sigma", "layer_ratio", "channel_ratio"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "a"])
def test_impossible_numbers_are_named(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{option} must be a number above 0"):
        create_model("gaussian_derivative", in_channels=1, num_classes=10, **{option: value})


@pytest.mark.parametrize(("sampling", "bound"), [(1.0, 0.15), (2.0, 0.06), (4.0, 0.02)])
def test_coarser_grids_change_the_logits_little(sampling: float, bound: float) -> None:
    """Of an untrained network, against all layers at the full resolution."""
    torch.manual_seed(0)
    full = create_model("gaussian_derivative", in_channels=1, num_classes=10, sampling=1e9).eval()
    coarse = create_model(
        "gaussian_derivative", in_channels=1, num_classes=10, sampling=sampling
    ).eval()
    coarse.load_state_dict(full.state_dict())
    x = torch.cat([object_at(top, top, 64) for top in (8, 21, 30)])
    with torch.no_grad():
        expected = full(x)
        difference = (coarse(x) - expected).norm() / (expected - full.head.bias).norm()  # type: ignore[union-attr]
    assert 0 < float(difference) < bound


def test_riesz_answers_alike_to_all_sizes() -> None:
    """Blobs of σ 2 to 9 on a large canvas: features change by 6 %, those of standard by 55 %."""
    model, standard = build("riesz", 256), build("standard", 256)
    with torch.no_grad():
        spans = []
        for net in (model, standard):
            *_, last = net.stages(blobs(256)).values()
            features = net.global_pool(last)
            spans.append(float((features[-1] - features[0]).norm() / features[0].norm()))
    assert spans[0] < 0.1
    assert spans[1] > 0.3


def test_energy_pool_does_not_follow_the_size() -> None:
    """It takes kernels of 39 to 41 for every blob: the sum over a map says little of one object."""
    _, index = scaled_conv2d(blobs(), blob_detector(), pool="energy", return_indices=True)
    sizes = 7 + 2 * index[:, 0]
    assert int(sizes.max() - sizes.min()) <= 4


def test_kanazawa_and_xu_respond_alike_to_half_as_much_again() -> None:
    """From σ 2 to 3: kanazawa loses 3 %, xu 12 %, an ordinary convolution 31 %."""
    kanazawa, xu = KanazawaConv2d(1, 1, 7), XuConv2d(1, 1, 7, pool=True)
    with torch.no_grad():
        for layer in (kanazawa, xu):
            layer.weight.copy_(blob_detector())
        kanazawa.bias.zero_()
        x = blobs()[:2]
        responses = [largest(f(x)) for f in (kanazawa, xu)]
        ordinary = largest(F.conv2d(x, blob_detector()))
    losses = [1 - second / first for first, second in (*responses, ordinary)]
    assert losses[0] < 0.05
    assert losses[1] < 0.15
    assert losses[2] > 0.28


def test_ensemble_sees_a_halved_image_one_level_down() -> None:
    model = build("ensemble", 48)
    x = torch.rand(2, 1, 48, 48, generator=torch.Generator().manual_seed(0))
    halved = gaussian_pyramid(x, 2)[1]
    for stage in ("stage1", "stage2"):
        torch.testing.assert_close(
            model.stages(x)[f"level1.{stage}"], model.stages(halved)[f"level0.{stage}"]
        )


def test_spatial_transform_can_undo_a_rescaling() -> None:
    """Set by hand, its transformation enlarges an object by two: what it may learn."""
    model = build("spatial_transform", 32)
    large = blobs(32)[2:3]
    x = F.pad(F.avg_pool2d(large, 2), [8] * 4)
    with torch.no_grad():
        theta = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.5, 0.0])
        model.localisation[-1].bias.copy_(theta)  # type: ignore[index, union-attr]
        enlarged = model.stages(x)["transform"]
    assert (enlarged - large).abs().max() < 0.06
    assert (x - large).abs().max() > 0.3


def test_conv3d_sees_seven_neighbouring_scales() -> None:
    """Changing scale i of the stack changes outputs i − 6 to i and no others."""
    model = build("conv3d", 32)
    stack = model.stages(torch.rand(1, 1, 25, 25))["stage1"]
    changed = stack.clone()
    changed[:, :, 8] += 1
    conv2 = model.conv2
    assert isinstance(conv2, nn.Conv3d)
    different = (conv2(changed) != conv2(stack)).any(dim=4).any(dim=3).any(dim=1)[0]
    assert different.nonzero().flatten().tolist() == [
        i for i in range(len(different)) if 8 - 6 <= i <= 8
    ]
    assert math.prod(conv2.kernel_size) == 343


def test_scale_channels_without_padding_name_the_smallest_image_they_take() -> None:
    model = create_model("scale_channels", in_channels=1, num_classes=4, padding="valid")
    with pytest.raises(ShapeError, match="104"):
        model(torch.zeros(1, 1, 64, 64))

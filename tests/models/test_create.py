"""timm's words: pretrained weights, other classes and channels, patterns, torch.hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import ROOT, run_python

from equiscale import (
    create_model,
    list_models,
    list_weights,
    load_model,
    save_model,
    scale_channels,
)
from equiscale.core.errors import OptionError, UnknownNameError
from equiscale.models import Classifier

IMAGES = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))


def trained(name: str, **arguments: Any) -> Classifier:
    model = create_model(name, pretrained=True, **arguments).eval()
    assert isinstance(model, Classifier)
    return model


@pytest.mark.parametrize("name", list_models(pretrained=True))
def test_pretrained_is_the_shipped_model(name: str) -> None:
    """As it is, and on colour images of which it sees the mean of the channels."""
    expected = load_model(f"{name}/emoji/mid2rest")
    model = trained(name)
    assert model.class_names == expected.class_names
    colour = trained(name, in_chans=3)
    with torch.no_grad():
        logits = expected(IMAGES)
        assert torch.equal(model(IMAGES), logits)
        views = IMAGES * torch.tensor([0.5, 1.0, 1.5])[:, None, None]
        torch.testing.assert_close(colour(views), logits, rtol=1e-3, atol=1e-3)


def test_pretrained_with_other_classes_keeps_the_features(tmp_path: Path) -> None:
    whole = trained("pixel_pool")
    for model in (
        trained("pixel_pool", num_classes=5),
        load_model("pixel_pool/emoji/mid2rest", num_classes=5),
    ):
        assert isinstance(model, Classifier)
        assert torch.equal(model.forward_features(IMAGES), whole.forward_features(IMAGES))
        assert model(IMAGES).shape == (2, 5)
        assert model.class_names is None
        again = load_model(save_model(model, tmp_path / "model.safetensors"))
        assert torch.equal(again(IMAGES), model.eval()(IMAGES))
    assert len(load_model("pixel_pool/emoji/mid2rest", num_classes=36).class_names) == 36  # type: ignore[arg-type]


def test_options_and_pretrained() -> None:
    direct = trained("pixel_pool", method="direct")
    torch.testing.assert_close(direct(IMAGES), trained("pixel_pool")(IMAGES), rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match=r"do not fit: conv1\.weight is \[16, 1, 7, 7\]"):
        trained("pixel_pool", kernel_size=5)
    with pytest.raises(OptionError, match="no trained weights of 'pixel_pool_full'"):
        trained("pixel_pool_full")
    with pytest.raises(UnknownNameError, match="did you mean 'pixel_pool'"):
        trained("pixel_pol")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'standard'"):
        create_model("standrad")
    with pytest.raises(OptionError, match="pretrained must be True or False, got 'best'"):
        create_model("standard", pretrained="best")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="batch_norm must be True or False, got 'maybe'"):
        create_model("standard", num_classes=2, batch_norm="maybe")
    with pytest.raises(OptionError, match="widths must be a list of numbers, got 3"):
        create_model("standard", num_classes=2, widths=3)


def test_in_chans_is_in_channels() -> None:
    assert create_model("standard", in_chans=2, num_classes=3).in_channels == 2
    assert create_model("standard", in_chans=2, in_channels=2, num_classes=3).in_channels == 2
    assert create_model("standard", num_classes=3).in_channels == 3
    with pytest.raises(OptionError, match="both 1 and 3"):
        create_model("standard", in_channels=1, in_chans=3, num_classes=3)
    with pytest.raises(OptionError, match="needs num_classes"):
        create_model("standard")


def test_models_without_stages_are_named(tmp_path: Path) -> None:
    name = "torch.nn:Linear"
    options: Any = {"in_features": 4, "out_features": 3}
    with pytest.raises(OptionError, match="derive it from equiscale"):
        create_model(name, num_classes=3, features_only=True, **options)
    path = save_model(create_model(name, num_classes=3, **options), tmp_path / "m.safetensors")
    with pytest.raises(OptionError, match="replace its last layer"):
        load_model(path, num_classes=5, allow_import=True)
    with pytest.raises(OptionError, match="num_classes=0 needs a model with reset_classifier"):
        create_model(name, num_classes=0, **options)


def test_reset_classifier_keeps_the_precision() -> None:
    model = trained("standard").double()
    model.reset_classifier(3)
    assert model(IMAGES.double()).shape == (2, 3)
    with pytest.raises(OptionError, match="num_classes must be an integer"):
        model.reset_classifier(-1)


@pytest.mark.parametrize("name", list_models(pretrained=True))
def test_without_classes_a_model_returns_features(name: str, tmp_path: Path) -> None:
    whole, model = trained(name), trained(name, num_classes=0)
    expected = whole.forward_head(whole.forward_features(IMAGES), pre_logits=True)
    assert model.num_features == whole.num_features
    saved = save_model(model, tmp_path / "model.safetensors")
    for same in (model, load_model(saved), load_model(f"{name}/emoji/mid2rest", num_classes=0)):
        torch.testing.assert_close(same(IMAGES), expected)
    assert model.train()(IMAGES).shape == expected.shape
    model.reset_classifier(5)
    assert model(IMAGES).shape == (2, 5)


def test_scale_channels_of_a_model_without_a_classifier_average_its_features() -> None:
    wrapped = scale_channels(create_model("standard", in_chans=1, num_classes=0)).eval()
    assert torch.equal(wrapped(IMAGES), wrapped.view_logits(IMAGES).mean(1))


def test_out_indices_choose_from_the_maps() -> None:
    first, last = create_model("xu", in_chans=1, features_only=True)(IMAGES)
    maps = create_model("xu", in_chans=1, features_only=True, out_indices=(-1, 0))(IMAGES)
    assert [map_.shape for map_ in maps] == [last.shape, first.shape]
    (only,) = create_model("xu", in_chans=1, features_only=True, out_indices=1)(IMAGES)
    assert only.shape == last.shape  # as in timm, a number counts from the end
    for wrong in ([2], 3):
        with pytest.raises(OptionError, match="integers from -2 to 1, of the 2 stages"):
            create_model("xu", in_chans=1, features_only=True, out_indices=wrong)(IMAGES)
    with pytest.raises(OptionError, match="features_only=True"):
        create_model("xu", in_chans=1, num_classes=2, out_indices=[1])


def test_list_models_takes_patterns() -> None:
    assert list_models("*_pool") == ["pixel_pool", "slice_pool", "energy_pool"]
    assert list_models(["*_pool", "xu"], pretrained=True) == ["xu", "pixel_pool", "slice_pool"]
    assert list_models("") == list_models()  # timm's default
    assert (list_models("xu"), list_models("no*")) == (["xu"], [])
    shipped = {name.partition("/")[0] for name in list_weights()}
    assert set(list_models(pretrained=True)) == shipped


def test_torch_hub_loads_from_a_clone(tmp_path: Path) -> None:
    script = (
        "import torch\n"
        f"model = torch.hub.load({str(ROOT)!r}, 'pixel_pool', source='local', pretrained=True)\n"
        "print(model(torch.zeros(1, 1, 64, 64)).shape[1])\n"
    )
    assert run_python("-W", "error", "-c", script, cwd=tmp_path) == "36\n"

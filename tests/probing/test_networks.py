"""Networks of several makes, what they expect and which of their outputs are right."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.processes import run_python
from torch import Tensor, nn

from equiscale.core.errors import InputFileError, OptionError, UnknownNameError
from equiscale.probing.classes import (
    ClassMismatchError,
    imagenet_names,
    match_classes,
    output_names,
    read_class_names,
)
from equiscale.probing.networks import (
    Network,
    NetworkError,
    Preprocess,
    load_network,
    load_onnx,
)

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)


def test_preprocessing_is_normalisation_of_pixels_in_0_to_1() -> None:
    preprocess = Preprocess(8, (127 / 255,) * 3, (128 / 255,) * 3)
    expected = (IMAGES.transpose(0, 3, 1, 2).astype(float) - 127) / 128
    assert torch.allclose(preprocess(IMAGES), torch.from_numpy(expected).float(), atol=1e-6)


def test_preprocessing_comes_from_timm_or_a_processor() -> None:
    config = {"input_size": (3, 288, 288), "mean": (0.5,) * 3, "std": (0.2,) * 3, "crop_pct": 0.9}
    found = Preprocess.of(config)
    assert (found.canvas, found.mean, found.std) == (288, (0.5,) * 3, (0.2,) * 3)
    assert found.full_size == 320
    processor = SimpleNamespace(
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.25, 0.25, 0.25],
        size={"shortest_edge": 256},
        do_center_crop=True,
        crop_size={"height": 224, "width": 224},
    )
    found = Preprocess.of(processor)
    assert (found.canvas, found.full_size, found.std) == (224, 256, (0.25,) * 3)
    processor = SimpleNamespace(image_mean=[0.5], image_std=[0.5], size={"height": 28, "width": 28})
    assert Preprocess.of(processor).full_size == 28
    model: Any = nn.Flatten()
    model.pretrained_cfg = config
    assert Network.of("own", model).preprocess.canvas == 288
    assert "ImageNet" in Network.of("plain", nn.Flatten()).preprocess.origin


@pytest.mark.parametrize(
    ("config", "canvas", "full_size"),
    [
        (
            {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}},
            224,
            224,
        ),
        ({"size": 224, "feature_extractor_type": "ViTFeatureExtractor", "resample": 2}, 224, 224),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875, "do_resize": True}, 224, 256),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 384),
        (
            {
                "size": {"shortest_edge": 256},
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
            },
            224,
            256,
        ),
    ],
)
def test_preprocessing_comes_from_the_file_of_a_processor(
    tmp_path: Path, config: dict[str, Any], canvas: int, full_size: int
) -> None:
    config |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.25] * 3, "do_normalize": True}
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    for given in (tmp_path, str(path), config):
        found = Preprocess.of(given)
        assert (found.canvas, found.full_size, found.mean) == (canvas, full_size, (0.5, 0.4, 0.3))
    for content in ("{", "{}", "[]"):
        path.write_text(content)
        with pytest.raises(InputFileError, match=r"preprocessor_config\.json"):
            Preprocess.of(tmp_path)
    with pytest.raises(InputFileError, match="absent"):
        Preprocess.of(tmp_path / "absent")


@pytest.mark.parametrize(
    "given",
    [
        {"input_size": (3, 224, 160)},
        {"mean": (0.5, 0.5)},
        {"std": (0.0, 1.0, 1.0)},
        {"crop_pct": 1.5},
        {"input_size": (3, 224)},
        {"image_mean": 0.5, "image_std": 0.5, "size": 224},
        lambda image: image,
    ],
)
def test_impossible_preprocessing_is_refused(given: Any) -> None:
    with pytest.raises(OptionError):
        Preprocess.of(given)


def answering(answer: Any) -> Network:
    return Network("net", lambda images: answer(len(images)), Preprocess(8))


def test_logits_and_probabilities_and_outputs_of_hugging_face_are_understood() -> None:
    logits = torch.randn(5, 7)
    half = logits.softmax(1).bfloat16()
    for answer in (logits, logits.softmax(1), half, SimpleNamespace(logits=logits)):
        found = answering(lambda n, answer=answer: answer).predict(IMAGES)
        assert torch.allclose(
            found, logits.softmax(1).double(), atol=1e-2 if answer is half else 1e-6
        )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: torch.full((n, 3), torch.nan), "NaN or infinite logits for 5 of 5 images"),
        (lambda n: torch.zeros(n, 3, 4, 4), r"to \[5, 3, 4, 4\]; expected logits \[5, K\]"),
        (lambda n: torch.zeros(n, 1), "one output"),
        (lambda n: "cat", "to str"),
    ],
)
def test_answers_that_are_no_logits_are_refused(answer: Any, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        answering(answer).predict(IMAGES)


def test_a_module_runs_in_evaluation_mode_and_keeps_its_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 4))
    network = Network.of("net", model, Preprocess(8))
    assert torch.equal(network.predict(IMAGES), network.predict(IMAGES))
    assert model.training
    for dtype in (torch.float16, torch.float64):
        precise = Network.of("net", copy.deepcopy(model).to(dtype), Preprocess(8))
        assert torch.allclose(precise.predict(IMAGES), network.predict(IMAGES), atol=1e-3)
    grey = Network.of("grey", nn.Conv2d(1, 2, 3), Preprocess(8))
    with pytest.raises(NetworkError, match=r"network 'grey' fails on images \[5, 3, 8, 8\]"):
        grey.predict(IMAGES)


@pytest.mark.parametrize("batch", ["n", 2])
def test_an_onnx_file_answers_like_its_source(tmp_path: Path, batch: str | int) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    weight = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weight"], ["y"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [batch, 4])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    path = tmp_path / "net.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    network = load_network(f"onnx:{path}")
    assert network.preprocess.canvas == 8

    def source(images: Tensor) -> Tensor:
        return images.mean((2, 3)) @ torch.from_numpy(weight).T

    expected = Network("source", source, network.preprocess).predict(IMAGES)
    assert torch.allclose(network.predict(IMAGES), expected, atol=1e-5)


def test_networks_that_cannot_be_loaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="write my_module:load_model, timm:NAME or onnx:FILE"):
        load_network("resnet50")
    with pytest.raises(UnknownNameError, match="'no_such_module'"):
        load_network("no_such_module:load")
    with pytest.raises(OptionError, match=r"expected a callable .* got str"):
        load_network("os:getcwd")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(NetworkError, match="pip install timm torchvision"):
        load_network("timm:resnet18")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    for name in ("bad.onnx", "absent.onnx"):
        with pytest.raises(InputFileError, match=name):
            load_onnx(tmp_path / name)


TIMM = """
import tests.without_torchvision
import numpy as np, timm
create = timm.create_model
timm.create_model = lambda name, pretrained: create(name, pretrained=False)
from equiscale.probing import load_network
network = load_network("timm:resnet18.a1_in1k")
images = np.zeros((1, 224, 224, 3), np.uint8)
print(network.preprocess.full_size, network.predict(images).shape[1])
try:
    load_network("timm:resnet18x")
except LookupError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.needs("timm")
def test_a_network_of_timm_brings_its_preprocessing() -> None:
    lines = run_python("-c", TIMM).splitlines()
    assert lines[0] == "236 1000"  # crop_pct 0.95
    assert "resnet18x" in lines[1]


def test_classes_are_matched_by_name() -> None:
    names = ("tabby, tabby cat", "n02123394, Persian cat", "crane", "crane")
    right = match_classes(["Persian_cat", "CRANE", "n02123394"], names, 4, "net")
    assert right.int().tolist() == [[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    assert match_classes(["crane", "nobody"], names, 4, "net", ["crane"]).sum() == 2
    with pytest.raises(ClassMismatchError, match=r"no class 'tabi' .did you mean 'tabby'"):
        match_classes(["tabi"], names, 4, "net")
    with pytest.raises(ClassMismatchError, match=r"'persian' .did you mean 'persian cat'"):
        match_classes(["persian"], names, 4, "net")


def test_classes_without_names_are_matched_in_order_if_there_are_as_many() -> None:
    assert match_classes(["a", "b"], None, 2, "net").int().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ClassMismatchError, match="10 outputs and the pictures have 2 classes"):
        match_classes(["a", "b"], None, 10, "net")
    with pytest.raises(ClassMismatchError, match="3 outputs, but 2 class names"):
        output_names(Network("net", nn.Identity(), class_names=("a", "b")), 3)


def test_class_names_come_from_a_file_or_the_network(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("cat\ndog\n")
    assert read_class_names(path) == ("cat", "dog")
    path.write_text("cat\n\ndog\n")
    with pytest.raises(InputFileError, match="one class per line"):
        read_class_names(path)
    model: Any = nn.Flatten()
    model.config = SimpleNamespace(id2label={1: "dog", 0: "cat"})
    assert Network.of("net", model).class_names == ("cat", "dog")


@pytest.mark.needs("timm")
def test_the_names_of_imagenet_come_from_timm() -> None:
    names = imagenet_names()
    assert names is not None
    assert (len(names), names[0]) == (1000, "n01440764, tench, Tinca tinca")
    right = match_classes(["tench", "Granny_Smith", "n02504458"], names, 1000, "net")
    assert right.nonzero()[:, 1].tolist() == [0, 948, 386]

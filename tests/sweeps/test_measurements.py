from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equiscale import Scenario, SConv2d, Split, StirDataset, load_dataset
from equiscale.metrics import equivariance_error, scale_selection
from equiscale.runs.key import RunKey
from equiscale.runs.record import Measurement
from equiscale.sweeps.measurements import (
    MEASUREMENTS,
    collect_measurements,
    measure_equivariance,
    measure_predictions,
    measure_scale_selection,
    run_measurement,
    size_pairs,
)


class Stages(nn.Module):
    """Feature maps of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(2, 1, 7, 7, generator=generator))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        bright = (x.mean((1, 2, 3), keepdim=True) > 0.18).float()
        return {
            "valid": nn.functional.conv2d(x, self.weight),
            "large": x * bright,
            "pooled": nn.functional.max_pool2d(x, 2),
        }

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) * 300 % 36 - torch.arange(36)


class BrokenStages(Stages):
    def stages(self, x: Tensor) -> dict[str, Tensor]:
        raise RuntimeError("not today")


@pytest.fixture(scope="module")
def dataset(emoji_file: Path) -> StirDataset:
    return load_dataset(emoji_file)


def test_a_model_whose_own_code_fails_keeps_its_run(dataset: StirDataset) -> None:
    key = RunKey("broken", "emoji", dataset.content_hash, Scenario.MID_TO_REST, 1)
    found = collect_measurements(BrokenStages(), dataset, key)
    assert found.keys() >= {"cost", "equivariance"}
    assert found["equivariance"].values == {"error": "RuntimeError: not today"}
    assert found["cost"].values["parameters"] == 2 * 7 * 7
    assert set(found["cost"].timings) == {"inference_seconds", "peak_memory_bytes"}


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ({"zeros": 0.5}, "TypeError: expected a Measurement or None, got dict"),
        (Measurement({"zeros": torch.ones(())}), "TypeError: Object of type Tensor is not JSON"),
        (Measurement({"zeros": float("nan")}), "ValueError: Out of range float values"),
        (Measurement(arrays={"zeros": [0]}), "TypeError: array 'zeros' must be a numpy array"),  # type: ignore[dict-item]
    ],
)
def test_a_measurement_that_cannot_be_stored_keeps_the_run(
    dataset: StirDataset, monkeypatch: pytest.MonkeyPatch, returned: Any, error: str
) -> None:
    monkeypatch.setitem(MEASUREMENTS._entries, "zeros", lambda model, dataset: returned)
    found = run_measurement("zeros", Stages(), dataset)
    assert found is not None
    assert found.values["error"].startswith(error)


def test_predictions_are_those_of_the_model(dataset: StirDataset) -> None:
    found = measure_predictions(Stages(), dataset)
    test = dataset.select(Split.TEST)
    assert found.predicted.tolist() == Stages()(test.images).argmax(1).tolist()
    assert found.labels.tolist() == test.labels.tolist()
    assert found.object_sizes.tolist() == test.object_sizes.tolist()
    assert found.predicted.dtype == np.uint8


def test_equivariance_of_every_pair_object_and_stage(dataset: StirDataset) -> None:
    model = Stages()
    found = measure_equivariance(model, dataset, batch_size=7)
    assert found is not None
    assert found.values["stages"] == ["valid", "large"]
    assert "32×32" in found.values["skipped"]["pooled"]
    for index, pair in enumerate(size_pairs()):
        a, b = (dataset.select(Split.TEST, [size]) for size in pair)
        maps_a, maps_b = (model.stages(part.images)["valid"].detach() for part in (a, b))
        boxes_a, boxes_b = (torch.cat([p.positions, p.object_sizes[:, None]], 1) for p in (a, b))
        expected = equivariance_error(maps_a, maps_b, boxes_a, boxes_b, canvas=64).numpy()
        assert found.arrays["valid"][index] == pytest.approx(expected, rel=1e-4)
        name = f"valid_{pair[0]}_{pair[1]}"
        assert found.values[name] == pytest.approx(expected.mean(), rel=1e-5)
    assert found.values["large_17_32"] is None  # small objects are black: always x/0
    assert found.values["large_17_32_undefined"] == 36
    undefined = np.count_nonzero(~np.isfinite(found.arrays["large"]))
    assert found.values["undefined"] == undefined


def test_selection_keeps_the_pixels_of_the_example(dataset: StirDataset) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(SConv2d(1, 3, 33, kernel_sizes=(33, 41, 49), pool="pixel"))
    found = measure_scale_selection(model, dataset, batch_size=32)
    assert found is not None
    assert found.values["layers"] == {"0": "pixel"}
    example = found.values["example"]
    assert dataset.class_names[example] == "smile"
    images = dataset.select(Split.TEST, [50]).images
    chosen = scale_selection(model, images)["0"].numpy()
    row = list(found.arrays["object_sizes"]).index(50)
    assert np.array_equal(found.arrays["chosen.0"][row], chosen)
    assert found.arrays["maps.0"].shape == (48, 3, 32, 32)
    assert np.isin(chosen[example], found.arrays["maps.0"][row]).all()


def test_what_does_not_apply_is_none(dataset: StirDataset) -> None:
    model = nn.Conv2d(1, 2, 3)
    assert measure_equivariance(model, dataset) is None
    assert measure_scale_selection(model, dataset) is None

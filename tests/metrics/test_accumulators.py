"""The accumulating classes equal the functions on all batches at once, in one and two processes."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.metrics.two_processes import accumulate
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.metrics import accuracy_by_bucket, accuracy_by_size, equivariance_error, usable_range

ROOT = Path(__file__).parents[2]
BASES = ["plain", pytest.param("torchmetrics", marks=pytest.mark.needs("torchmetrics"))]


@pytest.fixture(params=BASES)
def classes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the classes, with the base class that this environment would choose."""
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "torchmetrics", None)
    name = "equiscale.metrics.accumulators"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module: ModuleType = __import__(name, fromlist=["UsableRange"])
    assert module.UsableRange.__mro__[2].__module__.startswith(
        "torchmetrics" if request.param == "torchmetrics" else "equiscale"
    )
    yield module
    del sys.modules[name]


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for count in (40, 7, 0, 1):
        labels = torch.randint(3, (count,), generator=generator)
        logits = torch.randn(count, 3, generator=generator) + torch.nn.functional.one_hot(labels, 3)
        yield logits, labels, torch.randint(17, 65, (count,), generator=generator)


def joined() -> tuple[Tensor, Tensor, Tensor]:
    logits, labels, object_sizes = zip(*batches(), strict=True)
    return torch.cat(logits), torch.cat(labels), torch.cat(object_sizes)


def test_accuracy_by_bucket(classes: Any) -> None:
    metric = classes.AccuracyByBucket((17, 30, 50.5))
    expected = accuracy_by_bucket(*joined(), (17, 30, 50.5)).accuracy.tolist()
    for _ in range(2):
        for batch in batches():
            metric.update(*batch)
        values = metric.compute()
        names = ["below_17", "17_to_30", "30_to_50.5", "from_50.5"]
        assert list(values) == [f"accuracy_{name}" for name in names]
        assert [float(value) for value in values.values()] == pytest.approx(expected, nan_ok=True)
        metric.reset()
    for edges, message in (((), "list of numbers"), ((49, 33), "ascending")):
        with pytest.raises(OptionError, match=message):
            classes.AccuracyByBucket(edges)
    with pytest.raises(OptionError, match="got NaN"):
        metric.update(torch.zeros(1), torch.zeros(1), torch.tensor([math.nan]))


@pytest.mark.needs("torchmetrics")
def test_options_of_torchmetrics_are_passed_on() -> None:
    from equiscale.metrics import AccuracyByBucket, EquivarianceError, UsableRange

    option = {"sync_on_compute": False}
    for metric in (AccuracyByBucket((33,), **option), UsableRange(64, **option)):
        assert not metric.sync_on_compute
    assert not EquivarianceError(**option).sync_on_compute


@pytest.mark.needs("torchmetrics")
def test_two_bucketings_in_a_collection_stay_apart() -> None:
    from torchmetrics import MetricCollection

    from equiscale.metrics import AccuracyByBucket

    both = MetricCollection({"a": AccuracyByBucket((33,)), "b": AccuracyByBucket((49,))})
    for size, prediction in ((64, 1), (40, 0), (20, 1)):  # after the first, their counts agree
        both.update(torch.tensor([prediction]), torch.ones(1), torch.tensor([size]))
    assert {name: float(value) for name, value in both.compute().items()} == {
        "accuracy_below_33": 1,
        "accuracy_from_33": 0.5,
        "accuracy_below_49": 0.5,
        "accuracy_from_49": 1,
    }


def test_usable_range(classes: Any) -> None:
    metric = classes.UsableRange(64, keep=0.7)
    with pytest.raises(OptionError, match="max_size must be an integer of at least 1"):
        classes.UsableRange(-1)
    with pytest.raises(OptionError, match="keep must lie in"):
        classes.UsableRange(64, keep=2)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert math.isnan(metric(nothing, nothing, nothing)["usable_from"])
    for batch in batches():
        metric.update(*batch)
    sizes, accuracy, _ = accuracy_by_size(*joined())
    first, last = usable_range(sizes, accuracy, keep=0.7)
    values = copy.deepcopy(metric).compute()
    assert (float(values["usable_from"]), float(values["usable_to"])) == (first, last)
    assert float(values["best_accuracy"]) == float(accuracy.max())
    with pytest.raises(OptionError, match=r"must lie in 0…64 \(max_size\), got 65…65"):
        metric.update(torch.zeros(1), torch.zeros(1), torch.tensor([65]))


def test_equivariance_error(classes: Any) -> None:
    metric = classes.EquivarianceError()
    maps = torch.rand(3, 2, 5, 5, requires_grad=True)
    metric.update(maps, 2 * maps)
    metric.update(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4))
    whole, half = torch.rand(1, 1, 20, 20), torch.rand(1, 1, 20, 20)
    boxes = torch.tensor([[0, 0, 12]]), torch.tensor([[5, 5, 8]])
    metric.update(whole, half, *boxes, canvas=20)
    last = float(equivariance_error(whole, half, *boxes, canvas=20))
    values = metric.compute()
    assert float(values["equivariance_error"]) == pytest.approx((3 * 0.25 + last) / 4)
    assert int(values["equivariance_undefined"]) == 2


def test_calling_a_metric_returns_the_batch_and_accumulates(classes: Any) -> None:
    metric = classes.AccuracyByBucket((30,))
    for batch in batches():
        values = [float(value) for value in metric(*batch).values()]
        own = accuracy_by_bucket(*batch, (30,)).accuracy.tolist()
        assert values == pytest.approx(own, nan_ok=True)
    total = accuracy_by_bucket(*joined(), (30,)).accuracy.tolist()
    assert [float(value) for value in metric.compute().values()] == pytest.approx(total)


def test_states_follow_the_device_and_stay_out_of_checkpoints(classes: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.add_module("metric", classes.UsableRange(64))
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    assert model.to("meta").metric.counts.device.type == "meta"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_two_processes_compute_what_one_does(base: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    script = [sys.executable, str(Path(__file__).with_name("two_processes.py")), base]
    started = [
        subprocess.Popen(
            [*script, rank, str(tmp_path / "meeting")],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    expected = accumulate()
    assert expected["equivariance_undefined"] == 3
    for output in outputs:
        assert json.loads(output) == pytest.approx(expected, rel=1e-6)

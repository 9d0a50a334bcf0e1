from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.runs.conftest import make_record

from equiscale.core.files import content_hash
from equiscale.runs.errors import CorruptRecordError, NewerRecordError
from equiscale.runs.record import History, RunRecord


def test_round_trip() -> None:
    record = make_record()
    assert make_record().to_files() == record.to_files()
    again = RunRecord.from_files(record.to_files())
    assert again.science_hash == record.science_hash
    assert again.to_files() == record.to_files()
    errors = again.measurements["equivariance"].arrays["errors"]
    np.testing.assert_array_equal(errors, record.measurements["equivariance"].arrays["errors"])


def test_accuracies_follow_from_predictions() -> None:
    record = make_record()
    per_size = record.predictions.accuracy_per_size()
    assert list(per_size) == list(range(17, 65))
    assert all(accuracy == (size % 2 == 0) for size, accuracy in per_size.items())
    assert record.test_accuracy == 0.5
    assert record.predictions.accuracy((64, 17)) == 0.5


def test_surroundings_are_apart_from_the_science() -> None:
    record = make_record()
    elsewhere = dataclasses.replace(record, timings={"epoch_seconds": [9.0]}, environment={})
    assert elsewhere.science_hash == record.science_hash
    other = dataclasses.replace(record, history=History((1.0,), (0.5,)))
    assert other.science_hash != record.science_hash


def test_first_best_epoch() -> None:
    assert History((1.0, 1.0, 1.0), (0.5, 0.75, 0.75)).best_epoch == 2
    assert History().best_epoch == 0
    assert History((1.0, 1.0), (0.1, 0.9), (1.0, math.inf)).best_epoch == 2
    assert History((1.0,) * 3, (0.9,) * 3, (1.0, math.nan, 0.5)).best_epoch == 3


@pytest.mark.parametrize("name", ["record.json", "arrays.npz", "weights.safetensors"])
def test_any_damage_is_noticed(name: str) -> None:
    files = make_record().to_files()
    data = files[name]
    middle = data.index(b"0.75") if name == "record.json" else len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    nested = b"[" * 10**5 + b"]" * 10**5
    for damaged in (flipped, data[:middle], b"", b"[]", b"{}", nested):
        with pytest.raises(CorruptRecordError, match=r"checksum|not JSON"):
            RunRecord.from_files({**files, name: damaged})


def sign(content: dict[str, Any]) -> bytes:
    """Return `record.json` as a version that knows more would have written it."""
    content.pop("checksum")
    return json.dumps({**content, "checksum": content_hash(content)}).encode()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("format", 2),
        ("science.key.protocol", "paper-2"),
        ("science.key.new_field", 1),
        ("science.key.scenario", "tiny2huge"),
        ("science.history.train_loss", [1.0]),
        ("science.history.valid_accuracy", "high"),
        ("science.measurements.cost", 3),
        ("surroundings.timings", []),
        ("surroundings.timings.epoch_seconds", ["fast"]),
        ("surroundings.timings.run_seconds", None),
        ("surroundings.environment", "here"),
        ("science", None),
    ],
)
def test_an_intact_record_that_cannot_be_read_is_of_a_newer_version(
    place: str, value: object
) -> None:
    files = make_record().to_files()
    content = json.loads(files["record.json"])
    *path, last = place.split(".")
    part = content
    for name in path:
        part = part[name]
    part[last] = value
    with pytest.raises(NewerRecordError, match=r"newer version .* pip install --upgrade"):
        RunRecord.from_files({**files, "record.json": sign(content)})


@pytest.mark.parametrize("name", ["predicted", "labels", "object_sizes"])
def test_odd_predictions_are_of_a_newer_version(name: str) -> None:
    record = make_record()
    files = record.to_files()
    array = getattr(record.predictions, name)
    for odd in (array.astype(float), array[:-1], array[None], array[:0]):
        packed = io.BytesIO()
        np.savez(packed, **{**record.arrays, f"predictions.{name}": odd})
        content = json.loads(files["record.json"])
        content["files"]["arrays.npz"] = hashlib.sha256(packed.getvalue()).hexdigest()
        changed = {"record.json": sign(content), "arrays.npz": packed.getvalue()}
        with pytest.raises(NewerRecordError, match="predictions"):
            RunRecord.from_files({**files, **changed})


def test_no_pickle_goes_in() -> None:
    record = make_record()
    objects = dataclasses.replace(record.predictions, predicted=np.array([{}], dtype=object))
    with pytest.raises(TypeError, match="Python objects"):
        dataclasses.replace(record, predictions=objects).to_files()


def test_the_order_of_metadata_in_the_weights_is_not_science() -> None:
    """safetensors writes it in an order that changes from call to call."""
    weights = {"w": np.ones(3, np.float32)}
    packed = [
        safetensors.numpy.save(weights, metadata={str(n): "x" for n in range(8)}) for _ in range(20)
    ]
    assert len(set(packed)) > 1
    record = make_record()
    hashes = {dataclasses.replace(record, weights=data).science_hash for data in packed}
    assert len(hashes) == 1
    other = safetensors.numpy.save({"w": np.zeros(3, np.float32)}, metadata={"1": "x"})
    assert dataclasses.replace(record, weights=other).science_hash not in hashes

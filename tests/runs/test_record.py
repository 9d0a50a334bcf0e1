from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from equiscale.runs.errors import CorruptRecordError, NewerRecordError
from equiscale.runs.key import RunKey
from equiscale.runs.record import History, RunRecord, read_record

MakeKey = Callable[..., RunKey]
MakeRecord = Callable[..., RunRecord]


def write(record: RunRecord, directory: Path) -> Path:
    directory.mkdir()
    for name, data in record.to_files().items():
        (directory / name).write_bytes(data)
    return directory


def test_round_trip(make_record: MakeRecord, tmp_path: Path) -> None:
    record = make_record()
    again = read_record(write(record, tmp_path / "r"))
    assert again.science_hash == record.science_hash
    assert again.to_files() == record.to_files()
    assert again.timings == record.timings
    assert again.environment == record.environment
    errors = again.measurements["equivariance"].arrays["errors"]
    np.testing.assert_array_equal(errors, record.measurements["equivariance"].arrays["errors"])


def test_the_same_record_has_the_same_bytes(make_record: MakeRecord) -> None:
    assert make_record().to_files() == make_record().to_files()


def test_accuracies_follow_from_predictions(make_record: MakeRecord) -> None:
    record = make_record()
    per_size = record.predictions.accuracy_per_size()
    assert list(per_size) == list(range(17, 65))
    assert all(accuracy == (size % 2 == 0) for size, accuracy in per_size.items())
    assert record.test_accuracy == 0.5
    assert record.predictions.accuracy((64, 17)) == 0.5


def test_surroundings_are_apart_from_the_science(make_record: MakeRecord) -> None:
    record = make_record()
    elsewhere = dataclasses.replace(record, timings={"epoch_seconds": [9.0]}, environment={})
    assert elsewhere.science_hash == record.science_hash
    other = dataclasses.replace(record, history=History((1.0,), (0.5,)))
    assert other.science_hash != record.science_hash


def test_first_best_epoch() -> None:
    assert History((1.0, 1.0, 1.0), (0.5, 0.75, 0.75)).best_epoch == 2
    assert History().best_epoch == 0


@pytest.mark.parametrize("name", ["record.json", "arrays.npz", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_any_damage_is_noticed(
    make_record: MakeRecord, tmp_path: Path, name: str, damage: str
) -> None:
    path = write(make_record(), tmp_path / "r") / name
    data = bytearray(path.read_bytes())
    middle = data.index(b"0.75") if name == "record.json" else len(data) // 2
    data[middle] ^= 1
    if damage == "flip":
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()
    with pytest.raises(CorruptRecordError, match=r"checksum|not JSON"):
        read_record(path.parent)


def test_a_newer_record_is_not_corrupt(make_record: MakeRecord, tmp_path: Path) -> None:
    path = write(make_record(), tmp_path / "r") / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(NewerRecordError, match=r"record format 2, .* pip install --upgrade"):
        read_record(path.parent)


def test_no_pickle_goes_in_or_comes_out(make_record: MakeRecord) -> None:
    record = make_record()
    objects = dataclasses.replace(
        record.predictions,
        predicted=np.array([{}], dtype=object),
    )
    with pytest.raises(TypeError, match="Python objects"):
        dataclasses.replace(record, predictions=objects).to_files()
    for data in record.to_files().values():
        with pytest.raises((pickle.UnpicklingError, EOFError, KeyError, ValueError)):
            pickle.loads(data)


def test_the_order_of_metadata_in_the_weights_is_not_science(make_record: MakeRecord) -> None:
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

"""The record of a run: its key, its results, and the machine it ran on.

A record is a directory named by its key's hash, with `record.json` (scalars, checksums),
`arrays.npz` (predictions and other arrays; never pickled) and, if kept, `weights.safetensors`.
What is science and what depends on the machine (timings, environment) stand apart, so that two
records of the same key can be compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from equiscale.core.files import canonical_json, content_hash, parse_json
from equiscale.runs.errors import CorruptRecordError, NewerRecordError
from equiscale.runs.key import RunKey

RECORD_FORMAT = 1
RECORD_FILE = "record.json"
ARRAYS_FILE = "arrays.npz"
WEIGHTS_FILE = "weights.safetensors"

LARGEST_SIZE = 2**16 - 1
"""Largest object size that a record may hold."""

IntArray = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class History:
    """One value per epoch; epochs count from 1.

    Args:
        train_loss: Mean cross-entropy over the training set, as the epoch went.
        valid_accuracy: Accuracy on the validation set after the epoch, in [0, 1].
        valid_loss: Mean cross-entropy over the validation set, if it breaks ties.
    """

    train_loss: tuple[float, ...] = ()
    valid_accuracy: tuple[float, ...] = ()
    valid_loss: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.train_loss)

    @property
    def best_epoch(self) -> int:
        """The first epoch with the highest validation accuracy, or 0 before the first epoch.

        If there are validation losses, the lowest of them decides between equal accuracies.
        """
        if not self.valid_accuracy:
            return 0
        best = np.flatnonzero(np.asarray(self.valid_accuracy) == max(self.valid_accuracy))
        losses = np.nan_to_num(self.valid_loss, nan=np.inf)[best] if self.valid_loss else best
        return int(best[np.argmin(losses)]) + 1

    @property
    def best_valid_accuracy(self) -> float:
        """The highest validation accuracy, or 0 before the first epoch."""
        return max(self.valid_accuracy, default=0.0)

    def extended(
        self, train_loss: float, valid_accuracy: float, valid_loss: float | None = None
    ) -> History:
        """Return the history with one more epoch."""
        return History(
            (*self.train_loss, train_loss),
            (*self.valid_accuracy, valid_accuracy),
            self.valid_loss if valid_loss is None else (*self.valid_loss, valid_loss),
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """`[N]` each: predicted class, true class and object size of every test image.

    All object sizes are there, also those that the scenario does not test, so that any
    accuracy can be computed without the model.
    """

    predicted: IntArray
    labels: IntArray
    object_sizes: IntArray

    def accuracy(self, sizes: tuple[int, ...] | None = None) -> float:
        """Return the accuracy on the test images of the given object sizes, or on all."""
        hits, counts = self._counts
        chosen = slice(None) if sizes is None else [size for size in sizes if size < len(counts)]
        return float(hits[chosen].sum() / counts[chosen].sum())

    def accuracy_per_size(self) -> dict[int, float]:
        """Return the accuracy at each object size, ascending."""
        hits, counts = self._counts
        return {int(size): float(hits[size] / counts[size]) for size in np.flatnonzero(counts)}

    @cached_property
    def _counts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """`[largest size + 1]` each: images recognised and images, at each object size."""
        hits = self.predicted == self.labels
        return np.bincount(self.object_sizes, weights=hits), np.bincount(self.object_sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The object sizes of the dataset, ascending."""
        return tuple(map(int, np.flatnonzero(self._counts[1])))


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one measurement adds to a record.

    Args:
        values: Plain JSON; the same for the same key on the same machine.
        arrays: Arrays; the same for the same key on the same machine.
        timings: Plain JSON that depends on the machine and the moment: seconds, bytes.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The scientific truth of a finished run.

    Args:
        key: The scientific inputs.
        history: Loss and validation accuracy of every epoch.
        predictions: Predictions of the best weights for the test split at all object sizes.
        measurements: What else was measured, by name.
        timings: Seconds per epoch, in all, …; depends on the machine.
        environment: Library versions, device, threads, commit of the product.
        weights: Bytes of a safetensors file with the best weights, if they are kept.
    """

    key: RunKey
    history: History
    predictions: Predictions
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    weights: bytes | None = None

    @property
    def test_accuracy(self) -> float:
        """Accuracy on the scenario's test sizes."""
        return self.predictions.accuracy(self.key.scenario.test_sizes(self.predictions.sizes))

    @property
    def valid_accuracy(self) -> float:
        """Validation accuracy of the weights that were tested."""
        return self.history.best_valid_accuracy

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array of the record by the name that it has in the file."""
        arrays: dict[str, NDArray[Any]] = {
            "predictions.predicted": self.predictions.predicted,
            "predictions.labels": self.predictions.labels,
            "predictions.object_sizes": self.predictions.object_sizes,
        }
        for name, measurement in self.measurements.items():
            arrays |= {f"{name}.{item}": array for item, array in measurement.arrays.items()}
        return arrays

    @cached_property
    def science_hash(self) -> str:
        """A hash of everything but timings and environment: equal for equal results."""
        digests = {name: _array_hash(array) for name, array in self.arrays.items()}
        weights = None if self.weights is None else _weights_hash(self.weights)
        return content_hash({"science": self._science(), "arrays": digests, "weights": weights})

    def _science(self) -> dict[str, Any]:
        return {
            "key": self.key.to_json(),
            "history": {
                name: list(values) for name, values in vars(self.history).items() if values
            },
            "best_epoch": self.history.best_epoch,
            "valid_accuracy": self.valid_accuracy,
            "test_accuracy": self.test_accuracy,
            "measurements": {name: dict(m.values) for name, m in self.measurements.items()},
        }

    def _surroundings(self) -> dict[str, Any]:
        measured = {name: dict(m.timings) for name, m in self.measurements.items() if m.timings}
        return {
            "timings": dict(self.timings),
            "measurement_timings": measured,
            "environment": dict(self.environment),
        }

    def to_files(self) -> dict[str, bytes]:
        """Return the record's files by name; the same record gives the same bytes."""
        files = {ARRAYS_FILE: _pack_arrays(self.arrays)}
        if self.weights is not None:
            files[WEIGHTS_FILE] = self.weights
        content = {
            "format": RECORD_FORMAT,
            "run_id": self.key.run_id,
            "science_hash": self.science_hash,
            "science": self._science(),
            "surroundings": self._surroundings(),
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        }
        content["checksum"] = content_hash(content)
        return {RECORD_FILE: _pretty(content), **files}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], source: str = "record") -> RunRecord:
        """Return the record that `to_files` packed, after checking every checksum.

        Raises:
            CorruptRecordError: A file is missing, or not the one that was written.
            NewerRecordError: The files are intact, but this version cannot read them.
        """
        content = _check_content(files, source)
        try:
            record = _unpack(content, files)
            _check_record(record)
        except Exception as error:  # foreign content can fail anywhere, but it is intact
            raise NewerRecordError.for_record(source, error) from error
        return record


def read_record(directory: Path) -> RunRecord:
    """Read a record from its directory; see `RunRecord.from_files`."""
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
    return RunRecord.from_files(files, source=str(directory))


def _check_content(files: Mapping[str, bytes], source: str) -> dict[str, Any]:
    """Return what `record.json` holds, after checking that no file was damaged."""
    try:
        content = parse_json(files.get(RECORD_FILE, b""))
    except ValueError as error:
        raise CorruptRecordError(f"{source}: {RECORD_FILE} is not JSON: {error}") from error
    if isinstance(content, dict) and content.get("format") in range(RECORD_FORMAT + 1, 1000):
        raise NewerRecordError.for_record(source, f"record format {content['format']}")
    try:
        signed = content.pop("checksum") == content_hash(content)
        hashes = dict(content["files"])
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        signed, hashes = False, {}
    if not signed:
        raise CorruptRecordError(f"{source}: the checksum of {RECORD_FILE} does not match")
    for name, expected in hashes.items():
        if hashlib.sha256(files.get(name, b"")).hexdigest() != expected:
            raise CorruptRecordError(f"{source}: the checksum of {name} does not match")
    return cast(dict[str, Any], content)


def _unpack(content: Mapping[str, Any], files: Mapping[str, bytes]) -> RunRecord:
    science, surroundings = content["science"], content["surroundings"]
    arrays = _unpack_arrays(files[ARRAYS_FILE])
    names = [item.name for item in dataclasses.fields(Predictions)]
    predictions = {name: arrays[f"predictions.{name}"] for name in names}
    return RunRecord(
        key=RunKey.from_json(science["key"]),
        history=History(**{name: tuple(values) for name, values in science["history"].items()}),
        predictions=Predictions(**predictions),
        measurements=_unpack_measurements(science, surroundings, arrays),
        timings=surroundings["timings"],
        environment=surroundings["environment"],
        weights=files.get(WEIGHTS_FILE),
    )


def _check_record(record: RunRecord) -> None:
    """Raise `ValueError` unless everything in a record has the type that its readers expect."""
    found = record.predictions
    lengths = {array.shape for array in (found.predicted, found.labels, found.object_sizes)}
    if len(lengths) != 1 or len(lengths.pop()) != 1:
        raise ValueError("predictions that are not one number per image")
    if not all(np.issubdtype(array.dtype, np.integer) for array in vars(found).values()):
        raise ValueError("predictions that are not whole numbers")
    if not 1 <= found.object_sizes.min() <= found.object_sizes.max() <= LARGEST_SIZE:
        raise ValueError("predictions at impossible object sizes")
    record.key.scenario.train_sizes(found.sizes)  # raises if the sizes are not those of a scenario
    losses, accuracies, valid_losses = vars(record.history).values()
    aligned = len(losses) == len(accuracies) and len(valid_losses) in (0, len(losses))
    if not aligned or not _are_numbers([*losses, *accuracies, *valid_losses]):
        raise ValueError("a history that is not one loss and accuracy per epoch")
    parts = [part for m in record.measurements.values() for part in (m.values, m.timings)]
    if not all(isinstance(part, dict) for part in (record.timings, record.environment, *parts)):
        raise ValueError("timings, environment or measurements without names")
    seconds = [record.timings.get(name, []) for name in ("epoch_seconds", "train_seconds")]
    if not all(isinstance(values, list) and _are_numbers(values) for values in seconds):
        raise ValueError("seconds per epoch that are not numbers")
    if not _are_numbers([record.timings.get("run_seconds", 0.0)]):
        raise ValueError("seconds of the run that are not a number")


def _are_numbers(values: Iterable[object]) -> bool:
    return all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values
    )


def _unpack_measurements(
    science: Mapping[str, Any], surroundings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, Measurement]:
    timings = surroundings["measurement_timings"]
    return {
        name: Measurement(values, _OwnArrays(arrays, f"{name}."), timings.get(name, {}))
        for name, values in science["measurements"].items()
    }


def _pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects, which a record never does")
    np.savez_compressed(buffer, **cast(dict[str, Any], dict(arrays)))
    return buffer.getvalue()


def _unpack_arrays(data: bytes) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a file, each unpacked when it is asked for."""
    file: Mapping[str, NDArray[Any]] = np.load(io.BytesIO(data), allow_pickle=False)
    return file


class _OwnArrays(Mapping[str, NDArray[Any]]):
    """Those arrays of a file whose names start with a prefix, under the rest of their names.

    A study has thousands of records, and a table of them needs few of their arrays.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return (name[start:] for name in self._arrays if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _array_hash(array: NDArray[Any]) -> str:
    header = canonical_json([array.dtype.str, list(array.shape)]).encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


def _weights_hash(data: bytes) -> str:
    """Return a hash of a safetensors file that does not depend on the order of its metadata."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = canonical_json(json.loads(data[8:start])).encode()
    return hashlib.sha256(header + data[start:]).hexdigest()


def _pretty(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"

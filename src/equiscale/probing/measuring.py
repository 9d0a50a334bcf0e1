"""Run networks on objects at every size; finished parts survive an interruption."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equiscale import __version__
from equiscale.build.photos import PhotoObject
from equiscale.core.errors import SourceError, StorageError
from equiscale.core.files import content_hash
from equiscale.probing.networks import Network, NetworkError
from equiscale.probing.pictures import Pictures, Pixels, Renderer, Rendering

NOT_SHOWN = -1
_TOLERANCE = 1e-3  # of a confidence, between two runs of the same network

Progress = Callable[[int, int], None]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What a network answered.

    Attributes:
        predicted: `[objects, sizes, places]`, the class with the largest probability; `NOT_SHOWN`
            where there was no image.
        confidence: `[objects, sizes, places]`, its probability; NaN where there was no image.
        milliseconds: `[sizes]` per image, median over batches.
    """

    predicted: Integers = field(repr=False)
    confidence: Floats = field(repr=False)
    milliseconds: Floats


@dataclass(frozen=True)
class Subject:
    """A network and how pictures are rendered for it."""

    network: Network
    rendering: Rendering


@dataclass(frozen=True)
class _Part:
    """What one network answered about one block of objects."""

    predicted: list[list[list[int]]]  # [objects, sizes, places]
    confidence: list[list[list[float]]]
    milliseconds: list[float]  # [sizes], NaN if all objects are damaged

    def is_like(self, other: _Part) -> bool:
        """Whether the same network may have given both."""
        pair = np.array(self.confidence), np.array(other.confidence)
        return self.predicted == other.predicted and bool(
            np.allclose(*pair, atol=_TOLERANCE, equal_nan=True)
        )


def measure(
    subjects: Sequence[Subject],
    pictures: Pictures,
    batch_size: int,
    progress: Progress,
    resume: Path | None = None,
) -> list[Answers]:
    """Run every network on every object, a block of objects at a time.

    A block is decoded once. Networks with the same rendering share its images. Finished blocks are
    kept in the file `resume`, which another call with the same arguments reuses. It is removed when
    this one ends, unless it is interrupted.
    """
    places = max(subject.rendering.places for subject in subjects)
    step = max(1, batch_size // places)
    blocks = [pictures.objects[i : i + step] for i in range(0, len(pictures.objects), step)]
    renderers = {s.rendering: Renderer(pictures, s.rendering) for s in subjects}
    parts: list[list[_Part]] = []
    with _Journal(resume, _request_key(subjects, pictures, step)) as journal:
        for index, block in enumerate(blocks):
            progress(index * step, len(pictures.objects))
            run = partial(_measure_block, subjects, renderers, block)
            parts.append(journal.measure(index, run))
        progress(len(pictures.objects), len(pictures.objects))
    if np.isnan([part[0].milliseconds for part in parts]).all():
        raise SourceError(pictures.source, "damaged pictures only", "pictures")
    return [_join([part[n] for part in parts]) for n in range(len(subjects))]


def _measure_block(
    subjects: Sequence[Subject],
    renderers: dict[Rendering, Renderer],
    block: Sequence[PhotoObject],
) -> list[_Part]:
    images = {
        rendering: [renderer.render(item) for item in block]
        for rendering, renderer in renderers.items()
    }
    return [_ask(subject, block, images[subject.rendering]) for subject in subjects]


def _ask(
    subject: Subject, block: Sequence[PhotoObject], rendered: Sequence[list[Pixels] | None]
) -> _Part:
    """Run a network on a block, one object size after the other."""
    sizes = subject.rendering.sizes
    rows = [row for row, item in enumerate(rendered) if item is not None]
    predicted = np.full((len(block), len(sizes), subject.rendering.places), NOT_SHOWN)
    confidence = np.full(predicted.shape, np.nan)
    milliseconds = np.full(len(sizes), np.nan)
    for column, size in enumerate(sizes if rows else ()):
        batch = np.concatenate([item[column] for item in rendered if item is not None])
        start = time.perf_counter()
        try:
            found = subject.network.predict(batch)
        except NetworkError as error:
            first = block[rows[0]].photo.path
            raise NetworkError(f"{error} (object size {size}, from {first} on)") from error
        milliseconds[column] = 1000 * (time.perf_counter() - start) / len(batch)
        values, classes = found.reshape(len(rows), -1, found.shape[1]).max(dim=2)
        predicted[rows, column, : classes.shape[1]] = classes
        confidence[rows, column, : classes.shape[1]] = values.numpy().round(6)
    return _Part(predicted.tolist(), confidence.tolist(), milliseconds.tolist())


def _join(parts: Sequence[_Part]) -> Answers:
    """Put the blocks of a network together."""
    times = np.array([p.milliseconds for p in parts])
    times = times[~np.isnan(times).any(axis=1)]
    if len(times) > 1:
        times = times[1:]  # the first call of a network sets things up
    return Answers(
        predicted=np.concatenate([part.predicted for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        milliseconds=np.median(times, axis=0),
    )


def _request_key(subjects: Sequence[Subject], pictures: Pictures, step: int) -> str:
    """Return a hash of all that decides the answers, but the networks' weights."""
    files = {item.photo.path: item.photo.path.stat() for item in pictures.objects}
    return content_hash(
        {
            "version": __version__,
            "step": step,
            "networks": [[s.network.name, asdict(s.network.preprocess)] for s in subjects],
            "renderings": [asdict(s.rendering) for s in subjects],
            "objects": [[item.key, asdict(item.box)] for item in pictures.objects],
            "files": [[str(path), s.st_size, s.st_mtime_ns] for path, s in files.items()],
        }
    )


class _Journal:
    """Finished blocks, one line of JSON each; a line that was cut off is ignored.

    The first block is always measured. If its answers differ from those in the file, the network
    has other weights than before, and nothing in the file is reused.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self._found: dict[int, list[_Part]] = dict(self._read()) if path else {}

    def measure(self, index: int, run: Callable[[], list[_Part]]) -> list[_Part]:
        """Return what was measured of a block before, or measure and keep it."""
        if index and index in self._found:
            return self._found[index]
        parts = run()
        self._add(index, parts)
        return parts

    def _add(self, index: int, parts: list[_Part]) -> None:
        if self._path is None:
            return
        if index == 0:
            before = self._found.get(0)
            if before and all(a.is_like(b) for a, b in zip(before, parts, strict=True)):
                return
            self._found = {}
            self._append("w", {"key": self._key})
        self._append("a", {"block": index, "parts": [asdict(part) for part in parts]})

    def _append(self, mode: str, value: object) -> None:
        assert self._path is not None
        text = json.dumps(value)  # NaN stays NaN, which JSON proper has no word for
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(f"\n{text}\n" if mode == "a" else f"{text}\n")
        except OSError as error:
            raise StorageError.from_os_error("write", self._path, error) from error

    def _read(self) -> Iterator[tuple[int, list[_Part]]]:
        assert self._path is not None
        with contextlib.suppress(OSError, ValueError):
            lines = self._path.read_text(encoding="utf-8").split("\n")
            if json.loads(lines[0]) != {"key": self._key}:
                return
            for line in lines[1:]:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    yield entry["block"], [_Part(**part) for part in entry["parts"]]

    def __enter__(self) -> _Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        if self._path is not None and not interrupted:
            self._path.unlink(missing_ok=True)

"""Run networks on objects at every size; finished parts survive an interruption."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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

    predicted: list[list[list[int]]]
    confidence: list[list[list[float]]]
    milliseconds: list[float | None]

    def is_like(self, other: _Part) -> bool:
        """Whether the same network may have given both."""
        first, second = (_pad(part.confidence, np.nan) for part in (self, other))
        same = first.shape == second.shape and self.predicted == other.predicted
        return same and bool(np.allclose(first, second, atol=_TOLERANCE, equal_nan=True))


def measure(
    subjects: Sequence[Subject],
    pictures: Pictures,
    batch_size: int,
    progress: Progress,
    resume: Path | None = None,
) -> list[Answers]:
    """Run every network on every object, a block of objects at a time.

    A block is decoded once. Networks with the same rendering share its images.

    Args:
        subjects: Networks and renderings.
        pictures: The objects.
        batch_size: At most so many images in a forward pass.
        progress: Called as `progress(done, total)`, counting objects.
        resume: File for the finished blocks, which another call with the same arguments reuses. It
            is removed when this one ends, unless it is interrupted.
    """
    places = max(subject.rendering.places for subject in subjects)
    step = max(1, batch_size // places)
    blocks = [pictures.objects[i : i + step] for i in range(0, len(pictures.objects), step)]
    renderers = {s.rendering: Renderer(pictures, s.rendering) for s in subjects}
    parts: list[list[_Part]] = []
    with _Journal(resume, _request_key(subjects, pictures, step)) as journal:
        for index, block in enumerate(blocks):
            progress(index * step, len(pictures.objects))
            known = journal.find(index) if index else None
            found = known or _measure_block(subjects, renderers, block)
            if known is None:
                journal.add(index, found)
            parts.append(found)
        progress(len(pictures.objects), len(pictures.objects))
    if all(time is None for part in parts for time in part[0].milliseconds):
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
    shown = [item for item in rendered if item is not None]
    sizes = subject.rendering.sizes
    predicted = [[[NOT_SHOWN]] * len(sizes) for _ in rendered]
    confidence = [[[np.nan]] * len(sizes) for _ in rendered]
    milliseconds: list[float | None] = [None] * len(sizes)
    rows = [row for row, item in enumerate(rendered) if item is not None]
    for column, size in enumerate(sizes):
        if not shown:
            break
        batch = np.concatenate([item[column] for item in shown])
        start = time.perf_counter()
        try:
            found = subject.network.predict(batch)
        except NetworkError as error:
            first = block[rows[0]].photo.path
            raise NetworkError(f"{error} (object size {size}, from {first} on)") from error
        milliseconds[column] = 1000 * (time.perf_counter() - start) / len(batch)
        best = found.max(dim=1)
        count = subject.rendering.count_places(size)
        for row, classes, values in zip(
            rows,
            best.indices.reshape(-1, count).tolist(),
            best.values.reshape(-1, count).tolist(),
            strict=True,
        ):
            predicted[row][column] = classes
            confidence[row][column] = [round(value, 6) for value in values]
    return _Part(predicted, confidence, milliseconds)


def _join(parts: Sequence[_Part]) -> Answers:
    """Put the blocks of a network together."""
    times = np.array([p.milliseconds for p in parts if None not in p.milliseconds], float)
    if len(times) > 1:
        times = times[1:]  # the first call of a network sets things up
    return Answers(
        predicted=_pad([row for part in parts for row in part.predicted], NOT_SHOWN).astype(int),
        confidence=_pad([row for part in parts for row in part.confidence], np.nan),
        milliseconds=np.median(times, axis=0),
    )


def _pad(rows: list[list[list[Any]]], nothing: float) -> Floats:
    """`-> [objects, sizes, places]`, where some sizes have fewer places."""
    places = max(len(cell) for row in rows for cell in row)
    return np.array([[cell + [nothing] * (places - len(cell)) for cell in row] for row in rows])


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

    def find(self, index: int) -> list[_Part] | None:
        """Return what was measured of a block before."""
        return self._found.get(index)

    def add(self, index: int, parts: list[_Part]) -> None:
        """Keep what was measured of a block."""
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

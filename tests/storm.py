"""Try to lose a record: kill, fill, move and damage, and count what came of it.

`make storm MINUTES=30`, or `python tests/storm.py --minutes 30 --seed 7`. Runs are tiny and start
by `fork`, so that an idle core makes several kills and hundreds of damaged files per second. The
exit code is 1 if a record was lost, doubled or damaged, or if an error was not equiscale's own.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "sweeps")]
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - the first optimiser of a process would load it

from equiscale import create_model, load_dataset, load_model, save_model  # noqa: E402
from equiscale.build.annotations import read_annotations  # noqa: E402
from equiscale.core.errors import EquiscaleError  # noqa: E402
from equiscale.core.files import content_hash  # noqa: E402
from equiscale.core.protocol import TrainingProtocol  # noqa: E402
from equiscale.core.spec import Scenario  # noqa: E402
from equiscale.data.schema import METADATA_KEYS, StirArrays, write_arrays  # noqa: E402
from equiscale.runs.key import RunKey  # noqa: E402
from equiscale.runs.record import RunRecord  # noqa: E402
from equiscale.runs.store import RunState, RunStore  # noqa: E402
from equiscale.runs.table import measured_values, run_row  # noqa: E402
from equiscale.sweeps import job  # noqa: E402
from equiscale.sweeps.grid import ModelChoice, Sweep  # noqa: E402
from equiscale.sweeps.launch import InProcessLauncher  # noqa: E402
from equiscale.sweeps.measurements import MEASUREMENTS  # noqa: E402
from equiscale.sweeps.request import describe_dataset, run_sweep  # noqa: E402
from equiscale.sweeps.sweep_file import read_sweep_file  # noqa: E402
from equiscale.training.checkpoint import CHECKPOINT_FILE  # noqa: E402

COLUMNS = ("tries", "lost", "doubled", "damaged", "tracebacks")
SLOW_SECONDS = 60.0
"""A reader that needs longer for a damaged file counts as a traceback."""


@dataclass
class Tally:
    """What was tried and what came of it, by kind."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, column: str, note: str = "", count: int = 1) -> None:
        self.counts.setdefault(kind, Counter())[column] += count
        if note and len(self.notes) < 20:
            self.notes.append(f"{kind}: {column}: {note}")

    def merge(self, other: Tally) -> None:
        for kind, counts in other.counts.items():
            self.counts.setdefault(kind, Counter()).update(counts)
        self.notes += other.notes

    @property
    def is_clean(self) -> bool:
        return not any(c[name] for c in self.counts.values() for name in COLUMNS[1:])

    def __str__(self) -> str:
        lines = [f"{'kind':24}" + "".join(f"{name:>12}" for name in COLUMNS)]
        for kind, counts in self.counts.items():
            lines.append(f"{kind:24}" + "".join(f"{counts[name]:12,}" for name in COLUMNS))
        return "\n".join([*lines, *self.notes])


class World:
    """A dataset, a key and the record that an undisturbed run of it gives."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.data = root / "noise.npz"
        images = np.random.default_rng(0).integers(0, 256, (3, 48, 2, 1, 64, 64), np.uint8)
        positions = np.zeros((3, 48, 2, 1, 2), np.int64)
        texts = {key: f"the {key}" for key in METADATA_KEYS}
        write_arrays(self.data, StirArrays.assemble(images, positions, ("cat", "dog"), texts))
        self.dataset = describe_dataset(str(self.data), load_dataset(self.data))
        self.sweep = Sweep(
            (ModelChoice("tiny_models:TinyNet"),),
            (self.dataset,),
            (Scenario.MID_TO_REST,),
            seeds=(1, 2),
            protocol=TrainingProtocol(max_epochs=4, reshuffle=True, augmentation="shift"),
        )
        self.key = next(self.sweep.cells())
        self.reference: dict[str, str] = {}
        store, settings = self.store("reference")
        started = time.monotonic()
        for seed in self.sweep.seeds:
            key = replace(self.key, seed=seed)
            compute(key, store, settings)
            self.reference[key.run_id] = store.load(key.run_id).science_hash
        self.seconds = (time.monotonic() - started) / len(self.sweep.seeds)
        self.files = store.load(self.key.run_id).to_files()
        self.inputs = make_inputs(self)

    def store(self, name: str) -> tuple[RunStore, job.JobSettings]:
        runs = self.root / name
        shutil.rmtree(runs, ignore_errors=True)
        sources = {self.dataset.content_hash: str(self.data)}
        settings = job.JobSettings(str(runs), sources, "cpu", 1, checkpoint_seconds=0)
        return RunStore(runs), settings


@contextlib.contextmanager
def forked(action: Callable[[], object]) -> Iterator[int]:
    """Run an action in a child; it is killed and waited for at the end of the block."""
    if (child := os.fork()) == 0:
        code = 0
        try:
            action()
        except EquiscaleError:
            code = 3
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            os._exit(code)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def end(child: int) -> int | None:
    """Wait for a child; return its exit code, or None if it was killed."""
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def kill(child: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return end(child)


def compute(key: RunKey, store: RunStore, settings: job.JobSettings, epochs: int = 0) -> int | None:
    """Compute a run in a child, all of it or some epochs; return the exit code.

    A process that has trained cannot fork one that trains: autograd does not survive it.
    """
    seen: list[int] = []
    watcher = job.Watcher(lambda p: seen.append(p.epoch), lambda: 0 < epochs == len(seen))
    with forked(lambda: job.run_job(key, store, settings, watcher)) as child:
        return end(child)


def logged(store: RunStore) -> None:
    """Note every record that is published from now on, to find doubled work."""
    publish = RunStore.publish

    def publish_and_note(self: RunStore, record: RunRecord, lease: Any) -> None:
        publish(self, record, lease)
        with (store.root / "published.log").open("a") as file:
            file.write(f"{record.key.run_id}\n")

    RunStore.publish = publish_and_note  # type: ignore[method-assign]


def check(kind: str, world: World, store: RunStore, tally: Tally) -> None:
    """Compare the records of a store with those of undisturbed runs."""
    for run_id in store.run_ids(RunState.DONE):
        try:
            found = store.load(run_id).science_hash
        except EquiscaleError as error:
            tally.add(kind, "lost", str(error))
        else:
            if found != world.reference[run_id]:
                tally.add(kind, "damaged", f"{run_id} differs from an undisturbed run")
    for name in store.quarantined() + store.run_ids(RunState.FAILED):
        tally.add(kind, "lost", f"{name} failed or was quarantined")
    log = store.root / "published.log"
    if log.exists():
        counts = Counter(log.read_text().split())
        tally.add(kind, "doubled", count=sum(count - 1 for count in counts.values()))


# --- Kills ----------------------------------------------------------------------------------------


def kill_workers(world: World, tally: Tally) -> None:
    """Kill the worker of one run until it gets through."""
    store, settings = world.store("killed")

    def work() -> None:
        logged(store)
        job.run_job(world.key, store, settings)

    kill_until_done("worker killed", world, store, tally, [work], world.seconds / 2)


def kill_sweeps(world: World, tally: Tally) -> None:
    """Kill two sweeps over the same runs until one of them gets through."""
    store, settings = world.store("sweeps")

    def sweep() -> None:
        logged(store)
        run_sweep(world.sweep, store, InProcessLauncher(), settings)

    kill_until_done("sweeps killed", world, store, tally, [sweep, sweep], 2 * world.seconds)


def kill_until_done(
    kind: str,
    world: World,
    store: RunStore,
    tally: Tally,
    actions: Sequence[Callable[[], None]],
    longest: float,
) -> None:
    """Start actions and kill each after a while, until there is a record per action."""
    while len(store.run_ids(RunState.DONE)) < len(actions):
        with contextlib.ExitStack() as stack:
            for child in [stack.enter_context(forked(action)) for action in actions]:
                time.sleep(world.chance.uniform(0, longest))
                code = kill(child)
                tally.add(kind, "tries", count=code is None)
                tally.add(kind, "tracebacks", count=code == 1)
        longest *= 1.02
    check(kind, world, store, tally)


# --- Disks ----------------------------------------------------------------------------------------


def fill_disk(world: World, tally: Tally) -> None:
    """Let files end at a random size; afterwards the run must get through."""
    kind = "disk full"
    store, settings = world.store("full")

    def work(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        job.run_job(world.key, store, settings)

    largest = 4 * max(len(data) for data in world.files.values())  # of a checkpoint
    while store.state(world.key.run_id) is not RunState.DONE:
        with forked(functools.partial(work, world.chance.randrange(2 * largest))) as child:
            code = end(child)
        tally.add(kind, "tries")
        if code == 1:
            tally.add(kind, "tracebacks", "a full disk was not explained")
    check(kind, world, store, tally)


def move_directory(world: World, tally: Tally) -> None:
    """Rename the runs directory under a worker, back again, and let another finish."""
    kind = "directory moved"
    store, settings = world.store("moved")
    away = world.root / "away"
    shutil.rmtree(away, ignore_errors=True)
    with forked(lambda: job.run_job(world.key, store, settings)) as child:
        time.sleep(world.chance.uniform(0, world.seconds))
        if store.root.exists():
            store.root.rename(away)
        time.sleep(world.chance.uniform(0, world.seconds / 2))
        kill(child)
    tally.add(kind, "tries")
    if away.exists():
        shutil.rmtree(store.root, ignore_errors=True)
        away.rename(store.root)
    finish(kind, world, store, settings, tally)


def finish(
    kind: str, world: World, store: RunStore, settings: job.JobSettings, tally: Tally
) -> None:
    """Let the run get through, and look at its record."""
    tally.add(kind, "tracebacks", count=compute(world.key, store, settings) == 1)
    if store.state(world.key.run_id) is not RunState.DONE:
        tally.add(kind, "lost", "the run was not finished")
    check(kind, world, store, tally)


# --- Damaged files --------------------------------------------------------------------------------

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**400, 1e308, "", "x" * 300, "../../etc/passwd", [], {}, [[]], {"": {}}
)  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a file with a few bytes flipped, cut, doubled, overwritten or inserted."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 3))):
        place = chance.randrange(len(changed) + 1)
        length = chance.choice((1, 2, 8, 64, 4096))
        kind = chance.randrange(6)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[place : place + length]
        elif kind == 2:
            changed[place:place] = changed[place : place + length]
        elif kind == 3:
            changed[place : place + length] = chance.randbytes(length)
        elif kind == 4:
            changed[place:place] = b"[" * length * 16 if length > 64 else b"9" * length * 8
        else:
            del changed[place:]
    return bytes(changed)


def mutate_json(value: Any, chance: random.Random) -> Any:
    """Replace, drop or add one part of a JSON value, anywhere in it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        if chance.random() < 0.1:
            return {n: v for n, v in value.items() if n != name}
        return {**value, name: mutate_json(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        return [*value[:place], mutate_json(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD_VALUES)


@contextlib.contextmanager
def watched(kind: str, tally: Tally) -> Iterator[None]:
    """Count a try; an error of equiscale's is as it should be, any other is not."""
    tally.add(kind, "tries")
    started = time.monotonic()
    try:
        yield
    except EquiscaleError:
        pass
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        tally.add(kind, "tracebacks", f"{error!r:.100} in {place.name} ({place.lineno})")
    if time.monotonic() - started > SLOW_SECONDS:
        tally.add(kind, "tracebacks", "took too long")


def damage_records(world: World, tally: Tally) -> None:
    reference = world.reference[world.key.run_id]
    for _ in range(100):
        name = world.chance.choice(sorted(world.files))
        changed = {**world.files, name: mutate(world.files[name], world.chance)}
        with watched("record", tally):
            if RunRecord.from_files(changed).science_hash != reference:
                tally.add("record", "damaged", f"a changed {name} was accepted")
    for _ in range(100):
        content = mutate_json(json.loads(world.files["record.json"]), world.chance)
        if isinstance(content, dict):
            content.pop("checksum", None)
            content["checksum"] = content_hash(content)
        changed = {**world.files, "record.json": json.dumps(content).encode()}
        with watched("record, signed", tally):
            record = RunRecord.from_files(changed)
            run_row(record)
            list(measured_values(record))


def damage_checkpoints(world: World, tally: Tally) -> None:
    kind = "checkpoint"
    store, settings = world.store("checkpoints")
    compute(world.key, store, settings, epochs=2)
    path = store.working_directory(world.key.run_id) / CHECKPOINT_FILE
    path.write_bytes(mutate(path.read_bytes(), world.chance))
    tally.add(kind, "tries")
    finish(kind, world, store, settings, tally)


def damage_notes(world: World, tally: Tally) -> None:
    """Damage what lies beside a running and a failed run; readers must not care."""
    store, _ = world.store("notes")
    lease = store.lease(world.key)
    assert lease is not None
    lease.report(epoch=1)
    for path in sorted(p for p in lease.directory.iterdir() if p.is_file()):
        original = path.read_bytes()
        for _ in range(30):
            path.write_bytes(mutate(original, world.chance))
            with watched("notes of a run", tally):
                store.key(world.key.run_id)
                store.owner(world.key.run_id)
                store.progress(world.key.run_id)
                store.state(world.key.run_id)
        path.write_bytes(original)


def damage_readers(world: World, tally: Tally) -> None:
    for name, (path, read) in world.inputs.items():
        original = path.read_bytes()
        for _ in range(5 if name == "dataset" else 30):
            if path.suffix == ".json" and world.chance.random() < 0.5:
                changed = mutate_json(json.loads(original), world.chance)
                path.write_bytes(json.dumps(changed).encode())
            else:
                path.write_bytes(mutate(original, world.chance))
            with watched(name, tally):
                read()
        path.write_bytes(original)


def make_inputs(world: World) -> dict[str, tuple[Path, Callable[[], object]]]:
    """Return one file of every kind that people exchange, and what reads it."""
    data = world.root / "inputs" / "noise.npz"
    data.parent.mkdir()
    shutil.copy(world.data, data)
    torch.manual_seed(0)
    model = save_model(
        create_model("standard", in_channels=1, num_classes=2), data.parent / "m.safetensors"
    )
    sweep = data.parent / "sweep.toml"
    sweep.write_text(
        'models = ["standard", "xu"]\ndata = "emoji"\nseeds = 3\nlearning_rates = [1e-3, 0.01]\n'
        "[training]\nbatch_size = 32\nreshuffle = true\n[[options.xu]]\nscales = 3\n"
    )
    inputs: dict[str, tuple[Path, Callable[[], object]]] = {
        "dataset": (data, lambda: load_dataset(data)),
        "model file": (model, lambda: load_model(model)),
        "sweep file": (sweep, lambda: read_sweep_file(sweep)),
    }
    with contextlib.suppress(ImportError):
        inputs |= make_sources(data.parent)
    return inputs


def make_sources(root: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    from PIL import Image

    coco, yolo = root / "coco", root / "yolo"
    for folder in (coco, yolo / "images", yolo / "labels"):
        folder.mkdir(parents=True)
    for path in (coco / "a.png", yolo / "images" / "a.png"):
        Image.new("RGB", (40, 30), "red").save(path)
    boxes, labels, classes = coco / "boxes.json", yolo / "labels" / "a.txt", yolo / "classes.txt"
    annotation = {"image_id": 1, "bbox": [1, 2, 20, 20]}
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [{"id": n, "category_id": n, **annotation} for n in (1, 2)],
    }
    boxes.write_text(json.dumps(content))
    classes.write_text("cat\ndog\n")
    labels.write_text("0 0.5 0.5 0.4 0.4\n1 0.3 0.3 0.2 0.2\n")
    return {
        "COCO boxes": (boxes, lambda: read_annotations(coco)),
        "COCO picture": (coco / "a.png", lambda: read_annotations(coco)),
        "YOLO boxes": (labels, lambda: read_annotations(yolo)),
        "YOLO classes": (classes, lambda: read_annotations(yolo)),
    }


# --- All together ---------------------------------------------------------------------------------

STORMS = (
    *(kill_workers, kill_workers, kill_sweeps) * 2,
    fill_disk,
    move_directory,
    damage_checkpoints,
    damage_records,
    damage_notes,
    damage_readers,
)


def storm(seconds: float, seed: int) -> Tally:
    """Do everything in turn until the time is up."""
    tally = Tally()
    logging.disable()
    MEASUREMENTS.clear()
    with tempfile.TemporaryDirectory(prefix="storm-") as directory:
        world = World(Path(directory), random.Random(seed))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for kind in STORMS:
                kind(world, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.jobs} at once, {given.minutes:g} minutes", flush=True)
    total = Tally()
    seeds = range(given.seed, given.seed + given.jobs)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork")) as pool:
        for tally in pool.map(functools.partial(storm, 60 * given.minutes), seeds):
            total.merge(tally)
    print(total)
    return 0 if total.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

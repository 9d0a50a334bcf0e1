"""Try to lose a record: kill, fill, move and damage, and count what came of it.

`make storm MINUTES=30`, or `python -m tests.storm --minutes 30 --seed 7`. With `--state FILE` the
counts are added to those of earlier storms, also if this one is killed. Runs are tiny and start by
`fork`, so that a core makes several kills and dozens of damaged files per second. The exit code is
1 if a record was lost, doubled or damaged, or if an error was not equiscale's own.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimiser of a process would load it
from tests.mutations import add_odd_records, mutate, mutate_json
from tests.runs.crash_publish import die_at
from tests.sweeps import tiny_models
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale import create_model, load_dataset, load_model, save_model
from equiscale.build.annotations import read_annotations
from equiscale.cli import main as equiscale
from equiscale.core.errors import EquiscaleError
from equiscale.core.files import write_json
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.data.schema import METADATA_KEYS, StirArrays, write_arrays
from equiscale.runs.record import RunRecord
from equiscale.runs.store import Failure, RunState, RunStore
from equiscale.sweeps import job, launch_local, request, worker
from equiscale.sweeps.environment import describe_environment
from equiscale.sweeps.grid import ModelChoice, Sweep
from equiscale.sweeps.launch import InProcessLauncher, Launcher
from equiscale.sweeps.measurements import MEASUREMENTS
from equiscale.sweeps.request import describe_dataset, run_sweep
from equiscale.sweeps.sweep_file import read_sweep_file
from equiscale.training.checkpoint import CHECKPOINT_FILE, Checkpointer, save_checkpoint
from equiscale.training.loop import Trainer

COLUMNS = ("tries", "lost", "doubled", "damaged", "tracebacks")
LONGEST_SECONDS = 3600
"""A part that takes longer hangs. It needs seconds, but a busy machine may let it wait."""

LARGEST_BYTES = 4 * 2**30
"""Memory that a reader of a damaged file may take."""

FILE_OPERATIONS = 100
"""About as many as a run makes, from its lease to its record."""


@dataclass
class Tally:
    """What was tried and what came of it, by kind."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, column: str, note: str = "", count: int = 1) -> None:
        self.counts.setdefault(kind, Counter())[column] += count
        if note and len(self.notes) < 50:
            self.notes.append(f"{kind}: {column}: {note}")

    def merge(self, other: dict[str, Any]) -> None:
        for kind, counts in other["counts"].items():
            self.counts.setdefault(kind, Counter()).update(counts)
        self.notes += other["notes"]

    def add_to(self, path: Path) -> Tally:
        """Add this to the tally in a file, which other processes may do too; return the sum."""
        total = Tally()
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                total.merge(json.loads(path.read_text(encoding="utf-8")))
            total.merge(vars(self))
            write_json(path, vars(total))
        return total

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
        self.dataset = job._load_dataset(str(self.data))  # the forks have it in their cache
        describe_environment(torch.device("cpu"))  # and the answers of git
        described = describe_dataset(str(self.data), self.dataset)
        self.sweep = Sweep(
            (ModelChoice(f"{tiny_models.__name__}:TinyNet"),),
            (described,),
            (Scenario.MID_TO_REST,),
            seeds=(1, 2),
            protocol=TrainingProtocol(max_epochs=4, reshuffle=True, augmentation="shift"),
        )
        self.key = next(self.sweep.cells())
        self.reference: dict[str, str] = {}
        store, settings = self.store("reference")
        before = os.times()
        for seed in self.sweep.seeds:
            key = replace(self.key, seed=seed)
            run_apart(functools.partial(job.run_job, key, store, settings))
            self.reference[key.run_id] = store.load(key.run_id).science_hash
        after = os.times()  # not a clock's: the machine may be busy now and idle later
        spent = after.children_user - before.children_user
        spent += after.children_system - before.children_system
        self.seconds = spent / len(self.sweep.seeds)
        self.files = store.load(self.key.run_id).to_files()
        self.inputs = make_inputs(root / "inputs", self.data)

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
        kill(child)


def end(child: int) -> int | None:
    """Wait for a child; return its exit code, or None if it was killed."""
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def run_apart(action: Callable[[], object]) -> int | None:
    """Run an action in a child; return its exit code, or None if it was killed."""
    with forked(action) as child:
        return end(child)


def kill(child: int) -> int | None:
    """Kill a child unless it has ended; return its exit code, or None if it was killed."""
    try:
        found, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:  # waited for already
        return 0
    if found:
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    os.kill(child, signal.SIGKILL)
    return end(child)


def log_published(store: RunStore) -> None:
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


def killed(action: Callable[[], object], seconds: float, world: World) -> int | None:
    """Kill a child at a random time or file operation; return its exit code if it was faster."""
    operation = world.chance.randrange(1, FILE_OPERATIONS) if world.chance.random() < 0.5 else 0

    def act() -> None:
        if operation:
            die_at(operation)
        action()

    with forked(act) as child:
        if operation:
            return end(child)
        time.sleep(world.chance.uniform(0, seconds))
        return kill(child)


def note_kill(kind: str, code: int | None, tally: Tally) -> None:
    tally.add(kind, "tries", count=code is None)
    tally.add(kind, "tracebacks", count=code == 1)


def growing(seconds: float, store: RunStore, runs: int) -> Iterator[float]:
    """Yield ever longer times until so many runs are done."""
    while len(store.run_ids(RunState.DONE)) < runs:
        yield seconds
        seconds *= 1.01


def kill_workers(world: World, tally: Tally) -> None:
    """Kill the worker of one run until it gets through."""
    kind = "worker killed"
    store, settings = world.store("killed")

    def work() -> None:
        log_published(store)
        job.run_job(world.key, store, settings)

    for longest in growing(world.seconds / 2, store, 1):
        note_kill(kind, killed(work, longest, world), tally)
    check(kind, world, store, tally)


def sweep_of(world: World, store: RunStore, settings: job.JobSettings, launcher: Launcher) -> None:
    log_published(store)
    run_sweep(world.sweep, store, launcher, settings)


def kill_sweeps(world: World, tally: Tally) -> None:
    """Kill two sweeps over the same runs until one of them gets through."""
    kind = "sweeps killed"
    store, settings = world.store("sweeps")
    sweep = functools.partial(sweep_of, world, store, settings, InProcessLauncher())
    for longest in growing(world.seconds / 2, store, len(world.sweep.seeds)):
        with forked(sweep) as other:
            note_kill(kind, killed(sweep, longest, world), tally)
            time.sleep(world.chance.uniform(0, longest))
            note_kill(kind, kill(other), tally)
    check(kind, world, store, tally)


class ForkedWorker:
    """Stands for `subprocess.Popen` of a worker; a fork has imported torch already."""

    def __init__(self, work: bytes) -> None:
        reading, writing = os.pipe()
        self.pid, self.returncode = os.fork(), None
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                os.close(writing)
                sys.stdin = os.fdopen(reading)
                code = worker.main()
            finally:
                os._exit(code)
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb", 0)
        self.stdin.write(work)

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)  # type: ignore[assignment]
        return self.returncode

    def wait(self, seconds: float | None = None) -> None:
        self.poll(0)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    kill = terminate


def kill_parents(world: World, tally: Tally) -> None:
    """Kill a sweep or one of its two workers; the workers end with their parent."""
    kind = "parent or child killed"
    store, settings = world.store("parents")
    workers: set[int] = set()

    def start(_: object, work: bytes, index: int, count: int) -> Any:
        return launch_local._Worker(ForkedWorker(work), io.BytesIO())  # type: ignore[arg-type]

    vars(launch_local)["MAX_DEATHS"] = 10**9
    launch_local.LocalLauncher._start = start  # type: ignore[assignment, method-assign]
    sweep = functools.partial(sweep_of, world, store, settings, launch_local.LocalLauncher(2, 1))
    for longest in growing(world.seconds, store, len(world.sweep.seeds)):
        with forked(sweep) as parent:
            for _ in range(3):
                time.sleep(world.chance.uniform(0, longest / 3))
                owners = [store.owner(key.run_id) for key in world.sweep.cells()]
                living = [owner.pid for owner in owners if owner and not owner.is_dead]
                workers |= set(living)
                if living and world.chance.random() < 0.6:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(world.chance.choice(living), signal.SIGKILL)
                        tally.add(kind, "tries")
            note_kill(kind, kill(parent), tally)
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    if time.monotonic() >= until:
        tally.add(kind, "tracebacks", "a worker outlived its parent")
    check(kind, world, store, tally)


# --- Disks ----------------------------------------------------------------------------------------


def note_end(kind: str, code: int | None, tally: Tally) -> None:
    tally.add(kind, "tries")
    tally.add(kind, "tracebacks", count=code not in (0, 3))


def limit_files(world: World, tally: Tally) -> None:
    """Let files end at a random size; afterwards the run must get through."""
    kind = "files cut short"
    store, settings = world.store("limited")

    def work(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        job.run_job(world.key, store, settings)

    largest = 8 * max(len(data) for data in world.files.values())  # of two checkpoints
    while store.state(world.key.run_id) is not RunState.DONE:
        note_end(kind, run_apart(functools.partial(work, world.chance.randrange(largest))), tally)
        for run_id in store.run_ids(RunState.FAILED):
            tally.add(kind, "lost", f"a full disk counts as a failure of {run_id}")
        store.forget_failures(store.run_ids(RunState.FAILED))
    check(kind, world, store, tally)


def fill_disk(world: World, tally: Tally) -> None:
    """Compute a run on a file system of random size, which grows until it gets through."""
    kind = "disk full"
    store, settings = world.store("full")
    store.root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(store.root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return  # only the superuser may
    try:
        size = 16
        while store.state(world.key.run_id) is not RunState.DONE:
            option = f"remount,size={size}k"
            subprocess.run(["mount", "-o", option, str(store.root)], check=True)
            note_end(kind, run_apart(lambda: job.run_job(world.key, store, settings)), tally)
            size += world.chance.randrange(4, 64)
        check(kind, world, store, tally)
    finally:
        subprocess.run(["umount", "--lazy", str(store.root)], check=True)


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
    code = run_apart(lambda: job.run_job(world.key, store, settings))
    tally.add(kind, "tracebacks", count=code not in (0, 3))
    if store.state(world.key.run_id) is not RunState.DONE:
        tally.add(kind, "lost", "the run was not finished")
    check(kind, world, store, tally)


# --- Damaged files --------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(kind: str, tally: Tally, count: int = 1) -> Iterator[None]:
    """Count tries; an error of equiscale's is as it should be, any other is not."""
    tally.add(kind, "tries", count=count)
    try:
        yield
    except EquiscaleError:
        pass
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        tally.add(kind, "tracebacks", f"{error!r:.300} in {place.filename}:{place.lineno}")


def damage_records(world: World, tally: Tally) -> None:
    for _ in range(50):
        name = world.chance.choice(sorted(world.files))
        changed = {**world.files, name: mutate(world.files[name], world.chance)}
        with watched("record", tally):
            if RunRecord.from_files(changed).science_hash != world.reference[world.key.run_id]:
                tally.add("record", "damaged", f"a changed {name} was accepted")


def run_command(*arguments: object) -> str:
    """Run `equiscale` here; return what it printed."""
    sys.argv = ["equiscale", *map(str, arguments)]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            equiscale()
    except SystemExit as error:
        if error.code not in (0, 2, None):
            raise AssertionError(printed.getvalue()) from error
    return printed.getvalue()


def damage_signed_records(world: World, tally: Tally) -> None:
    """Put odd records among good ones: everything must be shown or reported, nothing moved."""
    kind, root = "record, signed", world.root / "signed"
    shutil.rmtree(root, ignore_errors=True)
    models = ("standard", "pixel_pool", "slice_pool")
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=models, seeds=(1, 2))
    store = write_records(synthetic.records(), root / "runs")
    add_odd_records(store, 10, world.chance)
    count = len(store.run_ids(RunState.DONE))
    with watched(kind, tally, 10):
        run_command("status", "--runs", store.root)
        run_command("compare", "--runs", store.root)
        for table in (root / "runs.csv", root / "runs.parquet"):
            run_command("collect", "--runs", store.root, "--out", table)
            run_command("report", "--runs", table, "--out", root / "page.html")
        if world.chance.random() < 0.1:
            run_command("figures", "--runs", store.root, "--out", root, "--formats", "svg")
        printed = run_command("report", "--runs", store.root, "--out", root / "page.html")
        shown = re.search(r": (\d+) runs, ", printed)
        assert shown, printed
        assert int(shown[1]) + printed.count("left out: ") == count, printed
        assert not store.quarantined()
    if tally.counts[kind]["tracebacks"]:
        root.rename(tempfile.mkdtemp(prefix="storm-failed-"))


def damage_checkpoints(world: World, tally: Tally) -> None:
    kind = "checkpoint"
    store, settings = world.store("checkpoints")
    seen: list[int] = []
    watcher = job.Watcher(lambda progress: seen.append(progress.epoch), lambda: len(seen) == 2)
    run_apart(lambda: job.run_job(world.key, store, settings, watcher))
    path = store.working_directory(world.key.run_id) / CHECKPOINT_FILE
    original = path.read_bytes()
    model = job.build_run_model(world.key, world.dataset)
    trainer = Trainer(model, world.key.protocol, world.key.learning_rate, world.key.seed)
    for _ in range(20):
        path.write_bytes(mutate(original, world.chance))
        with watched(kind, tally):
            if Checkpointer(path).restore(trainer):
                save_checkpoint(trainer, path)
                if path.read_bytes() != original:
                    tally.add(kind, "damaged", "a changed checkpoint was accepted")
    path.write_bytes(mutate(original, world.chance))
    tally.add(kind, "tries")
    finish(kind, world, store, settings, tally)


def damage_notes(world: World, tally: Tally) -> None:
    """Damage what lies beside a running and a failed run; readers must not care."""
    store, _ = world.store("notes")
    lease, failed = store.lease(world.key), store.lease(replace(world.key, seed=2))
    assert lease is not None
    assert failed is not None
    (lease.directory / "progress.json").write_text('{"epoch": 1, "max_epochs": 4}')
    store.fail(Failure(replace(world.key, seed=2), "error", "why"), failed)
    for path in sorted([*lease.directory.iterdir(), *(store.root / "failed").iterdir()]):
        original = path.read_bytes()
        name = "failure" if path.parent.name == "failed" else path.stem
        for _ in range(10):
            path.write_bytes(mutate(original, world.chance))
            with watched(f"note {name}", tally):
                run_command("status", "--runs", store.root)
                store.states([world.key.run_id])
        path.write_bytes(original)


def damage_readers(world: World, tally: Tally) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_BYTES, LARGEST_BYTES))
    for name, (path, read) in world.inputs.items():
        original = path.read_bytes()
        for _ in range(2 if name == "dataset" else 10):
            if path.suffix == ".json" and world.chance.random() < 0.5:
                changed = mutate_json(json.loads(original), world.chance)
                path.write_bytes(json.dumps(changed).encode())
            else:
                path.write_bytes(mutate(original, world.chance))
            with watched(name, tally):
                read()
        path.write_bytes(original)


Inputs = dict[str, tuple[Path, Callable[[], object]]]


def make_inputs(root: Path, data: Path) -> Inputs:
    """Return one file of every kind that people exchange, and what reads it."""
    root.mkdir()
    data = Path(shutil.copy(data, root))
    with torch.random.fork_rng(devices=[]):
        model = create_model("standard", in_channels=1, num_classes=2)
    saved = save_model(model, root / "m.safetensors")
    sweep = root / "sweep.toml"
    sweep.write_text(
        'models = ["standard", "xu"]\ndata = "emoji"\nseeds = 3\nlearning_rates = [1e-3, 0.01]\n'
        "[training]\nbatch_size = 32\nreshuffle = true\n[[options.xu]]\nscales = 3\n"
    )
    runs, measured = root / "runs.csv", root / "runs.measurements.csv"
    for table in (runs, measured):
        source = Path(__file__).parents[1] / "study" / table.name
        table.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:100]))
    page = ("report", "--runs", runs, "--out", root / "page.html")
    inputs: Inputs = {
        "dataset": (data, lambda: load_dataset(data)),
        "model file": (saved, lambda: load_model(saved)),
        "sweep file": (sweep, lambda: read_sweep_file(sweep)),
        "table of runs": (runs, lambda: run_command(*page)),
        "table of measurements": (measured, lambda: run_command(*page)),
    }
    with contextlib.suppress(ImportError):
        inputs |= make_sources(root)
    return inputs


def make_sources(root: Path) -> Inputs:
    from PIL import Image

    coco, yolo = root / "coco", root / "yolo"
    for folder in (coco, yolo / "images", yolo / "labels"):
        folder.mkdir(parents=True)
    for path in (coco / "a.png", yolo / "images" / "a.png"):
        Image.new("RGB", (40, 30), "red").save(path)
    boxes = coco / "boxes.json"
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    annotations = [
        {"id": n, "image_id": 1, "category_id": n, "bbox": [1, 2, 20, 20]} for n in (1, 2)
    ]
    images = [{"id": 1, "file_name": "a.png"}]
    boxes.write_text(
        json.dumps({"images": images, "categories": categories, "annotations": annotations})
    )
    (yolo / "classes.txt").write_text("cat\ndog\n")
    labels = yolo / "labels" / "a.txt"
    labels.write_text("0 0.5 0.5 0.4 0.4\n1 0.3 0.3 0.2 0.2\n")
    return {
        "COCO boxes": (boxes, lambda: read_annotations(coco)),
        "COCO picture": (coco / "a.png", lambda: read_annotations(coco)),
        "YOLO boxes": (labels, lambda: read_annotations(yolo)),
        "YOLO classes": (yolo / "classes.txt", lambda: read_annotations(yolo)),
    }


# --- All together ---------------------------------------------------------------------------------

STORMS = (
    *(kill_workers, kill_sweeps, kill_parents),
    *(limit_files, fill_disk, move_directory),
    *(damage_checkpoints, damage_records, damage_signed_records, damage_notes, damage_readers) * 2,
)


def apart(part: Callable[[World, Tally], None], world: World, state: Path) -> None:
    """Do a part of a storm in a child: threads that it starts do not survive the next fork."""
    seed = world.chance.randrange(2**32)

    def act() -> None:
        signal.alarm(LONGEST_SECONDS)
        world.chance, tally = random.Random(seed), Tally()
        part(world, tally)
        tally.add_to(state)

    with forked(act) as child:
        status = os.waitpid(child, 0)[1]
        if status:
            tally, code = Tally(), os.waitstatus_to_exitcode(status)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            note = f"the storm itself failed with seed {seed}: {how}"
            tally.add(part.__name__, "tracebacks", note)
            tally.add_to(state)


def storm(seed: int, seconds: float, root: Path, state: Path) -> None:
    """Do everything in turn until the time is up."""
    logging.disable()
    torch.set_num_threads(1)
    os.environ |= {"POLARS_MAX_THREADS": "1", "COLUMNS": "200"}
    len(MEASUREMENTS)  # finds those of all packages, here and not in every fork
    MEASUREMENTS._entries.clear()
    request.WAIT_SECONDS = vars(launch_local)["POLL_SECONDS"] = 0.02
    until = time.monotonic() + seconds
    root.mkdir()
    world = World(root, random.Random(seed))
    while True:
        for part in STORMS:
            apart(part, world, state)
        if time.monotonic() > until:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--state", type=Path, help="file of counts to add to")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.jobs} at once, {given.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="storm-") as directory, contextlib.ExitStack() as all_:
        state = given.state or Path(directory) / "state.json"
        for number in range(given.jobs):
            arguments = (given.seed + number, 60 * given.minutes, Path(directory) / str(number))
            child = all_.enter_context(forked(functools.partial(storm, *arguments, state)))
            all_.callback(end, child)
        all_.close()
        total = Tally().add_to(state)
    print(total)
    return 0 if total.counts and total.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

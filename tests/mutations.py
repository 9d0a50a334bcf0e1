"""Files that are almost right: damaged bytes, odd JSON, odd records with valid checksums."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from equiscale.core.errors import EquiscaleError
from equiscale.core.files import content_hash
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 10**400, 2**63, 1e308, -1e308, 5e-324, "", "x" * 300, "nan", "\0",
    "../../etc/passwd", "<script>alert(1)</script>", "$x^$", "[bold]x[/nope]", "\u202eabc",
    "\x1b[2J", "train@1-2", "train@64", "all2all", "stage1", [], {}, [[]], [None], ["a"],
    {"": {}}, {"a": 1},
)  # fmt: skip
ODD_ARRAYS: tuple[Callable[[Any], Any], ...] = (
    lambda array: array[:0],
    lambda array: array[None],
    lambda array: array[..., :-1],
    lambda array: array.ravel()[0],
    lambda array: array.astype(str),
    lambda array: array * np.float64("nan"),
    lambda array: np.nan_to_num(array).astype(np.int64) * 10**6,
    lambda array: -np.nan_to_num(array).astype(np.int64),
)


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
        luck = chance.random()
        if luck < 0.08:
            return {n: v for n, v in value.items() if n != name}
        if luck < 0.14:
            return {**value, str(chance.choice(ODD_VALUES))[:50]: value[name]}
        return {**value, name: mutate_json(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        return [*value[:place], mutate_json(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD_VALUES)


def odd_record(files: dict[str, bytes], chance: random.Random) -> tuple[str, dict[str, bytes]]:
    """Return the run id and the files of a record that is odd and validly signed."""
    content, arrays = json.loads(files["record.json"]), files["arrays.npz"]
    if chance.random() < 0.3:
        with np.load(io.BytesIO(arrays)) as file:
            unpacked = dict(file)
        name, packed = chance.choice(sorted(unpacked)), io.BytesIO()
        np.savez(packed, **{**unpacked, name: chance.choice(ODD_ARRAYS)(unpacked[name])})
        arrays = packed.getvalue()
        content["files"]["arrays.npz"] = hashlib.sha256(arrays).hexdigest()
    else:
        part = chance.choice(("science", "surroundings"))
        content[part] = mutate_json(content[part], chance)
    del content["checksum"]
    content["checksum"] = content_hash(content)
    changed = {**files, "record.json": json.dumps(content).encode(), "arrays.npz": arrays}
    try:
        return RunRecord.from_files(changed).key.run_id, changed
    except EquiscaleError:
        return f"{chance.randrange(16**16):016x}", changed


def add_odd_records(store: RunStore, count: int, chance: random.Random) -> None:
    """Add odd records, made from those of a store; some replace theirs."""
    good = [record.to_files() for record in store.load_all()]
    for _ in range(count):
        run_id, files = odd_record(chance.choice(good), chance)
        store.directory(run_id).mkdir(exist_ok=True)
        for name, data in files.items():
            (store.directory(run_id) / name).write_bytes(data)

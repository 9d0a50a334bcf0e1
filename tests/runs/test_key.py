from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs.conftest import make_key

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore

STUDY = Path(__file__).parents[2] / "study" / "runs"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "xu"},
        {"model_options": {"kernel_size": 5}},
        {"model_version": 2},
        {"dataset_hash": "cd" * 32},
        {"scenario": "all2all"},
        {"seed": 2},
        {"learning_rate": 1e-2},
        {"protocol": TrainingProtocol(max_epochs=3)},
    ],
)
def test_every_scientific_input_changes_the_run_id(change: dict[str, object]) -> None:
    assert make_key(**change).run_id != make_key().run_id


def test_the_dataset_name_is_only_a_label() -> None:
    assert make_key(dataset="my-copy") == make_key()


def test_run_ids_never_change() -> None:
    """Regression: a changed hash would orphan every record that exists."""
    assert make_key().run_id == make_key(model_version=1).run_id == "5852bea1812c613d"
    changed = make_key(protocol=TrainingProtocol(max_epochs=3), model_options={"a": [1, 2]})
    assert changed.run_id == "40bca97cd939f04b"
    store = RunStore(STUDY)
    ids = store.run_ids(RunState.DONE)
    assert [key.run_id for key in map(store.key, ids) if key] == ids


def test_json_round_trip() -> None:
    protocol = TrainingProtocol(batch_size=8, reshuffle=True)
    key = make_key(model_options={"a": (1, 2)}, model_version=3, protocol=protocol)
    again = RunKey.from_json(json.loads(json.dumps(key.to_json())))
    assert again == key
    assert again.protocol == protocol
    assert again.model_version == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning rate must be positive"),
        ({"learning_rate": float("nan")}, "learning rate must be positive"),
        ({"learning_rate": 10**400}, "learning rate must be positive"),
        ({"learning_rate": "1e-3"}, "must be a number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"model_options": {"a": float("inf")}}, "option a=inf must be a text, a finite number"),
        ({"model_options": {"a": [{1}]}}, "option a="),
        ({"model_version": "2"}, "model_version must be an integer"),
    ],
)
def test_impossible_keys(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_key(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ({"augmentation": "scale"}, "unknown augmentation 'scale'"),
        ({"reshuffle": 1}, "reshuffle must be true or false"),
        ({"ema": 1.0}, "ema must be a number of at least 0 and below 1, got 1.0"),
        ({"version": "paper-9"}, "unknown training protocol 'paper-9'"),
    ],
)
def test_impossible_protocols(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainingProtocol(**change)  # type: ignore[arg-type]

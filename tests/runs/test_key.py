from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.runs.key import RunKey

MakeKey = Callable[..., RunKey]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "xu"},
        {"model_options": {"kernel_size": 5}},
        {"dataset_hash": "cd" * 32},
        {"scenario": "all2all"},
        {"seed": 2},
        {"learning_rate": 1e-2},
        {"protocol": TrainingProtocol(batch_size=32)},
        {"protocol": TrainingProtocol(max_epochs=3)},
        {"protocol": TrainingProtocol(patience=3)},
        {"protocol": TrainingProtocol(optimizer="sgd")},
        {"protocol": TrainingProtocol(reshuffle=True)},
        {"protocol": TrainingProtocol(augmentation="rescale")},
    ],
)
def test_every_scientific_input_changes_the_run_id(
    make_key: MakeKey, change: dict[str, object]
) -> None:
    assert make_key(**change).run_id != make_key().run_id


def test_the_dataset_name_is_only_a_label(make_key: MakeKey) -> None:
    assert make_key(dataset="my-copy").run_id == make_key().run_id
    assert make_key(dataset="my-copy") == make_key()


def test_the_run_id_never_changes_between_versions(make_key: MakeKey) -> None:
    """Regression: a changed hash would orphan every record that exists."""
    assert make_key().run_id == "5852bea1812c613d"
    changed = make_key(protocol=TrainingProtocol(max_epochs=3), model_options={"a": [1, 2]})
    assert changed.run_id == "40bca97cd939f04b"


def test_json_round_trip(make_key: MakeKey) -> None:
    key = make_key(
        model_options={"a": [1, 2]}, protocol=TrainingProtocol(batch_size=8, reshuffle=True)
    )
    again = RunKey.from_json(json.loads(json.dumps(key.to_json())))
    assert again.run_id == key.run_id
    assert again.protocol == key.protocol
    assert again.to_json() == key.to_json()


def test_a_tuple_option_is_the_same_key_as_a_list(make_key: MakeKey) -> None:
    assert make_key(model_options={"a": (1, 2)}) == make_key(model_options={"a": [1, 2]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning rate must be positive"),
        ({"learning_rate": float("nan")}, "learning rate must be positive"),
        ({"learning_rate": "1e-3"}, "must be a number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"model_options": {"a": float("inf")}}, "option a=inf must be a text, a finite number"),
        ({"model_options": {"a": [{1}]}}, "option a="),
    ],
)
def test_impossible_keys(make_key: MakeKey, change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_key(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"patience": 2.5}, "patience must be a whole number"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ({"augmentation": "scale"}, "unknown augmentation 'scale'"),
        ({"reshuffle": 1}, "reshuffle must be true or false"),
        ({"version": "paper-9"}, "unknown training protocol 'paper-9'"),
    ],
)
def test_impossible_protocols(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainingProtocol(**change)  # type: ignore[arg-type]

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from equiscale import load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.key import RunKey
from equiscale.sweeps.grid import DatasetChoice
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.request import describe_dataset

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _tiny_models_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in child processes."""
    monkeypatch.syspath_prepend(str(HERE))
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, str(HERE)]))


@pytest.fixture(scope="session")
def emoji(emoji_file: Path) -> DatasetChoice:
    return describe_dataset(str(emoji_file), load_dataset(emoji_file))


@pytest.fixture
def make_key(emoji: DatasetChoice) -> Callable[..., RunKey]:
    def make(**changes: object) -> RunKey:
        fields: dict[str, object] = {
            "model": "tiny_models:TinyNet",
            "dataset": emoji.name,
            "dataset_hash": emoji.content_hash,
            "scenario": Scenario.MID_TO_REST,
            "seed": 1,
            "protocol": TrainingProtocol(max_epochs=4),
        }
        return RunKey(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_settings(emoji: DatasetChoice, tmp_path: Path) -> Callable[..., JobSettings]:
    def make(**changes: object) -> JobSettings:
        fields: dict[str, object] = {
            "runs": str(tmp_path / "runs"),
            "sources": {emoji.content_hash: emoji.source},
            "device": "cpu",
            "checkpoint_seconds": 0.0,
        }
        return JobSettings(**{**fields, **changes})  # type: ignore[arg-type]

    return make

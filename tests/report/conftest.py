from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from tests.synthetic_runs import Study, write_records

from equiscale.analysis.runs import Runs, read_runs
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario

HOSTILE = "<script>window.hacked = true</script><img src=x onerror=alert(1)>"
TWO = (Scenario.MID_TO_REST, Scenario.ALL_TO_ALL)


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name that is code wherever it is not escaped."""
    return HOSTILE


@pytest.fixture(scope="session")
def results(shared_directory: Path) -> Path:
    """Known and unknown models, a hostile name, a missing seed, and a second protocol."""
    root = shared_directory / "report-results"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            study = Study(
                scenarios=TWO,
                models=("standard", "pixel_pool", "slice_pool", "xu"),
                class_names={3: HOSTILE},
            )
            records = list(study.records())
            others = [
                study.record("emoji", TWO[0], HOSTILE, 1),
                study.record("own <b>data</b>", TWO[0], "standard", 1),
                Study(protocol=TrainingProtocol(max_epochs=3)).record("emoji", TWO[0], "xu", 1),
            ]
            missing = [r for r in records if (r.key.model, r.key.seed) != ("xu", 2)]
            write_records([*missing, *others], root)
    return root


@pytest.fixture(scope="session")
def runs(results: Path) -> Runs:
    return read_runs(results)

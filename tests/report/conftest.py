from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.runs import read_study
from equiscale.analysis.study import Study
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore

HOSTILE = "<script>window.hacked = true</script><img src=x onerror=alert(1)>"
TWO = (Scenario.MID_TO_REST, Scenario.ALL_TO_ALL)
MODELS = ("standard", "pixel_pool", "slice_pool", "xu")


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name that is code if it is not escaped."""
    return HOSTILE


@pytest.fixture(scope="session")
def runs(shared_directory: Path) -> Path:
    """Known and unknown models, a hostile name, a missing seed, and a second protocol."""
    root = shared_directory / "report-runs"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            synthetic = SyntheticRuns(scenarios=TWO, models=MODELS, class_names={3: HOSTILE})
            short = SyntheticRuns(protocol=TrainingProtocol(max_epochs=3))
            others = [
                synthetic.record("emoji", TWO[0], HOSTILE, 1),
                synthetic.record("own <b>data</b>", TWO[0], "standard", 1),
                short.record("emoji", TWO[0], "xu", 1),
            ]
            usual = synthetic.records()
            kept = [r for r in usual if (r.key.model, r.key.seed) != ("xu", 2)]
            write_records([*kept, *others], root)
    return root


@pytest.fixture(scope="session")
def study(runs: Path) -> Study:
    return read_study(runs)


@pytest.fixture(scope="session")
def cell(runs: Path) -> list[RunRecord]:
    """The records of slice_pool on emoji mid2rest, from which shown numbers are computed."""
    wanted = "slice_pool", "emoji", Scenario.MID_TO_REST
    found = [
        record
        for record in RunStore(runs).load_all()
        if (record.key.model, record.key.dataset, record.key.scenario) == wanted
    ]
    return sorted(found, key=lambda record: record.key.seed)

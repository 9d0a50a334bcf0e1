from __future__ import annotations

from pathlib import Path

import pytest
from tests.synthetic_runs import SyntheticRuns
from torch import Tensor, nn

from equiscale import Scenario, StirDataset, create_model, load_dataset
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.sweeps.measurements import collect_measurements


class BrokenStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 36)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        raise RuntimeError("not today")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


@pytest.fixture(scope="module")
def dataset(emoji_file: Path) -> StirDataset:
    return load_dataset(emoji_file)


@pytest.fixture
def key(dataset: StirDataset) -> RunKey:
    return RunKey("standard", "emoji", dataset.content_hash, Scenario.MID_TO_REST, 1)


def test_the_job_collects_what_applies_and_a_record_keeps_it(
    dataset: StirDataset, key: RunKey
) -> None:
    model = create_model("standard", in_channels=1, num_classes=36)
    found = collect_measurements(model, dataset, key)
    assert sorted(found) == ["cost", "equivariance"]
    plain = SyntheticRuns().record("emoji", Scenario.MID_TO_REST, "standard", 1)
    record = RunRecord(key, plain.history, plain.predictions, found)
    again = RunRecord.from_files(record.to_files())
    assert again.measurements["equivariance"].arrays["stage2"].shape == (6, 36)
    assert again.measurements["cost"].values["parameters"] == 27108
    assert again.measurements["cost"].timings["inference_seconds"] > 0
    assert again.science_hash == record.science_hash


def test_a_model_whose_own_code_fails_keeps_its_run(dataset: StirDataset, key: RunKey) -> None:
    found = collect_measurements(BrokenStages(), dataset, key)
    assert found["equivariance"].values == {"error": "RuntimeError: not today"}
    assert found["cost"].values["parameters"] == 72

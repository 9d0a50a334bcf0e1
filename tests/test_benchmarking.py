from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import equiscale
from equiscale.analysis.our_runs import our_runs
from equiscale.benchmarking import BenchmarkError
from equiscale.core.errors import DatasetNotFoundError, OptionError
from equiscale.models import list_models
from equiscale.report.page_data import page_data
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.job import ModelDataError
from equiscale.sweeps.launch import InProcessLauncher
from equiscale.sweeps.launch_local import LocalLauncher

TINY = Path(__file__).parent / "sweeps"
SHORT: dict[str, Any] = {"scenarios": "mid2rest", "seeds": 1, "max_epochs": 1, "progress": False}
OURS = our_runs().runs.filter(dataset="emoji", scenario="mid2rest")["model"].n_unique()
LAST = len(list_models("paper")) + OURS + 1
"""The place of an untrained model: behind the published ones and ours."""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUISCALE_DATA", str(tmp_path / "data"))
    source = str(Path(__file__).parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", source)
    monkeypatch.syspath_prepend(str(TINY))  # here, but not in the environment of workers


class Coarse(nn.Module):
    """A model that knows its own number of channels and classes, and offers stages."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 2, 9)
        self.head = nn.Linear(2, 36)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        return {"body": self.body(x)}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).amax((2, 3)))
        return logits


def test_a_local_class_gets_the_whole_treatment(tmp_path: Path) -> None:
    class Local(Coarse):
        pass

    result = equiscale.benchmark(Local, **SHORT)
    assert result.model.startswith("Local@")
    assert set(result.accuracies) == {"mid2rest"}
    assert result.place == LAST
    (record,) = RunStore("runs").load_all()
    assert {"equivariance", "cost"} <= set(record.measurements)
    own = result.table.filter(result.table["model"] == result.model).to_dicts()[0]
    assert own["equivariance_error"] > 0
    assert own["parameters"] == 1 * 2 * 81 + 2 + 2 * 36 + 36
    assert result.write_page(tmp_path / "report.html").stat().st_size > 50_000
    labels = {model["key"]: model["label"] for model in page_data(result.study)["models"]}
    assert labels[result.model] == result.model


def test_it_is_pleasant_to_look_at() -> None:
    result = equiscale.benchmark(lambda: Coarse(), name="coarse", **SHORT)
    text = str(result)
    assert text.startswith(f"{result.model} on emoji: place {LAST} of {LAST}\n")
    assert re.search(r"^ *\d+ +pixel_pool +published ", text, re.MULTILINE)
    assert "do not compare" in text, "one epoch is not the paper's protocol"
    (marked,) = [line for line in text.splitlines() if line.lstrip().startswith(">")]
    assert result.model in marked
    page = result._repr_html_()
    assert page.count("<tr") == LAST + 1
    assert f'bold"><td>&gt; {LAST}</td>' in page


def test_where_nothing_is_published_nothing_is_said_about_it(small_file: Path) -> None:
    def build(in_channels: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64 * 64, num_classes))

    result = equiscale.benchmark(build, small_file, **SHORT)
    assert result.table["equivariance_error"].to_list() == [None]  # a model needs no stages
    assert str(result).startswith(f"{result.model} on noise: place 1 of 1\n")
    assert "ublished" not in str(result)


def test_the_same_call_finds_its_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Coarse):
        pass

    first = equiscale.benchmark(Local, **SHORT)
    monkeypatch.setattr(InProcessLauncher, "run", lambda *_: pytest.fail("started a run"))
    assert str(equiscale.benchmark(Local, **SHORT)) == str(first)


def test_all_failed_is_an_error_some_failed_is_told() -> None:
    with pytest.raises(BenchmarkError, match=r"none of the 1 runs was finished.*no such luck"):
        equiscale.benchmark("tiny_models:Raising", launcher=InProcessLauncher(), **SHORT)

    class Moody(Coarse):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and len(RunStore("runs").run_ids(RunState.DONE)):
                raise RuntimeError("one is enough")
            return super().forward(x)

    result = equiscale.benchmark(Moody, **{**SHORT, "seeds": (1, 2)})
    assert list(result.failures.values()) == ["RuntimeError: one is enough"]
    assert "failed: Moody@" in str(result)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_factory": nn.Linear(2, 2)}, OptionError, "pass the class"),
        ({"model_factory": nn.Flatten}, ModelDataError, "no parameters"),
        ({"model_factory": lambda: nn.Linear(64, 36), "name": "x"}, ModelDataError, "1, 1, 64, 36"),
        ({"model_factory": lambda width: nn.Identity(), "name": "x"}, OptionError, "'width'"),
        ({"model_factory": "standrad"}, LookupError, "did you mean 'standard'"),
        ({"model_factory": "standard", "name": "mine"}, OptionError, "keeps that name"),
        ({"dataset": "no_such_data"}, (DatasetNotFoundError, LookupError), "no_such_data"),
        ({"scenarios": "mid2rst"}, OptionError, "did you mean 'mid2rest'"),
        ({"epochs": 3}, OptionError, "did you mean 'max_epochs'"),
        ({"launcher": LocalLauncher()}, OptionError, "known to this process only"),
        ({"learning_rates": "publisht"}, OptionError, "numbers or 'published'"),
        ({"seeds": 0}, OptionError, "seeds must be a number of at least 1"),
        ({"device": "toaster"}, OptionError, "toaster"),
    ],
)
def test_bad_calls_are_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    call = {"model_factory": lambda: Coarse(), "name": "coarse", **SHORT, **changes}
    if "model_factory" in changes and "name" not in changes:
        del call["name"]
    with pytest.raises(error, match=message):
        equiscale.benchmark(**call)


@pytest.mark.slow
def test_bench_prints_the_table_and_writes_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from equiscale.cli import main

    (tmp_path / "my_module.py").write_text(
        "from tiny_models import TinyNet\nclass MyNet(TinyNet):\n    pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(TINY)]))
    options = ["--scenarios", "mid2rest", "--seeds", "1", "--epochs", "1", "--workers", "1"]
    command = ["equiscale", "bench", "my_module:MyNet", *options, "--out", "page.html"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    out = capsys.readouterr().out
    assert f"my_module:MyNet on emoji: place {LAST} of {LAST}" in out
    assert out.splitlines()[-1] == "page.html"
    assert (tmp_path / "page.html").exists()
    sys.modules.pop("my_module", None)

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equiscale.sweeps.grid import ModelChoice
from equiscale.sweeps.sweep_file import SweepFileError, SweepRequest, read_sweep_file

GOOD = """
models = ["standard", "kanazawa"]
data = "emoji"
scenarios = ["mid2rest"]
seeds = 3
select_learning_rate = true

[training]
batch_size = 32
reshuffle = true

[options.kanazawa]
max_exponent = 3
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_a_complete_file(tmp_path: Path) -> None:
    assert read_sweep_file(write(tmp_path, GOOD)) == SweepRequest(
        models=("standard", "kanazawa"),
        data=("emoji",),
        scenarios=("mid2rest",),
        seeds=(1, 2, 3),
        select_learning_rate=True,
        training={"batch_size": 32, "reshuffle": True},
        options={"kanazawa": {"max_exponent": 3}},
    )


def test_an_empty_file_asks_for_the_defaults(tmp_path: Path) -> None:
    assert read_sweep_file(write(tmp_path, "")) == SweepRequest()


def test_seeds_and_rates_can_be_lists(tmp_path: Path) -> None:
    request = read_sweep_file(write(tmp_path, "seeds = [7, 9]\nlearning_rates = [1, 1e-2]"))
    assert request.seeds == (7, 9)
    assert request.learning_rates == (1.0, 0.01)
    request = read_sweep_file(write(tmp_path, "learning_rates = 'published'"))
    assert request.learning_rates == "published"


def test_variants_of_a_model(tmp_path: Path) -> None:
    text = "[[options.xu]]\n[[options.xu]]\nscales = 3\n[options.disco]\nsigma = 0.5"
    request = read_sweep_file(write(tmp_path, text))
    assert request.variants("xu") == [ModelChoice("xu", {}), ModelChoice("xu", {"scales": 3})]
    assert request.variants("disco") == [ModelChoice("disco", {"sigma": 0.5})]
    assert request.variants("standard") == [ModelChoice("standard", {})]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("data = 'emoji'\nmodel = 'xu'", "model: unknown key 'model'; did you mean 'models'"),
        ("seeds = 'many'", "seeds: must be a number of seeds, or a list of seeds, got 'many'"),
        ("seeds = 99999999999", "seeds: the number of seeds must be 1 to 100000"),
        ("seeds = [1, -1]", "seeds: a seed must be a whole number of at least 0, got -1"),
        ("models = [1]", "models: must be a text or a list of texts, got 1"),
        ("select_learning_rate = 1", "must be true or false, got 1"),
        ("learning_rates = [1e-3, -1]", "must be positive and finite, got -1"),
        ("learning_rates = true", "must be a number or a list of numbers, got True"),
        ("[training]\nbatch = 3", "training: unknown training option 'batch'; did you mean"),
        ("[training]\nbatch_size = 2.5", "training: batch_size must be an integer"),
        ("[training]\noptimizer = 'adm'", "did you mean 'adam'"),
        ("options = 3", "options: must be a table, got 3"),
        ("[options]\nxu = [{a = 1}, 2]", "must be a table, or tables [[options.…]], got 2"),
        ("[options.'m:N']\na = 2024-01-01", "options: the model option a="),
        ("seeds = 1\na = = 1", "line 2"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SweepFileError, match=rf"sweep\.toml.*{re.escape(problem)}"):
        read_sweep_file(write(tmp_path, text))


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"seeds = " + b"[" * 10**4, None])
def test_a_file_that_is_absent_or_not_toml(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "sweep.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(SweepFileError, match="cannot read"):
        read_sweep_file(path)

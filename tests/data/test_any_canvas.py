"""A dataset of another canvas and other sizes, from its file to the figures."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import equiscale.data.schema as schema
from equiscale.analysis.runs import read_study
from equiscale.analysis.standings import rank_standings
from equiscale.core.errors import DatasetFormatError, OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.data.dataset import StirDataset, load_dataset, to_float
from equiscale.data.schema import METADATA_KEYS, StirArrays, read_arrays, write_arrays
from equiscale.report.page_data import page_data
from equiscale.report.plots import plot_sizes
from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.job import JobSettings, run_job

SIZES = (36, 30, 24, 18, 12)


@pytest.fixture(scope="module")
def arrays() -> StirArrays:
    """Squares and dots of five sizes on a canvas of 40 pixels."""
    images = np.zeros((3, 5, 2, 2, 40, 40), np.uint8)
    for row, size in enumerate(SIZES):
        images[:, row, 0, :, :size, :size] = 200
        images[:, row, 1, :, size // 2, size // 2] = 255
    positions = np.zeros((3, 5, 2, 2, 2), np.int64)
    metadata = {key: f"the {key}" for key in METADATA_KEYS}
    return StirArrays.assemble(images, positions, ("square", "dot"), metadata, SIZES)


def test_file_keeps_canvas_and_sizes(arrays: StirArrays, tmp_path: Path) -> None:
    write_arrays(tmp_path / "shapes.npz", arrays)
    dataset = load_dataset(tmp_path / "shapes.npz")
    assert (dataset.canvas, dataset.sizes) == (40, SIZES)
    assert dataset.content_hash == arrays.content_hash
    with np.load(tmp_path / "shapes.npz") as file:
        assert file["imgs"].shape == (3, 5, 2, 2, 40, 40)


def test_selections_follow_the_sizes(arrays: StirArrays) -> None:
    dataset = StirDataset("shapes", arrays)
    train = dataset.select("train", "mid2rest")
    assert train.sizes == (24,)
    adjacent = dataset.select("train", [30, 24]).pixels
    assert np.shares_memory(adjacent.numpy(), arrays.images)
    assert dataset.select("test", "mid2rest").sizes == (36, 30, 18, 12)
    assert dataset.select("valid", Scenario("train@12+30")).pixels.shape == (8, 1, 40, 40)
    with pytest.raises(OptionError, match="choose some of 12, 18, 24, 30, 36"):
        dataset.select("train", [17])


def test_bytes_become_floats_as_numpy_divides() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    assert np.array_equal(to_float(torch.from_numpy(pixels)).numpy(), pixels / np.float32(255))


def test_large_images_are_stored_and_mapped(
    arrays: StirArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "STORED_BYTES", arrays.images.nbytes - 1)
    path = tmp_path / "large.npz"
    write_arrays(path, arrays)
    kinds = [info.compress_type for info in zipfile.ZipFile(path).infolist()]
    assert kinds == [zipfile.ZIP_STORED] + [zipfile.ZIP_DEFLATED] * 5
    mapped = read_arrays(path, max_bytes=100_000)  # what is mapped takes no memory
    assert isinstance(mapped.images, np.memmap)
    assert mapped.content_hash == arrays.content_hash
    with np.load(path) as file:
        assert np.array_equal(file["imgs"], arrays.images)
    mapped.images[0] = 1  # copy on write
    assert read_arrays(path).content_hash == arrays.content_hash
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetFormatError, match="damaged"):
        read_arrays(path)


def test_run_record_and_figure(arrays: StirArrays, tmp_path: Path) -> None:
    path = tmp_path / "shapes.npz"
    write_arrays(path, arrays)
    store = RunStore(tmp_path / "runs")
    settings = JobSettings(str(store.root), {arrays.content_hash: str(path)}, device="cpu")
    for scenario in ("train@24-30", "large2small"):
        key = RunKey(
            "pixel_pool",
            "shapes",
            arrays.content_hash,
            Scenario(scenario),
            seed=1,
            protocol=TrainingProtocol(max_epochs=1),
        )
        assert run_job(key, store, settings) is RunState.DONE
        record = store.load(key.run_id)
        assert record.key.scenario is Scenario(scenario)
        assert record.predictions.sizes == SIZES[::-1]
        expected = np.isin(record.predictions.object_sizes, key.scenario.test_sizes(SIZES))
        hits = record.predictions.predicted == record.predictions.labels
        assert record.test_accuracy == hits[expected].mean()
    study = read_study(store.root)
    assert study.object_sizes == {"shapes": SIZES[::-1]}
    curves = study.sizes.partition_by("scenario")
    assert [curve["object_size"].to_list() for curve in curves] == [list(SIZES[::-1])] * 2
    errors = study.errors.filter(scenario="large2small")
    assert errors["stage"].to_list()  # of the pair inside 12, 18, 24
    assert study.selections[0].sizes == SIZES[::-1]
    figure = plot_sizes(study)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[:2] == ["large → small", "train at 24-30"]
    page = page_data(study)
    assert page["datasets"][0]["sizes"] == SIZES[::-1]
    trained = [scenario["train"] for scenario in page["scenarios"]]
    assert trained == [{"shapes": [(30, 36)]}, {"shapes": [(24, 30)]}]
    custom = Scenario("train@24-30")
    standings = rank_standings(study, study.main_protocol, "shapes", [custom])
    assert (
        standings["train@24-30"].to_list() == study.cells.filter(scenario=custom)["mean"].to_list()
    )

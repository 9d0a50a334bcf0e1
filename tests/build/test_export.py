"""Parquet files and Croissant metadata, read by the libraries of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import run_python

from equiscale.build.export import describe, export_parquet
from equiscale.core.errors import StorageError
from equiscale.core.spec import Split
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays


@pytest.fixture(scope="module")
def exported(small_arrays: StirArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported")
    steps: list[tuple[int, int]] = []
    files = export_parquet(
        small_arrays, "noise", directory, progress=lambda *step: steps.append(step)
    )
    assert sorted(files) == sorted(directory.iterdir())
    assert (steps[0], steps[-1]) == ((0, 576), (576, 576))
    return directory


@pytest.mark.needs("datasets", "pyarrow")
def test_datasets_reads_images_labels_and_boxes(
    exported: Path, small_arrays: StirArrays, tmp_path: Path
) -> None:
    from datasets import load_dataset

    files = {split.value: str(exported / f"{split.value}.parquet") for split in Split}
    found: Any = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    for part, split in enumerate(Split):
        rows = found[split.value]
        assert rows.column_names == ["image", "label", "object_size", "left", "top", "split"]
        assert rows.features["label"].names == ["cat", "dog"]
        assert set(rows["split"]) == {split.value}
        assert list(rows["label"]) == small_arrays.labels[part].ravel().tolist()
        assert list(rows["object_size"]) == small_arrays.object_sizes[part].ravel().tolist()
        boxes = np.stack([rows["left"], rows["top"]], axis=1)
        assert np.array_equal(boxes, small_arrays.positions[part].reshape(-1, 2))
        images = np.stack([np.asarray(image) for image in rows["image"]])
        assert np.array_equal(images, small_arrays.images[part].reshape(-1, 64, 64, 3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib, by mlcroissant
@pytest.mark.needs("mlcroissant", "pyarrow")
def test_croissant_validates_and_finds_the_rows(exported: Path, small_arrays: StirArrays) -> None:
    import mlcroissant

    dataset: Any = mlcroissant.Dataset(str(exported / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert [records.id for records in dataset.metadata.record_sets] == ["train", "valid", "test"]
    first = next(iter(dataset.records("valid")))
    assert np.array_equal(np.asarray(first["valid/image"]), small_arrays.images[1, 0, 0, 0])
    assert (first["valid/label"], first["valid/object_size"]) == (0, 64)
    arrays = replace(small_arrays, metadata=CARDS["emoji"].metadata())
    described: Any = mlcroissant.Dataset(describe(arrays, "emoji", list(exported.glob("*.pa*"))))
    assert not described.metadata.ctx.issues.warnings


def _interrupt(done: int, total: int) -> None:
    if done > total // 2:
        raise KeyboardInterrupt


@pytest.mark.needs("pyarrow")
def test_the_same_dataset_gives_the_same_bytes_and_nothing_is_replaced_unasked(
    exported: Path, small_arrays: StirArrays
) -> None:
    before = {path: path.read_bytes() for path in exported.iterdir()}
    with pytest.raises(StorageError, match=r"has train.parquet, .* already; add --force"):
        export_parquet(small_arrays, "noise", exported)
    with pytest.raises(StorageError, match=r"cannot write .*train.parquet.croissant.json"):
        export_parquet(small_arrays, "noise", exported / "train.parquet")
    with pytest.raises(KeyboardInterrupt):
        export_parquet(small_arrays, "noise", exported, force=True, progress=_interrupt)
    names = sorted(path.name for path in exported.iterdir())  # no metadata, nothing half written
    assert names == ["test.parquet", "train.parquet", "valid.parquet"]
    export_parquet(small_arrays, "noise", exported, force=True)
    assert {path: path.read_bytes() for path in exported.iterdir()} == before


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub", "posix", "pyarrow")
def test_an_export_that_is_killed_leaves_nothing_half_written(tmp_path: Path) -> None:
    printed = run_python("-m", "tests.build.crash_export", tmp_path)
    dataset, model = (int(line.split()[1]) for line in printed.splitlines())
    assert dataset > 10
    assert model > 6

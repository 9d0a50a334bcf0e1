"""Datasets as Parquet files with Croissant metadata, as Hugging Face reads them. Extra `hub`."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from equiscale.build.extras import import_extra
from equiscale.build.parallel import Progress, no_progress
from equiscale.core.errors import StorageError
from equiscale.core.files import (
    atomic_write,
    check_writable,
    file_hash,
    remove_temporaries,
    write_json,
)
from equiscale.core.spec import Split
from equiscale.data.schema import Images, StirArrays

METADATA_FILE = "croissant.json"
ROWS = 512
"""Images per row group; the memory of an export depends on it."""

_EXTRA = "hub"
_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format "
    "includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {  # the one that the specification recommends
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    **{term: f"cr:{term}" for term in _TERMS.split()},
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
}
_FIELDS = {
    "image": ("sc:ImageObject", "The image, as PNG."),
    "label": ("sc:Integer", "Index of the class."),
    "object_size": ("sc:Integer", "Longer side of the object's box in pixels."),
    "left": ("sc:Integer", "Distance of the object's box from the left edge in pixels."),
    "top": ("sc:Integer", "Distance of the object's box from the top edge in pixels."),
    "split": ("sc:Text", "train, valid or test."),
}
"""Columns, with their types and meanings in Croissant."""


def export_parquet(
    arrays: StirArrays,
    name: str,
    directory: Path,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Write `train.parquet`, `valid.parquet`, `test.parquet` and `croissant.json`.

    The columns are `image` (PNG), `label`, `object_size`, `left`, `top` and `split`, with the
    features of Hugging Face `datasets` in the schema. Rows are in file order. The same dataset
    gives the same bytes with the same versions of Pillow and pyarrow. The metadata is written last.

    Args:
        arrays: The dataset.
        name: Its name in the metadata.
        directory: Where the files go.
        force: Whether existing files may be replaced.
        progress: Called as `progress(done, total)`, in images.

    Returns:
        The files written.

    Raises:
        StorageError: A file exists and `force` is false, or cannot be written.
    """
    parquet: Any = import_extra("pyarrow.parquet", "pyarrow", _EXTRA)
    import_extra("PIL.Image", "pillow", _EXTRA)
    files = {split: directory / f"{split.value}.parquet" for split in Split}
    metadata = directory / METADATA_FILE
    existing = [path.name for path in (*files.values(), metadata) if path.exists()]
    if existing and not force:
        raise StorageError(
            f"{directory} has {', '.join(existing)} already; add --force to replace them"
        )
    check_writable(metadata)
    metadata.unlink(missing_ok=True)  # where it is, the files are complete
    for path in (*files.values(), metadata):
        remove_temporaries(path)
    total, done = arrays.labels.size, 0
    progress(0, total)
    for split, path in files.items():
        with atomic_write(path) as file, parquet.ParquetWriter(file, _schema(arrays)) as writer:
            for columns in _row_groups(arrays, split):
                writer.write_batch(_batch(columns, split, arrays))
                done += len(columns[0])
                progress(done, total)
    write_json(metadata, describe(arrays, name, list(files.values())))
    return [*files.values(), metadata]


def _schema(arrays: StirArrays) -> Any:  # noqa: ANN401 - pyarrow's types are its own
    """Return the columns; Hugging Face `datasets` reads their features from the metadata."""
    import pyarrow as pa

    numbers = ("object_size", "left", "top")
    features: dict[str, Any] = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(arrays.class_names)},
        **{key: {"_type": "Value", "dtype": "int32"} for key in numbers},
        "split": {"_type": "Value", "dtype": "string"},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = [("image", image), ("label", pa.int64()), *((key, pa.int32()) for key in numbers)]
    info = json.dumps({"info": {"features": features}}, ensure_ascii=False)
    return pa.schema([*columns, ("split", pa.string())], metadata={"huggingface": info})


def _row_groups(arrays: StirArrays, split: Split) -> Iterator[tuple[Any, ...]]:
    """Yield images, labels, object sizes and positions, at most `ROWS` at a time."""
    part = list(Split).index(split)
    tables = (arrays.images, arrays.labels, arrays.object_sizes, arrays.positions)
    flat = [table[part].reshape(-1, *table.shape[4:]) for table in tables]
    for start in range(0, len(flat[0]), ROWS):
        yield tuple(table[start : start + ROWS] for table in flat)


def _batch(columns: tuple[Any, ...], split: Split, arrays: StirArrays) -> Any:  # noqa: ANN401
    import pyarrow as pa

    images, labels, sizes, positions = columns
    schema = _schema(arrays)
    encoded = [{"bytes": encode_png(image), "path": None} for image in images]
    values = [encoded, labels, sizes, *positions.T, [split.value] * len(images)]
    cells = [pa.array(v, type=kind) for v, kind in zip(values, schema.types, strict=True)]
    return pa.record_batch(cells, schema=schema)


def encode_png(image: Images) -> bytes:
    """`[H, W]` or `[H, W, 3]`, uint8 -> the bytes of a PNG file."""
    pillow: Any = import_extra("PIL.Image", "pillow", _EXTRA)
    buffer = io.BytesIO()
    pillow.fromarray(np.ascontiguousarray(image)).save(buffer, "PNG")
    return buffer.getvalue()


def describe(arrays: StirArrays, name: str, files: list[Path]) -> dict[str, Any]:
    """Return the Croissant metadata of exported files: one record set per split."""
    metadata = arrays.metadata
    return {
        "@context": copy.deepcopy(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": f"{metadata['title']}. {metadata['description']}",
        "license": metadata["license"],
        "citeAs": metadata["author"],
        "creator": {"@type": "sc:Organization", "name": metadata["author"]},
        **_describe_date(metadata["date"]),
        "version": metadata["version"],
        "keywords": ["scale equivariance", "image classification"],
        "distribution": [_describe_file(path) for path in files],
        "recordSet": [_describe_records(path, arrays) for path in files],
    }


def _describe_date(text: str) -> dict[str, str]:
    """Return a date if it is one; a file of a user may hold any text."""
    try:
        return {"datePublished": date.fromisoformat(text).isoformat()}
    except ValueError:
        return {}


def _describe_file(path: Path) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": path.name,
        "name": path.name,
        "contentUrl": path.name,
        "encodingFormat": "application/x-parquet",
        "sha256": file_hash(path),
    }


def _describe_records(path: Path, arrays: StirArrays) -> dict[str, Any]:
    fields = []
    for column, (kind, meaning) in _FIELDS.items():
        source: dict[str, Any] = {"fileObject": {"@id": path.name}, "extract": {"column": column}}
        if column == "image":
            source["transform"] = {"jsonPath": "bytes"}
        if column == "label":
            meaning += f" Classes: {', '.join(arrays.class_names)}."
        entry = {"@type": "cr:Field", "@id": f"{path.stem}/{column}", "name": column}
        fields.append({**entry, "description": meaning, "dataType": kind, "source": source})
    described = {"name": path.stem, "description": f"The images of the split {path.stem}."}
    return {"@type": "cr:RecordSet", "@id": path.stem, **described, "field": fields}

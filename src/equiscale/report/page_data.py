"""The data of the page: a study as plain JSON, without HTML."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale import __version__
from equiscale.analysis.comparison import CITATION, published_accuracy, published_curves
from equiscale.analysis.selection import ScaleSelection, best_channels, channel_correlations
from equiscale.analysis.study import Study
from equiscale.analysis.summaries import CELL, ModelKey, train_spans
from equiscale.core.protocol import PROTOCOL_VERSION
from equiscale.core.spec import Scenario
from equiscale.report.style import (
    dataset_label,
    order_datasets,
    order_scenarios,
    scenario_label,
    style_models,
)

MAP_CHANNELS = 8
MAP_BUDGET = 1_500_000
"""Compressed bytes of pixel maps that a page may hold; it counts what was left out."""

SELECTION_BUDGET = 1_500_000
_COMPARED = ("difference", "inside", "near", "near_runs")
_FIRST_LETTER = ord("0")


def page_data(study: Study) -> dict[str, Any]:
    """Return everything that the page shows, as plain JSON without NaN.

    A model with options has the key `str(ModelKey)`, which the page only compares. Changes of the
    training are options too.
    """
    study = study.side_by_side()
    published = _published(study.cells["dataset_name"].unique().to_list())
    models = {*study.models, *(ModelKey(row["model"]) for row in published["cells"])}
    variants = set(study.cells.filter("variant").select("model", "options").iter_rows())
    selections, left_out = _selections(study)
    return {
        "provenance": _provenance(study) | {"selections_left_out": left_out},
        "scenarios": _scenarios(study),
        "datasets": [
            {"key": key, "label": dataset_label(key), "sizes": study.object_sizes[key]}
            for key in order_datasets(study.cells["dataset"].to_list())
        ],
        "protocol": study.main_protocol,
        "models": [
            {"key": str(key), "variant": key in variants, **vars(style)}
            for key, style in style_models(models).items()
        ],
        "cells": _cells(study),
        "costs": _plain_rows(study.costs),
        "ranking": _ranking(study),
        "pairs": [_with_pair_keys(row) for row in _plain_rows(study.pairs)],
        "published": published,
        "selections": selections,
    }


def _ranking(study: Study) -> dict[str, Any] | None:
    ranking = study.ranking(study.main_protocol)
    if ranking is None:
        return None
    lists = ("models", "models_left_out")
    return vars(ranking) | {name: [str(key) for key in vars(ranking)[name]] for name in lists}


def _with_pair_keys(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("first", "second"):
        row[name] = str(ModelKey(row[name], row.pop(f"{name}_options")))
    return row


def _cells(study: Study) -> list[dict[str, Any]]:
    curves = study.sizes.partition_by(CELL, as_dict=True)
    errors = study.errors.partition_by(CELL, as_dict=True)
    judged = {tuple(row[n] for n in CELL): row for row in study.published.iter_rows(named=True)}
    rows = []
    for cell in study.cells.iter_rows(named=True):
        keys = tuple(cell[name] for name in CELL)
        curve = {
            name: _rounded(curves[keys][name].to_list()) if keys in curves else []
            for name in ("mean", "low", "high")
        }
        compared = {name: judged.get(keys, {}).get(name) for name in _COMPARED}
        own = {"curve": curve, "errors": _errors(errors.get(keys))}
        rows.append({**_plain({**cell, **compared}), **own})
    return rows


def _errors(errors: pl.DataFrame | None) -> dict[str, list[dict[str, Any]]]:
    """Return seed, error, undefined and accuracy of every run, by stage."""
    if errors is None:
        return {}
    wanted = ["seed", "error", "undefined", "test_accuracy"]
    stages = errors.group_by("stage", maintain_order=True)
    return {str(stage): _plain_rows(part.select(wanted)) for (stage,), part in stages}


def _scenarios(study: Study) -> list[dict[str, Any]]:
    return [
        {
            "key": name,
            "label": scenario_label(name),
            "train": {
                dataset: train_spans(Scenario(name), sizes)
                for dataset, sizes in study.object_sizes.items()
            },
        }
        for name in order_scenarios(study.cells["scenario"])
    ]


def _published(datasets: list[str]) -> dict[str, Any]:
    """Return the published results on these datasets."""
    known = published_accuracy().filter(pl.col("dataset").is_in(datasets))
    curves = published_curves()
    cells = [
        {**row, "curve": curves[row["dataset"], row["scenario"], row["model"]]}
        for row in known.iter_rows(named=True)
    ]
    return {"citation": CITATION, "protocol": PROTOCOL_VERSION, "cells": cells}


def _selections(study: Study) -> tuple[list[dict[str, Any]], int]:
    """Return one entry per cell that fits, and the number of cells with something left out."""
    entries, left_out = [], 0
    selection_bytes = map_bytes = 0
    for cell, selection in study.reported_selections:
        layer = selection.last_layer
        chosen = selection.chosen[layer][:, :: selection.instances]
        text = encode_sizes(chosen)
        needed = _compressed(text)
        if selection_bytes + needed > SELECTION_BUDGET:
            left_out += 1
            continue
        selection_bytes += needed
        maps = _pixel_maps(selection, layer)
        needed = _compressed(maps["text"]) if maps else 0
        if map_bytes + needed > MAP_BUDGET:
            maps, left_out = None, left_out + 1
        else:
            map_bytes += needed
        entries.append(
            {
                **_plain(cell),
                "seed": selection.seed,
                "layer": layer,
                "pool": selection.pools[layer],
                "classes": list(selection.class_names),
                "channels": chosen.shape[2],
                "chosen": text,
                "maps": maps,
            }
        )
    return entries, left_out


def _pixel_maps(selection: ScaleSelection, layer: str) -> dict[str, Any] | None:
    """Return the maps of the channels that follow the example object best."""
    if layer not in selection.maps:
        return None
    maps = selection.maps[layer]
    best = best_channels(channel_correlations(selection, layer, selection.example))[:MAP_CHANNELS]
    return {
        "channels": best,
        "side": maps.shape[-1],
        "range": [min(7, int(maps.min())), max(57, int(maps.max()))],
        "text": encode_sizes(maps[:, best]),
        "object": selection.example_name,
    }


def encode_sizes(kernel_sizes: NDArray[np.uint8]) -> str:
    """Return kernel sizes as a text with one character each, '0' for 0, in the array's order."""
    codes = kernel_sizes.astype(np.uint16) + _FIRST_LETTER
    codes[codes >= ord("\\")] += 1  # the backslash would be escaped in JSON
    return codes.tobytes().decode("utf-16-le")


def _compressed(text: str) -> int:
    return len(zlib.compress(text.encode(), 6))


def _provenance(study: Study) -> dict[str, Any]:
    runs = study.runs
    versions = {
        name: sorted({str(value) for value in runs[name].drop_nulls().unique()})
        for name in ("equiscale", "commit", "torch", "device", "threads")
    }
    return {
        "made_with": f"equiscale {__version__}",
        "made_at": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "runs": len(runs),
        "our_runs": study.shipped,
        "reported_runs": len(study.reported),
        "missing_runs": int(study.cells["missing"].list.len().sum()),
        "others": dict(study.others),
        "problems": [*study.problems, *_problems(study)],
        "versions": versions,
        "datasets": dict(runs.select("dataset", "dataset_hash").unique().sort("dataset").rows()),
        "paper_protocol": PROTOCOL_VERSION,
    }


def _problems(study: Study) -> list[str]:
    """Return what is wrong with runs without an accuracy or with a failed measurement."""
    failed = study.measurements.filter(pl.col("text").is_not_null(), quantity="error")
    problems = [
        f"no accuracy: {_run_text(row)}"
        for row in study.runs.filter(pl.col("test_accuracy").is_null()).to_dicts()
    ]
    return problems + [
        f"{row['measurement']} of {_run_text(row)} was not measured: {row['text']}"
        for row in study.runs.join(failed, on="run_id", maintain_order="left").to_dicts()
    ]


def _run_text(row: Mapping[str, Any]) -> str:
    model = ModelKey(row["model"], row["options"])
    return f"{model} on {row['dataset']} {row['scenario']} seed {row['seed']}"


def _plain_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [_plain(row) for row in frame.iter_rows(named=True)]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as plain JSON: rounded, null for what is not finite, one key per model."""
    plain = {name: _rounded(value) for name, value in row.items()}
    if "options" in plain:
        plain["model"] = str(ModelKey(plain["model"], plain.pop("options")))
    return plain


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value

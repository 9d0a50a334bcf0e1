"""What the page knows: plain data, made from runs, without a word of HTML."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale import __version__
from equiscale.analysis.comparison import (
    CITATION,
    compare_costs,
    published_accuracy,
    published_curves,
)
from equiscale.analysis.runs import CELL, SIZES, Runs, RunSelection
from equiscale.analysis.summaries import (
    best_channels,
    channel_correlations,
    compare_models,
    find_variants,
    rank_cells,
    reported_runs,
    reported_selections,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
    summarize_sizes,
)
from equiscale.core.protocol import PROTOCOL_VERSION
from equiscale.core.spec import Scenario
from equiscale.report.style import (
    SCENARIO_LABELS,
    dataset_label,
    order_datasets,
    style_models,
)

MAP_CHANNELS = 8
MAP_BUDGET = 1_500_000
"""Compressed bytes of pixel maps that a page may hold; what does not fit is said."""

SELECTION_BUDGET = 1_500_000
_FIRST_LETTER = ord("0")


def page_data(runs: Runs) -> dict[str, Any]:
    """Return everything that the page shows, as plain JSON without NaN."""
    reported = reported_runs(runs.table)
    cells = summarize_accuracy(reported)
    published = _published(cells["dataset_name"].unique().to_list())
    models = {*cells["model"].to_list(), *(row["model"] for row in published["cells"])}
    variants = find_variants(cells["model"])
    selections, left_out = _selections(reported_selections(runs.selections, reported))
    return {
        "provenance": _provenance(runs, reported, cells) | {"selections_left_out": left_out},
        "sizes": list(SIZES),
        "scenarios": _scenarios(cells),
        "datasets": [
            {"key": key, "label": dataset_label(key)}
            for key in order_datasets(cells["dataset"].to_list())
        ],
        "protocols": _protocols(cells),
        "models": [
            {"key": key, "variant": key in variants, **vars(style)}
            for key, style in style_models(sorted(models)).items()
        ],
        "cells": _cells(cells, reported),
        "costs": _plain_rows(compare_costs(summarize_costs(reported))),
        "rankings": {
            protocol: vars(ranking)
            for protocol in cells["protocol"].unique().sort()
            if (ranking := rank_cells(cells, protocol)) is not None
        },
        "pairs": _plain_rows(compare_models(cells)),
        "published": published,
        "selections": selections,
    }


def _cells(cells: pl.DataFrame, reported: pl.DataFrame) -> list[dict[str, Any]]:
    curves = _group(summarize_sizes(reported), CELL)
    errors = _group(summarize_equivariance(reported), CELL)
    rows = []
    for row in _plain_rows(cells):
        keys = tuple(row[name] for name in CELL)
        curve = {
            name: _rounded(column)
            for name in ("mean", "low", "high")
            for column in [curves[keys][name].to_list() if keys in curves else []]
        }
        rows.append({**row, "curve": curve, "errors": _errors(errors.get(keys))})
    return rows


def _errors(errors: pl.DataFrame | None) -> dict[str, list[dict[str, Any]]]:
    """Return seed, error, undefined and accuracy of every run, by stage."""
    if errors is None:
        return {}
    wanted = ["seed", "error", "undefined", "test_accuracy"]
    stages = errors.group_by("stage", maintain_order=True)
    return {str(keys[0]): _plain_rows(part.select(wanted)) for keys, part in stages}


def _group(frame: pl.DataFrame, by: Iterable[str]) -> dict[tuple[Any, ...], pl.DataFrame]:
    return dict(frame.group_by(*by, maintain_order=True)) if len(frame) else {}


def _scenarios(cells: pl.DataFrame) -> list[dict[str, Any]]:
    present = set(cells["scenario"].to_list())
    return [
        {
            "key": s.value,
            "label": SCENARIO_LABELS[s],
            "train": [s.train_sizes[0], s.train_sizes[-1]],
        }
        for s in Scenario
        if s.value in present
    ]


def _protocols(cells: pl.DataFrame) -> list[str]:
    """Return the protocols, the paper's first, then those with most runs."""
    counts = cells.group_by("protocol").agg(pl.col("runs").sum()).rows()
    return [name for name, _ in sorted(counts, key=lambda c: (c[0] != PROTOCOL_VERSION, -c[1]))]


def _published(datasets: list[str]) -> dict[str, Any]:
    """Return the published figures of the datasets that occur."""
    known = published_accuracy().filter(pl.col("dataset").is_in(datasets))
    curves = published_curves()
    cells = [
        {**row, "curve": curves[row["dataset"], row["scenario"], row["model"]]}
        for row in known.iter_rows(named=True)
    ]
    return {"citation": CITATION, "protocol": PROTOCOL_VERSION, "cells": cells}


def _selections(selections: Iterable[RunSelection]) -> tuple[list[dict[str, Any]], int]:
    """Return one entry per cell as far as they fit, and of how many cells something does not."""
    entries, left_out = [], 0
    selection_bytes = map_bytes = 0
    for selection in selections:
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
                **dict(zip(CELL, selection.cell, strict=True)),
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


def _pixel_maps(selection: RunSelection, layer: str) -> dict[str, Any] | None:
    """Return the maps of the channels that follow the object best, for the example object."""
    if layer not in selection.maps:
        return None
    maps = selection.maps[layer]
    best = best_channels(channel_correlations(selection, layer, selection.example))[:MAP_CHANNELS]
    return {
        "channels": best,
        "side": maps.shape[-1],
        "text": encode_sizes(maps[:, best]),
        "object": selection.class_names[selection.example // selection.instances],
    }


def encode_sizes(kernel_sizes: NDArray[np.uint8]) -> str:
    """Return kernel sizes as a text with one character each, '0' for 0, in the array's order."""
    codes = kernel_sizes.astype(np.uint16) + _FIRST_LETTER
    codes[codes >= ord("\\")] += 1  # the backslash would be escaped in JSON
    return codes.tobytes().decode("utf-16-le")


def _compressed(text: str) -> int:
    return len(zlib.compress(text.encode(), 6))


def _provenance(runs: Runs, reported: pl.DataFrame, cells: pl.DataFrame) -> dict[str, Any]:
    table = runs.table
    names = ("equiscale", "commit", "torch", "device", "threads")
    versions = {
        name: sorted({str(value) for value in table[name].drop_nulls().unique()})
        for name in names
        if name in table.columns
    }
    return {
        "made_with": f"equiscale {__version__}",
        "made_at": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "runs": len(table),
        "our_runs": runs.ours,
        "reported_runs": len(reported),
        "missing_runs": int(cells["missing"].list.len().sum()),
        "others": dict(runs.others),
        "problems": [*runs.problems, *_problems(table)],
        "versions": versions,
        "datasets": _dataset_hashes(table),
        "paper_protocol": PROTOCOL_VERSION,
    }


def _problems(table: pl.DataFrame) -> list[str]:
    """Return, for each run without an accuracy or with a failed measurement, what is wrong."""
    failed = [name for name in table.columns if name.endswith(".error")]
    wrong = table.filter(pl.any_horizontal(pl.col("test_accuracy").is_null(), *_given(failed)))
    problems = []
    for row in wrong.iter_rows(named=True):
        run = f"{row['model']} on {row['dataset']} {row['scenario']} seed {row['seed']}"
        if row["test_accuracy"] is None:
            problems.append(f"no accuracy: {run}")
        problems += [
            f"{name.removesuffix('.error')} of {run} was not measured: {row[name]}"
            for name in failed
            if row[name] is not None
        ]
    return problems


def _given(columns: list[str]) -> list[pl.Expr]:
    return [pl.col(name).is_not_null() for name in columns]


def _dataset_hashes(table: pl.DataFrame) -> dict[str, str]:
    pairs = table.select("dataset", "dataset_hash").unique().sort("dataset").rows()
    return dict(pairs)


def _plain_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain JSON: rounded, and null for what is not finite."""
    return [
        {name: _rounded(value) for name, value in row.items()}
        for row in frame.iter_rows(named=True)
    ]


def _rounded(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return value

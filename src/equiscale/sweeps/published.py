"""The learning rates with which the paper ran each cell. No torch."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

PUBLISHED = "published"
"""What a sweep may name instead of learning rates."""

Cell = tuple[str, str, str]


@cache
def published_learning_rates() -> Mapping[Cell, float]:
    """Return the learning rate by dataset, scenario and model.

    Examples:
        >>> published_learning_rates()["emoji", "all2all", "pixel_pool"]
        0.01
    """
    path = resources.files("equiscale") / "reference" / "published_accuracy.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {(row["dataset"], row["scenario"], row["model"]): float(row["lr"]) for row in rows}

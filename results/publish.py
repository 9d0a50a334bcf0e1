"""Bring our runs to where people look: table, page, documentation, weights.

    python -m results.publish

Reads `results/runs` and `benchmarks/results`, and writes `results/runs.csv`,
`results/report.html`, the marked tables of the pages, the figures in `docs/images/results/`, and
the runs and weights that come with the package. A test compares what is committed with what this
writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equiscale.analysis.our_runs import OUR_RUNS
from equiscale.analysis.runs import read_runs
from equiscale.core.files import atomic_write
from equiscale.core.spec import Scenario
from equiscale.report.figures import MAIN_MODELS, write_figures
from equiscale.report.page import write_page
from equiscale.results.key import PROTOCOL_VERSION
from equiscale.results.record import RunRecord
from equiscale.results.store import RunStore
from equiscale.results.table import record_row, write_table
from results.pictures import draw_headline
from results.tables import BLOCKS, Evidence

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "runs"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("results", "models", "scale-channels", "fast-layer")
    ),
)
PICTURES = ROOT / "docs" / "images" / "results"
FIGURES = (
    "suppl1-accuracy",
    "suppl2-accuracy-per-size",
    "suppl3-equivariance",
    "fig7-slice-selection",
    "suppl4-pixel-selection",
)
OUR_TABLE = ROOT / "src" / "equiscale" / "reference" / OUR_RUNS
WEIGHTS = ROOT / "src" / "equiscale" / "models" / "weights"
SHIPPED = (*MAIN_MODELS, "scale_channels")


def fill(text: str, evidence: Evidence) -> str:
    """Return a page with its marked tables written anew."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}{BLOCKS[found[2]](evidence)}{found[3]}"

    return re.sub(r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)", block, text, flags=re.DOTALL)


def choose_weights(store: RunStore) -> Iterator[tuple[str, RunRecord]]:
    """Yield name and record of the weights to ship: of each model the run that validated best."""
    best: dict[str, RunRecord] = {}
    for record in store.load_all():
        key = record.key
        wanted = (key.dataset, key.scenario) == ("emoji", Scenario.MID_TO_REST)
        usual = key.protocol.changes == {} and not key.model_options
        if wanted and usual and key.model in SHIPPED and record.weights is not None:
            known = best.get(key.model)
            if known is None or _merit(record) > _merit(known):
                best[key.model] = record
    for model in SHIPPED:
        if model in best:
            yield f"{model}/emoji/mid2rest", best[model]


def _merit(record: RunRecord) -> tuple[float, int]:
    return record.valid_accuracy, -record.key.seed


def weights_cards(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return the cards of the weights to ship."""
    return {
        name: {
            "run_id": record.key.run_id,
            "seed": record.key.seed,
            "learning_rate": record.key.learning_rate,
            "dataset_hash": record.key.dataset_hash,
            "test_accuracy": record.test_accuracy,
            "accuracy_per_size": record.predictions.accuracy_per_size(),
        }
        for name, record in choose_weights(store)
    }


def write_weights(store: RunStore) -> None:
    """Write weights and cards into the package."""
    for old in WEIGHTS.glob("*.safetensors"):
        old.unlink()
    for name, record in choose_weights(store):
        assert record.weights is not None
        _write(WEIGHTS / f"{name.replace('/', '-')}.safetensors", record.weights)
    _write(WEIGHTS / "cards.json", (json.dumps(weights_cards(store), indent=1) + "\n").encode())


def collected_rows(store: RunStore) -> list[dict[str, Any]]:
    """Return one row per run, in an order that does not depend on when they were finished."""
    rows = [record_row(record) for record in store.load_all()]
    return sorted(rows, key=lambda row: [row[name] for name in _ORDER])


_ORDER = ("protocol", "dataset", "scenario", "model", "model_options", "seed", "learning_rate")


def write_our_runs(rows: list[dict[str, Any]], path: Path) -> None:
    """Write what comes with the package: usual runs, and of them what no machine changes."""
    usual = (r for r in rows if r["protocol"] == PROTOCOL_VERSION and r["model_options"] == "{}")
    write_table(({name: v for name, v in row.items() if _KEPT.match(name)} for row in usual), path)


_KEPT = re.compile(
    r"(run_id|model|model_options|dataset|dataset_hash|scenario|seed|learning_rate|protocol"
    r"|test_accuracy|valid_accuracy|accuracy_\d+|equivariance\..*|cost\.parameters)$"
)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(content)


def main() -> None:
    """Write everything that follows from the runs."""
    store, evidence = RunStore(RUNS), Evidence(read_runs(RUNS))
    rows = collected_rows(store)
    write_table(rows, ROOT / "results" / "runs.csv")
    write_our_runs(rows, OUR_TABLE)
    write_page(evidence.runs, ROOT / "results" / "report.html")
    write_weights(store)
    for page in PAGES:
        _write(page, fill(page.read_text(encoding="utf-8"), evidence).encode())
    draw_headline(evidence, PICTURES / "accuracy-per-size.svg")
    for name, outcome in write_figures(
        evidence.runs_without_variants, PICTURES, FIGURES, ("svg",)
    ).items():
        print(f"{name}: {outcome}")
    print(f"{len(evidence.runs.table)} runs published")


if __name__ == "__main__":
    main()

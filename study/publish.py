"""Bring our runs to where people look: table, page, documentation, weights.

    python -m study.publish

Reads `study/runs` and `perf/figures`, and writes `study/runs.csv`,
`study/report.html`, the marked tables of the pages, the figures in `docs/images/results/`, and
the runs and weights that come with the package. A test compares what is committed with what this
writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equiscale.analysis.our_runs import OUR_RUNS
from equiscale.analysis.runs import read_runs
from equiscale.core.files import atomic_write
from equiscale.core.spec import Scenario
from equiscale.report.figures import MAIN_MODELS, write_figures
from equiscale.report.page import write_page
from equiscale.runs.key import PROTOCOL_VERSION
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore
from equiscale.runs.table import record_row, write_table
from study.evidence import Evidence
from study.pictures import draw_headline
from study.tables import BLOCKS

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "study" / "runs"
PAGES = {
    "README.md": ("results",),
    "docs/results.md": ("results", "published", "published-directions", "equivariance"),
    "docs/models.md": ("costs",),
    "docs/scale-channels.md": (
        "transfer",
        "batch-norm",
        "channel-pooling",
        "ablations",
        "channel-sizes",
    ),
    "docs/fast-layer.md": ("layer-cost",),
    "docs/running.md": ("whole-paper",),
    "study/details.md": (
        "others",
        "winners",
        "directions",
        "ends",
        "slice-selection",
        "pixel-selection",
        "epochs",
        "layer-choices",
        "stopping",
        "channels-alone",
        "confusions",
    ),
}
"""Tables of each page, in their order."""

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


def fill(text: str, names: Sequence[str], evidence: Evidence) -> str:
    """Return a page with its marked tables, these and no others, written anew."""
    found = re.findall(r"<!--\s*(?:begin|end)\s*:.*?-->", text)
    expected = [f"<!-- {kind}: {name} -->" for name in names for kind in ("begin", "end")]
    if found != expected:
        raise ValueError(f"the page has the marks {found}, expected are {expected}")
    for name in names:
        start, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}{BLOCKS[name](evidence)}{end}{rest.partition(end)[2]}"
    return text


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
            "protocol": record.key.protocol.label,
            "equiscale": record.environment["equiscale"],
            "commit": record.environment["commit"],
            "valid_accuracy": record.valid_accuracy,
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


def write_pictures(evidence: Evidence, directory: Path) -> None:
    """Write the figures of the pages, and the values that they show."""
    draw_headline(evidence, directory / "accuracy-per-size.svg")
    runs = evidence.shown_runs
    for name, outcome in write_figures(runs, directory, FIGURES, ("svg",)).items():
        print(f"{name}: {outcome}")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(content)


def main() -> None:
    """Write everything that follows from the runs."""
    store, evidence = RunStore(RUNS), Evidence(read_runs(RUNS))
    if evidence.runs.problems or store.quarantined():
        raise SystemExit(
            f"damaged records, nothing was published; bring them back into {RUNS / 'done'} and "
            f"empty {RUNS / 'quarantine'}: {evidence.runs.problems or store.quarantined()}"
        )
    rows = collected_rows(store)
    write_table(rows, ROOT / "study" / "runs.csv")
    write_our_runs(rows, OUR_TABLE)
    write_page(replace(evidence.runs, others={}), ROOT / "study" / "report.html")
    write_weights(store)
    for page, names in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        _write(ROOT / page, fill(text, names, evidence).encode())
    write_pictures(evidence, PICTURES)
    print(f"{len(evidence.runs.table)} runs published")


if __name__ == "__main__":
    main()

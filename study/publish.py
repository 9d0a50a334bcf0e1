"""Write everything that follows from our runs: tables, page, documentation, weights.

    python -m study.publish

Reads `study/runs` and `perf/figures`. Writes `study/runs.csv`, `study/report.html`, the marked
tables of the pages, the figures in `docs/images/results/`, and the runs and weights that come with
the package.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from equiscale import Scenario, list_models
from equiscale.analysis.study import Study
from equiscale.report.figures import MAIN_MODELS, TABLES, write_figures
from equiscale.report.page import write_page
from equiscale.runs.record import RunRecord
from equiscale.runs.table import write_tables
from equiscale.sweeps.weights import run_card
from study.evidence import ROOT, RUNS, TRANSFER, Evidence, load_records
from study.pictures import COLOURS, Curves, draw_curves, model_curves
from study.tables import BACKBONE, BLOCKS, HEADLINE, PHOTOS, backbone_curves

PAGES = {
    "README.md": "highlights",
    "docs/results.md": "results published traffic-signs published-directions",
    "docs/models.md": "models variants costs",
    "docs/scale-channels.md": "transfer photos quickness photo-ablations backbone batch-norm",
    "study/scale_channels.md": "channel-pooling ablations channel-sizes",
    "docs/fast-layer.md": "layer-cost",
    "docs/running.md": "whole-paper",
    "study/details.md": "others winners learning-rates directions ends equivariance "
    "slice-selection pixel-selection epochs layer-choices stopping channels-alone confusions",
}
"""Tables of each page, in their order."""

PICTURES = "docs/images/results"
FIGURES = (
    "suppl1-accuracy",
    "suppl2-accuracy-per-size",
    "suppl3-equivariance",
    "fig7-slice-selection",
    "suppl4-pixel-selection",
)
WEIGHTS = "src/equiscale/models/weights"
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


def choose_weights(records: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Return the records of the weights to ship: of each model the run that validated best."""
    best: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda record: (-record.valid_accuracy, record.key.seed)):
        key = record.key
        wanted = (key.dataset, key.scenario) == ("emoji", Scenario.MID_TO_REST)
        usual = not key.protocol.changes and not key.model_options
        if wanted and usual and record.weights is not None:
            best.setdefault(key.model, record)
    return {f"{model}/emoji/mid2rest": best[model] for model in SHIPPED if model in best}


def write_cards(weights: dict[str, RunRecord], path: Path) -> None:
    """Write what is known about the weights."""
    cards = {name: asdict(run_card(record)) for name, record in weights.items()}
    for card in cards.values():
        del card["name"]
    path.write_text(json.dumps(cards, indent=1) + "\n", encoding="utf-8")


_KEPT = (
    *("run_id", "model", "dataset", "dataset_hash", "scenario", "seed", "learning_rate"),
    *("protocol", "test_accuracy", "valid_accuracy"),
)


def write_our_runs(evidence: Evidence, directory: Path) -> None:
    """Write what comes with the package: models as they are, nothing that a machine changes."""
    runs = evidence.usual.runs.filter(pl.col("model").is_in(list_models()), options="")
    timed = (pl.col("measurement") == "cost") & (pl.col("quantity") != "parameters")
    values = evidence.study.measurements.filter(
        pl.col("run_id").is_in(runs["run_id"].to_list()),
        ~timed,
        pl.col("measurement") != "scale_selection",
    )
    runs.select(_KEPT).write_csv(directory / "our_runs.csv")
    values.drop("text").write_csv(directory / "our_runs.measurements.csv")


def write_generated(records: Sequence[RunRecord], root: Path) -> None:
    """Write every generated table below a directory that is laid out like the repository."""
    evidence = Evidence(records)
    files = ["study/runs.csv", "src/equiscale/reference/x", f"{WEIGHTS}/x", f"{PICTURES}/x"]
    for name in [*PAGES, *files]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    write_tables(records, root / "study" / "runs.csv")
    write_our_runs(evidence, root / "src" / "equiscale" / "reference")
    write_cards(choose_weights(records), root / WEIGHTS / "cards.json")
    for name in TABLES.keys() & set(FIGURES):
        TABLES[name](shown(evidence)).write_csv(root / PICTURES / f"{name}.csv")
    for page, names in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (root / page).write_text(fill(text, names.split(), evidence), encoding="utf-8")


def find_stale() -> list[str]:
    """Return the generated tables in the repository that differ from what the records say."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_generated(load_records(RUNS), root)
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        kept = {path: ROOT / path.relative_to(root) for path in files}
        return [
            str(old.relative_to(ROOT))
            for new, old in kept.items()
            if not old.exists() or old.read_bytes() != new.read_bytes()
        ]


def shown(evidence: Evidence) -> Study:
    """Return the runs for figures, without ablations and controls."""
    models = [*list_models("paper"), *list_models("beyond")]
    return evidence.paper.where(pl.col("model").is_in(models), options="")


def main() -> None:
    """Write everything that follows from the runs."""
    records = load_records(RUNS)
    write_generated(records, ROOT)
    evidence = Evidence(records)
    write_page(evidence.study, ROOT / "study" / "report.html")
    for old in (ROOT / WEIGHTS).glob("*.safetensors"):
        old.unlink()
    for name, record in choose_weights(records).items():
        assert record.weights is not None
        (ROOT / WEIGHTS / f"{name.replace('/', '-')}.safetensors").write_bytes(record.weights)
    pictures: dict[str, tuple[Mapping[Scenario, Curves], Mapping[str, str]]] = {
        "accuracy-per-size": model_curves(evidence, "emoji", HEADLINE),
        "photos-per-size": model_curves(evidence, "gtsrb", PHOTOS),
        "backbone-per-size": (
            {scenario: backbone_curves(evidence, scenario) for scenario in TRANSFER},
            dict(zip(BACKBONE, COLOURS, strict=True)),
        ),
    }
    for name, (panels, colours) in pictures.items():
        if any(panels.values()):
            draw_curves(panels, colours, ROOT / PICTURES / f"{name}.svg")
    outcome = write_figures(shown(evidence), ROOT / PICTURES, FIGURES, ("svg",))
    print("\n".join(f"{name}: {text}" for name, text in outcome.items()))
    print(f"{len(records)} runs published")


if __name__ == "__main__":
    main()

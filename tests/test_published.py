"""What is published under results/, in the pages and in the package follows from the records."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from equiscale import Split, list_weights, load_dataset, load_model
from equiscale.analysis.runs import read_runs
from equiscale.core.errors import UnknownNameError
from equiscale.metrics.inference import predict
from equiscale.models import weights_card
from equiscale.report.page import render_page
from equiscale.report.page_data import page_data
from equiscale.runs.store import RunStore
from equiscale.runs.table import write_table
from study import publish
from study.evidence import Evidence
from study.tables import BLOCKS

pytestmark = pytest.mark.slow
MEGABYTE = 1_000_000
SIZES = (17, 29, 40, 52, 64)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence(read_runs(publish.RUNS))


@pytest.mark.parametrize("page", publish.PAGES)
def test_tables_of_the_pages_are_those_of_the_records(page: str, evidence: Evidence) -> None:
    text = _page(page)
    assert publish.fill(text, publish.PAGES[page], evidence) == text, "run `make study`"


def test_every_table_is_shown_somewhere() -> None:
    assert {name for names in publish.PAGES.values() for name in names} == set(BLOCKS)


def test_a_changed_number_is_noticed(evidence: Evidence) -> None:
    text, marker = _page("README.md"), "<!-- end: results -->"
    assert marker in text
    changed = text.replace(marker, f"| 99.9 |\n{marker}")
    assert publish.fill(changed, publish.PAGES["README.md"], evidence) == text


@pytest.mark.parametrize(
    ("mark", "other"), [("<!-- end: results -->", ""), ("end: results", "end:results")]
)
def test_a_mark_that_is_missing_or_misspelt_is_noticed(
    mark: str, other: str, evidence: Evidence
) -> None:
    text = _page("README.md").replace(mark, other)
    with pytest.raises(ValueError, match="expected are"):
        publish.fill(text, publish.PAGES["README.md"], evidence)


def _page(name: str) -> str:
    return (publish.ROOT / name).read_text(encoding="utf-8")


def test_no_record_is_damaged(evidence: Evidence) -> None:
    assert evidence.runs.problems == ()
    assert RunStore(publish.RUNS).quarantined() == []


def test_the_collected_table_is_that_of_the_records(tmp_path: Path) -> None:
    write_table(publish.collected_rows(RunStore(publish.RUNS)), tmp_path / "runs.csv")
    committed = publish.ROOT / "study" / "runs.csv"
    assert (tmp_path / "runs.csv").read_text() == committed.read_text(), "run `make study`"


def test_the_page_shows_the_runs_of_the_records(evidence: Evidence) -> None:
    (packed,) = re.findall(r'id="data">([^<]+)<', _page("study/report.html"))
    shown = json.loads(gzip.decompress(base64.b64decode(packed)))
    expected = json.loads(json.dumps(page_data(evidence.runs)))
    for facts in (shown["provenance"], expected["provenance"]):
        for moment in ("made_at", "made_with", "others"):
            del facts[moment]
    assert shown == expected, "run `make study`"


def test_the_page_says_how_many_runs_it_shows(evidence: Evidence) -> None:
    made = r", collected [^<]+"
    (shown,) = re.findall(f'<p class="quiet">([^<]+?){made}</p>', _page("study/report.html"))
    (expected,) = re.findall(f'<p class="quiet">([^<]+?){made}</p>', render_page(evidence.runs))
    assert shown == expected


def test_values_of_the_figures_are_those_of_the_records(evidence: Evidence, tmp_path: Path) -> None:
    publish.write_pictures(evidence, tmp_path)
    values = sorted(path.name for path in tmp_path.glob("*.csv"))
    assert values == sorted(path.name for path in publish.PICTURES.glob("*.csv"))
    for name in values:
        committed = (publish.PICTURES / name).read_text()
        assert (tmp_path / name).read_text() == committed, "run `make study`"
    pictures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert pictures == sorted(path.name for path in publish.PICTURES.glob("*.svg"))
    for name in pictures:
        drawn, committed = ((root / name).read_text() for root in (tmp_path, publish.PICTURES))
        if _drawn_with(drawn) == _drawn_with(committed):  # others place their letters elsewhere
            assert drawn == committed, f"{name}: run `make study`"


def _drawn_with(picture: str) -> str:
    """Return the version of Matplotlib that wrote a picture."""
    (version,) = re.findall(r"<dc:title>Matplotlib v([^,<]+)", picture)
    return str(version)


def test_runs_that_come_with_the_package_are_those_of_the_records(tmp_path: Path) -> None:
    publish.write_our_runs(publish.collected_rows(RunStore(publish.RUNS)), tmp_path / "ours.csv")
    assert (tmp_path / "ours.csv").read_bytes() == publish.OUR_TABLE.read_bytes()


def test_page_and_weights_are_small() -> None:
    assert (publish.ROOT / "study" / "report.html").stat().st_size < 5 * MEGABYTE
    weights = list(publish.WEIGHTS.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in weights) < 5 * MEGABYTE
    assert {path.stem for path in weights} == {name.replace("/", "-") for name in list_weights()}


def test_cards_are_those_of_the_records() -> None:
    committed = json.loads((publish.WEIGHTS / "cards.json").read_text())
    expected = publish.weights_cards(RunStore(publish.RUNS))
    assert committed == json.loads(json.dumps(expected))


def test_weights_are_those_of_the_runs() -> None:
    for name, record in publish.choose_weights(RunStore(publish.RUNS)):
        assert weights_card(name).path.read_bytes() == record.weights, name


@pytest.mark.parametrize("name", list_weights())
def test_weights_reach_what_their_card_says(name: str, emoji_file: Path) -> None:
    """Two test images per size may fall differently: other processors round differently."""
    dataset, card = load_dataset(emoji_file), weights_card(name)
    model = load_model(name)
    assert tuple(model.class_names) == dataset.class_names  # type: ignore[arg-type]
    part = dataset.select(Split.TEST, SIZES)
    hits = (predict(model, part.images) == part.labels).double()
    for size in SIZES:
        own = hits[part.object_sizes == size]
        expected = pytest.approx(card.accuracy_per_size[size], abs=2.5 / len(own))
        assert own.mean().item() == expected, size


def test_unknown_weights_name_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'standard/emoji/mid2rest'"):
        load_model("standart/emoji/mid2rest")


@pytest.mark.parametrize("part", ["pixel_pool", "pixel_pool/emoji"])
def test_a_part_of_a_name_is_completed(part: str) -> None:
    with pytest.raises(UnknownNameError, match="pixel_pool/emoji/mid2rest"):
        load_model(part)


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "standard" / "emoji" / "mid2rest"
    path.parent.mkdir(parents=True)
    path.write_bytes(weights_card("ensemble/emoji/mid2rest").path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert load_model("standard/emoji/mid2rest").spec.name == "ensemble"  # type: ignore[union-attr]

"""What is published follows from the records under study/runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from equiscale import list_weights, load_model
from equiscale.core.errors import UnknownNameError
from equiscale.models import weights_card
from study.publish import find_stale


@pytest.mark.slow
def test_generated_tables_are_fresh() -> None:
    assert find_stale() == [], "run `make study`"


def test_every_card_has_its_weights() -> None:
    for name in list_weights():
        assert weights_card(name).path.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("standart/emoji/mid2rest", "did you mean 'standard/emoji/mid2rest'"),
        ("pixel_pool", "pixel_pool/emoji/mid2rest"),
        ("pixel_pool/emoji", "pixel_pool/emoji/mid2rest"),
    ],
)
def test_unknown_weights_name_the_near_ones(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        load_model(name)


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "standard" / "emoji" / "mid2rest"
    path.parent.mkdir(parents=True)
    path.write_bytes(weights_card("ensemble/emoji/mid2rest").path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert load_model("standard/emoji/mid2rest").spec.name == "ensemble"  # type: ignore[union-attr]

"""What is published follows from the records under study/runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from equiscale import Split, list_weights, load_dataset, load_model
from equiscale.core.errors import UnknownNameError
from equiscale.metrics.inference import predict
from equiscale.models import weights_card
from study.publish import find_stale

SIZES = (17, 29, 40, 52, 64)


@pytest.mark.slow
def test_generated_tables_are_fresh() -> None:
    assert find_stale() == [], "run `make study`"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["standard", "pixel_pool", "scale_channels"])
def test_weights_reach_what_their_card_says(model: str, emoji_file: Path) -> None:
    """Two test images per size may differ: other processors round differently."""
    name = f"{model}/emoji/mid2rest"
    dataset, card = load_dataset(emoji_file), weights_card(name)
    network = load_model(name)
    assert tuple(network.class_names) == dataset.class_names  # type: ignore[arg-type]
    part = dataset.select(Split.TEST, SIZES)
    hits = (predict(network, part.images) == part.labels).double()
    for size in SIZES:
        own = hits[part.object_sizes == size]
        expected = pytest.approx(card.accuracy_per_size[size], abs=2.5 / len(own))
        assert own.mean().item() == expected, size


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

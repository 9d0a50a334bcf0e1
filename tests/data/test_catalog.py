from __future__ import annotations

from pathlib import Path

import pytest

from equiscale.core.errors import DatasetNotFoundError, OptionError, UnknownNameError
from equiscale.core.spec import Layout
from equiscale.data.catalog import CARDS, dataset_path, locate_dataset, register_dataset
from equiscale.data.schema import METADATA_KEYS, StirArrays, read_arrays


@pytest.mark.parametrize("name", list(CARDS))
def test_every_card_is_complete(name: str) -> None:
    card = CARDS[name]
    assert card.name == name
    assert len(card.class_names) in (0, card.num_classes)
    assert len(set(card.class_names)) == len(card.class_names)
    assert card.channels in (1, 3)
    assert all((card.title, card.description, card.license, card.source, card.citation))
    assert set(card.metadata()) == set(METADATA_KEYS)


def test_bad_registrations_are_refused() -> None:
    def build(layout: Layout) -> StirArrays:
        raise NotImplementedError

    with pytest.raises(OptionError, match="must take layout, workers, progress; workers, progress"):
        register_dataset("dots", title="Dots", license="CC0")(build)
    assert "dots" not in CARDS


def test_cache_directory_is_the_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUISCALE_DATA", str(tmp_path))
    assert dataset_path("emoji") == tmp_path / "emoji.npz"
    monkeypatch.delenv("EQUISCALE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert dataset_path("emoji").name == "emoji.npz"
    assert dataset_path("emoji").parent.name == "equiscale"


def test_missing_dataset_names_both_ways(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        locate_dataset("mnist", tmp_path, download=False)
    message = str(caught.value)
    assert "`equiscale data download mnist` or `equiscale data build mnist" in message
    assert str(tmp_path) in message
    with pytest.raises(DatasetNotFoundError, match="run `equiscale data build fashion --source"):
        locate_dataset("fashion", tmp_path)
    with pytest.raises(DatasetNotFoundError, match="give a file"):
        locate_dataset(str(tmp_path / "absent.npz"))


def test_emoji_comes_with_the_package_and_a_file_of_ones_own_wins(tmp_path: Path) -> None:
    embedded = locate_dataset("emoji", tmp_path, download=False)
    assert read_arrays(embedded).content_hash == CARDS["emoji"].content_hash
    own = tmp_path / "emoji.npz"
    own.touch()
    assert locate_dataset("emoji", tmp_path) == own


def test_unknown_name_lists_near_matches_and_own_files(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").touch()
    with pytest.raises(UnknownNameError, match=r"did you mean 'emoji'.*gtsrb, .*, mine"):
        locate_dataset("emojis", tmp_path)

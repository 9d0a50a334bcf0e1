from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from equiscale.build.options import SignBackground
from equiscale.build.signs import SIGN_FILES, build_signs
from equiscale.build.vector import DrawingError
from equiscale.core.errors import SourceError
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays


@pytest.fixture(scope="module")
def plain(signs_source: Path) -> StirArrays:
    return build_signs(signs_source)


@pytest.mark.needs("npm", "cairo")
@pytest.mark.skipif(
    metadata.version("cairosvg") != "2.9.1", reason="other renderers draw other pixels"
)
def test_images_are_those_of_the_card(plain: StirArrays) -> None:
    assert plain.content_hash == CARDS["signs"].content_hash


@pytest.mark.needs("npm", "cairo")
def test_random_backgrounds_are_only_behind_the_signs(
    plain: StirArrays, signs_source: Path
) -> None:
    random = build_signs(signs_source, SignBackground.RANDOM, workers=2)
    assert np.array_equal(random.positions, plain.positions)
    assert plain.metadata["description"].endswith("Background: plain.")
    assert random.metadata["description"].endswith("Background: random.")
    same = (random.images == plain.images).all(axis=-1)
    centre = [(*where, *(random.positions[where][::-1] + 32)) for where in np.ndindex(3, 1, 16, 1)]
    assert all(same[where] for where in centre)
    corners = random.images[:, 40:, :, :, [0, 0, -1, -1], [0, -1, 0, -1]].reshape(-1, 4, 3)
    assert len(np.unique(np.median(corners, axis=1), axis=0)) > 300


def test_missing_drawings_say_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="npm pack @rapideditor"):
        build_signs(tmp_path)


@pytest.mark.needs("cairo")
def test_a_broken_drawing_is_named(tmp_path: Path) -> None:
    for name in SIGN_FILES.values():
        (tmp_path / f"{name}.svg").write_text("<svg")
    with pytest.raises(DrawingError, match="stop: found a bad drawing"):
        build_signs(tmp_path)

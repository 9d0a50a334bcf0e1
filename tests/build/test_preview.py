from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equiscale.build.preview import draw_preview, write_preview
from equiscale.core.errors import OptionError, StorageError
from equiscale.core.spec import Split
from equiscale.data.schema import StirArrays, read_arrays


def test_sheet_shows_every_class_at_every_size(emoji_file: Path, tmp_path: Path) -> None:
    arrays = read_arrays(emoji_file)
    sheet = draw_preview(arrays, Split.TEST, sizes=(64, 17))
    write_preview(tmp_path / "sheet.png", sheet)
    with Image.open(tmp_path / "sheet.png") as image:
        pixels = np.asarray(image)
    assert pixels.shape[0] == 16 + 36 * 68
    cell = pixels[16 + 5 * 68 : 16 + 5 * 68 + 64, -68:-4]
    assert np.array_equal(cell[..., 0], arrays.images[2, 47, 5, 0])


def test_boxes_end_with_the_canvas(small_arrays: StirArrays) -> None:
    positions = np.full_like(small_arrays.positions, 50)
    arrays = replace(small_arrays, positions=positions)
    plain, framed = (
        np.asarray(draw_preview(arrays, sizes=(20,), boxes=boxes)) for boxes in (False, True)
    )
    rows, columns = np.nonzero((plain != framed).any(axis=-1))
    assert columns.max() == plain.shape[1] - 5  # the gap behind the canvas is left alone
    assert set((rows - 16) % 68) == set(range(50, 64))


def test_impossible_wishes_are_refused(small_arrays: StirArrays, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="choose 0…1"):
        draw_preview(small_arrays, instance=2)
    with pytest.raises(OptionError, match="17…64"):
        draw_preview(small_arrays, sizes=(16,))
    (tmp_path / "file").touch()
    sheet = draw_preview(small_arrays)
    with pytest.raises(StorageError, match="cannot write"):
        write_preview(tmp_path / "file" / "a.png", sheet)

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from PIL import Image
from tests.cli.conftest import Done, Run

from equiscale.data.catalog import CARDS
from equiscale.data.schema import read_arrays


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def data(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `equiscale data` with these arguments, in a wide terminal and without a network."""
    monkeypatch.setenv("EQUISCALE_RECORD", "http://127.0.0.1:9/record")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: run("data", *arguments)


def assert_refused(result: Done, message: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("error: ")
    assert message in result.err


def draw_pictures(root: Path, name: str, mode: str, side: int) -> Path:
    """Return a directory with three pictures of each of two classes, with one odd pixel each."""
    for number in range(6):
        folder = root / "pictures" / (name, "other")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.new(mode, (side, side), (number, 200, 0, 255)[: len(mode)])
        image.putpixel((9, 9), (0, 0, 0, 0)[: len(mode)])
        image.save(folder / f"{number}.png")
    return root / "pictures"


@pytest.mark.needs("cairo")
@pytest.mark.skipif(
    metadata.version("cairosvg") != "2.9.1", reason="other renderers draw other pixels"
)
def test_emoji_is_built_into_the_cache_and_previewed(
    data: Run, cache: Path, emoji_file: Path, tmp_path: Path
) -> None:
    done = data("build", "emoji", "--workers", "2")
    path = cache / "emoji.npz"
    assert (done.code, done.out.strip()) == (0, str(path))
    assert path.read_bytes() == emoji_file.read_bytes()
    assert_refused(data("build", "emoji"), "exists already; add --force to replace it")
    shown = data("preview", "emoji", "--boxes", "--out", tmp_path / "sheet.png")
    assert shown.code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 16 + 36 * 68


def test_list_shows_every_card_and_own_files(data: Run, small_file: Path, cache: Path) -> None:
    cache.mkdir()
    shutil.copy(small_file, cache / "mine.npz")
    shown = data("list").out
    rows = {line.split()[0]: line for line in shown.splitlines() if line[:1].strip()}
    assert {*CARDS, "mine"} <= rows.keys()
    assert "112     14…224" in rows["mnist_large_scale"]
    assert str(cache) in shown


def test_info_of_a_card_without_a_file_and_of_a_file(data: Run, small_file: Path) -> None:
    card = data("info", "mnist")
    assert card.code == 0
    assert "LeCun" in card.out
    assert "run `equiscale data download mnist` or" in card.out
    file = data("info", small_file)
    assert "cat, dog" in file.out
    assert read_arrays(small_file).content_hash in file.out


def test_info_tells_whether_a_file_is_what_its_card_says(
    data: Run, cache: Path, emoji_file: Path, small_file: Path
) -> None:
    cache.mkdir()
    for file, answer in ((emoji_file, "yes"), (small_file, "no")):
        shutil.copy(file, cache / "emoji.npz")
        assert f"as the card says  {answer}" in data("info", "emoji").out


def test_cache_that_is_a_file_is_called_that(data: Run, cache: Path) -> None:
    cache.touch()
    assert_refused(data("build", "emoji"), f"{cache} is not a directory")


def test_folder_is_built_and_previewed(data: Run, cache: Path, tmp_path: Path) -> None:
    source = ("--source", draw_pictures(tmp_path, "[red]", "RGB", 70))
    built = data("build", "folder", *source, "--name", "mine", "--workers", "1")
    assert built.code == 0, built.err
    assert read_arrays(cache / "mine.npz").class_names == ("[red]", "other")
    shown = data("preview", "mine", "--sizes", "64,17", "--out", tmp_path / "p.png")
    assert shown.code == 0
    wanted = data("build", "folder", *source, "--name", "m2", "--instances", "2")
    assert_refused(wanted, "[red]: 1+1+1, other: 1+1+1, expected 2 of every class")
    assert not (cache / "m2.npz").exists()
    unknown = data("build", "folder", *source, "--name", "m3", "--classes", "[red], blue one")
    assert_refused(unknown, "unknown class 'blue one'")


@pytest.mark.needs("pyarrow")
def test_export_writes_files_once(data: Run, small_file: Path, tmp_path: Path) -> None:
    wanted = ("export", small_file, "--format", "parquet", "--out", tmp_path / "out")
    names = [Path(line).name for line in data(*wanted).out.split()]
    assert names == ["train.parquet", "valid.parquet", "test.parquet", "croissant.json"]
    assert_refused(data(*wanted), "already; add --force to replace them")


def test_canvas_and_sizes_are_options(data: Run, cache: Path, tmp_path: Path) -> None:
    source = draw_pictures(tmp_path, "disc", "RGBA", 90)
    arguments = ("--source", source, "--name", "mine", "--workers", "1", "--cutouts")
    built = data("build", "folder", *arguments, "--canvas", "100", "--sizes", "30,90")
    assert built.code == 0, built.err
    arrays = read_arrays(cache / "mine.npz")
    assert (arrays.canvas, arrays.sizes) == (100, (90, 30))
    assert data("preview", "mine", "--out", tmp_path / "p.png").code == 0
    refused = data("build", "folder", *arguments, "--sizes", "65", "--force")
    assert_refused(refused, "do not fit on a canvas of 64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "emojis"), "unknown dataset 'emojis'; did you mean 'emoji'?"),
        (("info", "absent.npz"), "no dataset file absent.npz"),
        (("preview", "fashion"), "run `equiscale data build fashion --source DIR`"),
        (("preview", "mnist"), "get mnist.npz from https://zenodo.org/records/6578038"),
        (("download", "mnist"), "get mnist.npz from https://zenodo.org/records/6578038"),
        (("download", "signs"), "'signs' is not published"),
        (("download", "nothing"), "unknown dataset 'nothing'"),
        (("build", "mnist", "--source", "absent"), "absent: found nothing, expected a directory"),
        (("build", "gtsrb", "--source", "absent"), "absent: found nothing, expected a directory"),
        (("build", "folder", "--source", ".", "--name", "a/b"), "name 'a/b'"),
        (("build", "emoji", "--sizes", "20,x"), "object sizes '20,x': write integers"),
        (("build", "emoji", "--out", "/dev/null/a.npz"), "cannot write /dev/null/a.npz"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    data: Run, arguments: tuple[str, ...], message: str
) -> None:
    assert_refused(data(*arguments), message)


@pytest.mark.slow
@pytest.mark.needs("cairo")
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("wanted", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_nothing(cache: Path, wanted: signal.Signals) -> None:
    command = [sys.executable, "-m", "equiscale", "data", "build", "emoji", "--workers", "2"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "EQUISCALE_DATA": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not cache.exists():  # made right before the build starts
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(wanted)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert list(cache.iterdir()) == []

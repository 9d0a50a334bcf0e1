from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from equiscale.cli import main
from equiscale.data.catalog import CARDS
from equiscale.data.schema import read_arrays


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Command:
    """Runs `equiscale data …` in this process, as the console script does."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.capture = capture

    def __call__(self, *arguments: str | Path) -> Result:
        self.patch.setattr("sys.argv", ["equiscale", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self.capture.readouterr()
        return Result(int(ended.value.code or 0), shown.out, shown.err)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def run(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setenv("EQUISCALE_DATA", str(cache))
    monkeypatch.setenv("EQUISCALE_RECORD", "http://127.0.0.1:9/record")
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def assert_refused(result: Result, message: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("error: ")
    assert message in result.err


@pytest.mark.slow
@pytest.mark.needs("cairo")
def test_emoji_is_built_into_the_cache_and_previewed(
    run: Command, cache: Path, emoji_file: Path, tmp_path: Path
) -> None:
    done = run("build", "emoji", "--workers", "2")
    path = cache / "emoji.npz"
    assert (done.code, done.out.strip()) == (0, str(path))
    assert path.read_bytes() == emoji_file.read_bytes()
    assert_refused(run("build", "emoji"), "exists already; add --force to replace it")
    shown = run("preview", "emoji", "--boxes", "--out", tmp_path / "sheet.png")
    assert shown.code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 16 + 36 * 68


def test_list_shows_every_card_and_own_files(run: Command, small_file: Path, cache: Path) -> None:
    cache.mkdir()
    shutil.copy(small_file, cache / "mine.npz")
    shown = run("list").out
    rows = {line.split()[0]: line for line in shown.splitlines() if line[:1].strip()}
    assert {*CARDS, "mine"} <= rows.keys()
    assert "112     14…224" in rows["mnist_large_scale"]
    assert str(cache) in shown


def test_info_of_a_card_without_a_file_and_of_a_file(run: Command, small_file: Path) -> None:
    card = run("info", "mnist")
    assert card.code == 0
    assert "LeCun" in card.out
    assert "run `equiscale data download mnist` or" in card.out
    file = run("info", small_file)
    assert "cat, dog" in file.out
    assert read_arrays(small_file).content_hash in file.out


def test_info_tells_whether_a_file_is_what_its_card_says(
    run: Command, cache: Path, emoji_file: Path, small_file: Path
) -> None:
    cache.mkdir()
    for file, answer in ((emoji_file, "yes"), (small_file, "no")):
        shutil.copy(file, cache / "emoji.npz")
        assert f"as the card says  {answer}" in run("info", "emoji").out


def test_cache_that_is_a_file_is_called_that(run: Command, cache: Path) -> None:
    cache.touch()
    assert_refused(run("build", "emoji"), f"{cache} is not a directory")


def test_folder_is_built_and_previewed(run: Command, cache: Path, tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / "pictures" / "[red]" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (70, 70), (number, 200, 0)).save(path)
    source = ("--source", tmp_path / "pictures")
    built = run("build", "folder", *source, "--name", "mine", "--workers", "1")
    assert built.code == 0, built.err
    assert read_arrays(cache / "mine.npz").class_names == ("[red]",)
    shown = run("preview", "mine", "--sizes", "64,17", "--out", tmp_path / "p.png")
    assert shown.code == 0
    wanted = run("build", "folder", *source, "--name", "m2", "--instances", "2")
    assert_refused(wanted, "in train+valid+test: [red]: 1+1+1, expected 2 of every class")
    assert not (cache / "m2.npz").exists()
    unknown = run("build", "folder", *source, "--name", "m3", "--classes", "[red], blue one")
    assert_refused(unknown, "unknown class 'blue one'")


@pytest.mark.needs("pyarrow")
def test_export_writes_files_once(run: Command, small_file: Path, tmp_path: Path) -> None:
    wanted = ("export", small_file, "--format", "parquet", "--out", tmp_path / "out")
    names = [Path(line).name for line in run(*wanted).out.split()]
    assert names == ["train.parquet", "valid.parquet", "test.parquet", "croissant.json"]
    assert_refused(run(*wanted), "already; add --force to replace them")


def test_canvas_and_sizes_are_options(run: Command, cache: Path, tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / "stamps" / "disc" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGBA", (90, 90), (number, 200, 0, 255)).save(path)
    arguments = ("--source", tmp_path / "stamps", "--name", "mine", "--workers", "1", "--cutouts")
    built = run("build", "folder", *arguments, "--canvas", "100", "--sizes", "30,90")
    assert built.code == 0, built.err
    arrays = read_arrays(cache / "mine.npz")
    assert (arrays.canvas, arrays.sizes) == (100, (90, 30))
    assert run("preview", "mine", "--out", tmp_path / "p.png").code == 0
    refused = run("build", "folder", *arguments, "--sizes", "65", "--force")
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
    run: Command, arguments: tuple[str, ...], message: str
) -> None:
    assert_refused(run(*arguments), message)


def test_damaged_file_is_one_sentence(run: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"bad")
    assert_refused(run("info", tmp_path / "bad.npz"), "a damaged or foreign file")


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

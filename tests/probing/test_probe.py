"""A whole probe, against networks whose accuracy at each size is known."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.browser import open_page, start_browser
from tests.probing.conftest import AreaNetwork
from torch import Tensor

import equiscale
from equiscale.cli import main
from equiscale.core.errors import OptionError, SourceError
from equiscale.metrics import accuracy_interval, calibration_error
from equiscale.probing import ClassMismatchError, NetworkError, Preprocess, read_pictures

SMALL = Preprocess(64, (0.0,) * 3, (1.0,) * 3)
SIZES = (8, 16, 32, 64)


def probe(model: Any, images: Any, **options: Any) -> equiscale.probing.ProbeReport:
    settings: dict[str, Any] = {"preprocess": SMALL, "sizes": SIZES, "background": "plain"}
    return equiscale.probe(model, images, **(settings | options))


def column(report: equiscale.probing.ProbeReport, name: str) -> list[float]:
    return [row[name] for row in report.rows]


def test_accuracy_and_usable_range_are_those_of_the_network(squares: Path) -> None:
    report = probe(AreaNetwork(30**2), squares, class_names=AreaNetwork.names)
    assert column(report, "accuracy") == [0, 0, 1, 1]
    assert column(report, "agreement") == [0, 0, 1, 1]
    assert column(report, "images") == [36, 36, 36, 12]
    assert report.usable_range == {"AreaNetwork": (32, 64)}
    low, high = accuracy_interval(torch.tensor(0.0), torch.tensor(12))  # objects, not places
    assert (report.rows[0]["accuracy_low"], report.rows[0]["accuracy_high"]) == (low, high)
    assert report.table["accuracy"].to_list() == [0, 0, 1, 1]
    assert {row["answered"] for row in report.confusions} == {"nothing"}
    assert sum(row["images"] for row in report.confusions) == 72
    assert "usable from 32 to 64 pixels" in str(report)
    assert len(report.plot().axes) == 3


def test_agreement_needs_no_labels(squares: Path) -> None:
    report = probe(AreaNetwork(30**2), squares / "red")
    assert column(report, "agreement") == [0, 0, 1, 1]
    assert column(report, "accuracy") == [None] * 4
    assert report.usable_range["AreaNetwork"] == (32, 64)
    assert report.confusions[0]["shown"] == "output 2"
    assert report.table["calibration_error"].null_count() == 4


def test_a_guess_is_nowhere_usable_nor_is_an_answer_to_two_pictures(squares: Path) -> None:
    guesses = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))

    def guess(images: Tensor) -> Tensor:
        return guesses[(images.mean((1, 2, 3)) * 1e6).long() % 1000]

    def constant(images: Tensor) -> Tensor:
        return torch.tensor([[2.0, 0.0, 1.0]]).expand(len(images), 3)

    report = probe({"guess": guess, "constant": constant}, squares)
    assert report.usable_range == {"guess": None, "constant": None}
    assert column(report, "accuracy")[4:] == pytest.approx([1 / 3] * 4)
    assert "constant: nowhere better than chance" in str(report)
    few = probe(AreaNetwork(1), read_pictures(squares, limit=2), class_names=AreaNetwork.names)
    assert column(few, "accuracy") == [1] * 4
    assert few.usable_range == {"AreaNetwork": None}


def test_networks_stand_side_by_side_each_on_its_own_canvas(squares: Path) -> None:
    large = Preprocess(128, (0.0,) * 3, (1.0,) * 3)
    models = {"near": AreaNetwork(30**2), "far": AreaNetwork(14**2)}
    settings: dict[str, Any] = {"preprocess": {"near": large, "far": SMALL}, "sizes": None}
    report = probe(models, squares, class_names=AreaNetwork.names, **settings)
    assert [row["object_size"] for row in report.rows if row["network"] == "near"][-1] == 128
    shares = [row["share"] for row in report.rows]
    assert shares[:7] == pytest.approx(shares[7:], abs=0.01)
    assert report.usable_range == {"near": (32, 128), "far": (16, 64)}


def test_any_callable_is_a_network_and_the_same_request_gives_the_same_answers(
    squares: Path,
) -> None:
    area = AreaNetwork(20**2).eval()

    def call(images: Tensor) -> Tensor:
        return area(images)

    first, again = (probe(call, squares, class_names=area.names, batch_size=b) for b in (32, 5))
    drop = {"milliseconds"}
    for one, other in zip(first.rows, again.rows, strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {
            k: v for k, v in other.items() if k not in drop
        }


def test_confidence_and_calibration_are_those_of_the_answers(squares: Path) -> None:
    def sure(images: Tensor) -> Tensor:
        logits = AreaNetwork(20**2).eval()(images)
        return torch.nn.functional.one_hot(logits.argmax(1), 4) * 0.6 + 0.1

    rows = probe(sure, squares, class_names=AreaNetwork.names).rows
    assert [row["confidence"] for row in rows] == pytest.approx([0.7] * 4)
    assert [row["calibration_error"] for row in rows] == pytest.approx([0.7, 0.7, 0.3, 0.3])


def test_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=generator)
    correct = torch.rand(500, generator=generator) < confidence**2
    expected = 0.0
    for low in np.arange(0, 1, 0.1):
        chosen = (confidence > low) & (confidence <= low + 0.1)
        if chosen.any():
            gap = correct[chosen].double().mean() - confidence[chosen].double().mean()
            expected += float(gap.abs()) * int(chosen.sum()) / 500
    assert float(calibration_error(confidence, correct)) == pytest.approx(expected, abs=1e-6)


def test_bad_input_gets_one_clear_error(squares: Path) -> None:
    area, names = AreaNetwork(100), AreaNetwork.names

    def fails_when_small(images: Tensor) -> Tensor:
        if (images > 0.9).sum() < 40 * len(images):
            raise RuntimeError("too\nsmall")
        return area.eval()(images)

    def nan_when_small(images: Tensor) -> Tensor:
        few = (images > 0.9).sum((1, 2, 3)) < 20**2
        return area.eval()(images).masked_fill(few[:, None], torch.nan)

    with pytest.raises(NetworkError, match=r"too small; .*\(object size 4, from "):
        probe(fails_when_small, squares, class_names=names, sizes=(4, 64))
    with pytest.raises(NetworkError, match=r"NaN .* for 30 of 30 images \(object size 8"):
        probe(nan_when_small, squares, class_names=names, batch_size=30)
    with pytest.raises(ClassMismatchError, match="4 outputs and the pictures have 3 classes"):
        probe(area, squares)
    with pytest.raises(ClassMismatchError, match="no class 'blue'; 'green'; 'red'"):
        probe(area, squares, class_names=["a", "b", "c", "d"])
    with pytest.raises(OptionError, match=r"sizes \[64, 100\]: .* from 1 to 64"):
        probe(area, squares, class_names=names, sizes=[64, 100])


def test_damaged_pictures_stop_a_probe_unless_they_may_be_skipped(
    squares: Path, tmp_path: Path
) -> None:
    shutil.copytree(squares, tmp_path / "some")
    some, bad = tmp_path / "some", tmp_path / "some" / "red" / "1.png"
    options = {"class_names": AreaNetwork.names, "batch_size": 3}
    strict, lenient = read_pictures(some), read_pictures(some, skip_bad=True)
    good = bad.read_bytes()
    bad.write_bytes(good[:-30])
    with pytest.raises(SourceError, match=r"red/1\.png: found a damaged picture"):
        probe(AreaNetwork(100), strict, **options)
    for pictures in (lenient, read_pictures(some, skip_bad=True)):  # damaged since, and before
        report = probe(AreaNetwork(100), pictures, **options)
        assert column(report, "images") == [33, 33, 33, 11]
        assert report.notes[-1] == "damaged pictures left out: 1"
    for path in some.rglob("*.png"):
        path.write_bytes(good[:-30])
    with pytest.raises(SourceError, match="damaged pictures only"):
        probe(AreaNetwork(100), lenient, **options)


def test_an_interrupted_probe_is_resumed_only_with_the_same_weights(
    squares: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    calls = 0

    def interrupt(done: int, total: int) -> None:
        if done >= 9:
            raise KeyboardInterrupt

    def count(module: Any, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    options = {"class_names": AreaNetwork.names, "batch_size": 3, "resume": kept}
    for least, expected in ((30**2, 1 + 4 + 3 * 4), (14**2, 1 + 12 * 4)):
        with pytest.raises(KeyboardInterrupt):
            probe(AreaNetwork(30**2), squares, progress=interrupt, **options)
        assert kept.exists()
        network = AreaNetwork(least)
        network.register_forward_pre_hook(count)
        calls = 0
        report = probe(network, squares, **options)
        assert calls == expected  # one look, then the first block and what is missing
        assert column(report, "accuracy") == [0, float(least == 14**2), 1, 1]
        assert not kept.exists()


MODULE = """
import os, time
import torch
from tests.probing.conftest import AreaNetwork
from equiscale.probing import Preprocess

class Slow(AreaNetwork):
    def forward(self, images):
        with open("calls", "a") as file:
            file.write(f"{len(images)}\\n")
        time.sleep(float(os.environ.get("PAUSE", 0)))
        return super().forward(images)

def load():
    return Slow(30**2), Preprocess(64, (0.0,) * 3, (1.0,) * 3)

def other():
    return Slow(14**2), Preprocess(64, (0.0,) * 3, (1.0,) * 3)

def colour():
    layers = torch.nn.Conv2d(3, 4, 64), torch.nn.Flatten()
    return torch.nn.Sequential(*layers), Preprocess(64)

def broken():
    return (lambda images: images.mean((2, 3)) * torch.nan), Preprocess(64)
"""
COMMAND = ("--class-names", "names.txt", "--sizes", "8,16,32,64", "--background", "plain")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "networks.py").write_text(MODULE)
    (tmp_path / "names.txt").write_text("\n".join(AreaNetwork.names))
    return tmp_path


def start(place: Path, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", **variables}
    command = [sys.executable, "-m", "equiscale", "probe", *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, error = process.communicate()
    assert process.returncode == 0, error


@pytest.mark.slow
def test_a_killed_probe_goes_on_where_it_was(place: Path, squares: Path) -> None:
    request = ("networks:load", "--images", squares, *COMMAND, "--batch-size", "3", "--out")
    finish(start(place, *request, "whole.html"))
    calls = len((place / "calls").read_text().split())
    killed = start(place, *request, "probe.html", PAUSE="0.1")
    partial = place / ".probe.html.partial"
    while not partial.exists() or len(partial.read_text().splitlines()) < 14:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (place / "probe.html").exists()
    with partial.open("a") as file:
        file.write('{"block": 11, "parts": [{"predi')  # cut off
    before = len((place / "calls").read_text().split())
    finish(start(place, *request, "probe.html"))
    assert len((place / "calls").read_text().split()) - before < calls - 15
    found, expected = (json.loads((place / f"{n}.json").read_text()) for n in ("probe", "whole"))
    for row in (*found["table"], *expected["table"]):
        del row["milliseconds"]
    assert found == expected
    assert sorted(path.name for path in place.glob("*probe*")) == [
        "probe.csv",
        "probe.html",
        "probe.json",
    ]


def run(monkeypatch: pytest.MonkeyPatch, place: Path, *arguments: str | Path) -> int:
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.argv", ["equiscale", "probe", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.modules.pop("networks", None)
    return int(ended.value.code or 0)


def test_the_command_writes_page_and_tables(
    place: Path, squares: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = ("networks:load", "networks:other", "networks:load")
    assert run(monkeypatch, place, *specs, "--images", squares, *COMMAND) == 0
    shown = capsys.readouterr().out
    assert "networks:other: usable from 16 to 64 pixels" in shown
    assert shown.endswith("probe.html\n")
    with (place / "probe.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["network"] for row in rows[::4]] == [*specs[:2], "networks:load (2)"]
    assert [float(row["accuracy"]) for row in rows[:4]] == [0, 0, 1, 1]
    page = (place / "probe.html").read_text()
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_a_command_that_was_killed_while_it_wrote_can_be_repeated(
    place: Path, squares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ("networks:load", "--images", squares, *COMMAND)
    with monkeypatch.context() as patch:
        patch.setattr(equiscale.probing.ProbeReport, "write_csv", lambda *_: sys.exit(9))
        assert run(patch, place, *request) == 9
    assert not (place / "probe.csv").exists()
    assert run(monkeypatch, place, *request) == 0
    assert (place / "probe.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("networks:broken",), "NaN or infinite logits"),
        (("networks:colour", "--mean", "0.5", "--std", "0.5"), "fails on images [1, 1, 64, 64]"),
        (("networks:load", "--out", "probe.pdf"), "must end in .html"),
        (("networks:load", "--class-names", "absent.txt"), "absent.txt"),
        (("networks:load",), "4 outputs and the pictures have 3 classes"),
        (("networks:load", "--images", "empty"), "found no objects"),
        (("networks:load", "--images", "one"), "found one class, 'red'"),
    ],
)
def test_a_failing_command_says_why_and_writes_nothing(
    place: Path,
    squares: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (place / "empty").mkdir()
    shutil.copytree(squares / "red", place / "one" / "red")
    before = sorted(place.iterdir())
    assert run(monkeypatch, place, "--images", squares, *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    after = {path.name for path in place.iterdir()} - {"__pycache__", "calls"}
    assert after == {path.name for path in before}


@pytest.mark.needs("chromium", "chromedriver")
def test_the_page_draws_itself_in_a_browser(squares: Path, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    models = {hostile: AreaNetwork(30**2), "other": AreaNetwork(14**2)}
    report = probe(models, squares, class_names=AreaNetwork.names)
    browser = start_browser()
    try:
        open_page(browser, report.write_page(tmp_path / "probe.html").as_uri())
        problems = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
        assert problems == []
        script = "return document.querySelectorAll(arguments[0]).length"
        assert browser.execute_script(script, "path.series") == 8
        assert browser.execute_script(script, ".seen img") == 6 * len(SIZES)
        assert browser.execute_script(script, "#table tbody tr") == 8
        answer = browser.execute_script("return document.getElementById('answer').textContent")
        assert f"{hostile} keeps 95 % of its best accuracy from 32 to 64 pixels" in answer
        complete = "return [...document.images].every((i) => i.naturalWidth === 64)"
        assert browser.execute_script(complete)
    finally:
        browser.quit()

"""The page: its data against the records, and what a real browser shows against its data."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait
from tests.browser import WIDTHS, emulate, open_page, start_browser
from tests.mutations import add_odd_records
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.comparison import published_accuracy, published_curves
from equiscale.analysis.runs import read_study
from equiscale.analysis.selection import SIZES
from equiscale.analysis.study import Study
from equiscale.core.spec import Scenario
from equiscale.report import page_data as page_data_module
from equiscale.report import server
from equiscale.report.page import render_page, write_page
from equiscale.report.page_data import page_data
from equiscale.report.server import PageServer
from equiscale.report.style import STYLES
from equiscale.runs.record import Measurement, RunRecord

MID = Scenario.MID_TO_REST
needs_browser = pytest.mark.needs("chromium", "chromedriver")


@pytest.fixture(scope="module")
def data(study: Study) -> dict[str, Any]:
    """The data inside a written page."""
    (packed,) = re.findall(r'id="data">([^<]+)<', render_page(study))
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def find(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found


@pytest.fixture(scope="module")
def shown(data: dict[str, Any]) -> dict[str, Any]:
    """The cell of slice_pool on emoji mid2rest."""
    wanted = {"dataset": "emoji", "scenario": "mid2rest", "model": "slice_pool"}
    return find(data["cells"], protocol="paper-1", **wanted)


def test_a_cell_has_the_numbers_of_its_records(
    shown: dict[str, Any], cell: list[RunRecord]
) -> None:
    own = [record.test_accuracy for record in cell]
    assert shown["seeds"] == [1, 2, 3]
    assert shown["accuracies"] == pytest.approx(own, rel=1e-4)
    assert shown["mean"] == pytest.approx(np.mean(own), rel=1e-4)
    assert shown["std"] == pytest.approx(np.std(own, ddof=1), rel=1e-4)
    assert shown["median"] == pytest.approx(np.median(own), rel=1e-4)
    trained = np.mean([record.predictions.accuracy(MID.train_sizes()) for record in cell])
    assert shown["gap"] == pytest.approx(trained - np.mean(own), rel=1e-3)
    curves = [list(record.predictions.accuracy_per_size().values()) for record in cell]
    assert shown["curve"]["mean"] == pytest.approx(np.mean(curves, axis=0).tolist(), rel=1e-4)


def test_errors_are_those_of_the_records(shown: dict[str, Any], cell: list[RunRecord]) -> None:
    for record, row in zip(cell, shown["errors"]["stage2"], strict=True):
        measured = record.measurements["equivariance"]
        tested = [{*pair} <= {*MID.test_sizes()} for pair in measured.values["pairs"]]
        errors = measured.arrays["stage2"][tested]
        assert row["error"] == pytest.approx(float(np.nanmean(errors)), abs=2e-5)
        assert row["undefined"] == np.isnan(errors).sum()
        assert row["test_accuracy"] == pytest.approx(record.test_accuracy, rel=1e-4)


def test_kernel_sizes_are_those_of_the_records(data: dict[str, Any], cell: list[RunRecord]) -> None:
    wanted = {"dataset": "emoji", "scenario": "mid2rest", "model": "slice_pool"}
    selection = find(data["selections"], protocol="paper-1", **wanted)
    chosen = cell[0].measurements["scale_selection"].arrays["chosen.conv2"]
    decoded = [ord(letter) - 48 - (ord(letter) > 92) for letter in selection["chosen"]]
    assert selection["seed"] == cell[0].key.seed
    assert decoded == chosen.ravel().tolist()


def test_pairs_ranks_and_published_figures_are_those_of_the_study(
    data: dict[str, Any], study: Study
) -> None:
    wanted = {"protocol": "paper-1", "dataset": "emoji", "scenario": "mid2rest"}
    runs = study.reported.filter(**wanted).select("model", "seed", "test_accuracy")
    own = {m: dict(part.drop("model").iter_rows()) for (m,), part in runs.group_by("model")}
    pair = find(data["pairs"], **wanted, first="slice_pool", second="xu")
    differences = [own["slice_pool"][seed] - own["xu"][seed] for seed in (1, 3)]
    assert pair["difference"] == pytest.approx(np.mean(differences), rel=1e-4)
    assert (pair["seeds"], pair["missing"]) == (2, 1)
    ranking = study.ranking("paper-1")
    assert ranking is not None
    assert data["ranking"]["models"] == [key.model for key in ranking.models]
    assert data["ranking"]["ranks"] == list(ranking.ranks)
    keys = {"dataset": "emoji", "scenario": "mid2rest", "model": "xu"}
    published = find(data["published"]["cells"], **keys)
    assert published["mean"] == published_accuracy().filter(**keys)["mean"][0]
    assert published["curve"] == published_curves()["emoji", "mid2rest", "xu"]


def test_what_must_not_be_mixed_is_kept_apart(data: dict[str, Any], hostile: str) -> None:
    """Another training is another variant of the model."""
    assert [s["key"] for s in data["scenarios"]] == ["mid2rest", "all2all"]
    xu = {"dataset": "emoji", "model": "xu"}
    short = 'xu {"max_epochs":"3"}'
    assert find(data["cells"], scenario="mid2rest", **xu)["missing"] == [2]
    assert find(data["cells"], model=short)["runs"] == 1
    assert find(data["cells"], scenario="all2all", **xu)["gap"] is None
    variants = {model["key"]: model["variant"] for model in data["models"]}
    assert (variants["xu"], variants[short]) == (False, True)
    assert hostile in {model["key"] for model in data["models"]}


def test_a_run_without_measurements_has_an_empty_curve() -> None:
    row = {"run_id": "a", "model": "net", "dataset": "mine", "scenario": "mid2rest", "seed": 1}
    (cell,) = page_data(Study.from_tables([{**row, "test_accuracy": 0.5}]))["cells"]
    assert (cell["curve"]["mean"], cell["errors"]) == ([], {})


def test_a_selection_that_does_not_fit_leaves_room_for_the_others(
    study: Study, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data["selections"]
    large = whole[0]["chosen"]
    monkeypatch.setattr(page_data_module, "SELECTION_BUDGET", len(whole))
    sizes = {large: 10 * len(whole)}
    monkeypatch.setattr(page_data_module, "_compressed", lambda text: sizes.get(text, 1))
    cut = page_data(study)
    assert cut["selections"] == [found for found in whole if found["chosen"] != large]
    left_out = len(whole) - len(cut["selections"])
    assert 0 < left_out == cut["provenance"]["selections_left_out"] < len(whole)


def test_a_failed_measurement_is_named(tmp_path: Path) -> None:
    record = SyntheticRuns().record("emoji", MID, "standard", 1)
    failed = {"equivariance": Measurement(values={"error": "ValueError: bad <maps>"})}
    write_records([replace(record, measurements=failed)], tmp_path)
    assert page_data(read_study(tmp_path))["provenance"]["problems"] == [
        "equivariance of standard on emoji mid2rest seed 1 was not measured: ValueError: bad <maps>"
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(study: Study, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(study, path)
    return path.as_uri()


@pytest.fixture
def opened(browser: webdriver.Chrome, page: str) -> webdriver.Chrome:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, page)
    return browser


def _until(browser: webdriver.Chrome, condition: Callable[[], Any], seconds: float = 30) -> None:
    reloaded = [WebDriverException]  # of many kinds, while a page gives way to the next
    wait = WebDriverWait(browser, seconds, poll_frequency=0.1, ignored_exceptions=reloaded)
    wait.until(lambda _: condition())


def _text(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def _choose(browser: webdriver.Chrome, identifier: str, value: str) -> None:
    Select(browser.find_element(By.ID, identifier)).select_by_value(value)


def _requests(browser: webdriver.Chrome) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]


def _table(browser: webdriver.Chrome, identifier: str, model: str) -> dict[str, str]:
    """Return the cells of a model's row in a table, by their headings."""
    table = browser.find_element(By.CSS_SELECTOR, f"#{identifier} table")
    heads = [head.text.rstrip(" ↑↓") for head in table.find_elements(By.TAG_NAME, "th")]
    for row in table.find_elements(By.CSS_SELECTOR, "tbody tr"):
        cells = [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
        if cells[0] == STYLES[model].label:
            return dict(zip(heads, cells, strict=True))
    raise AssertionError(f"{model} is not in #{identifier}")


def _number(text: str) -> float:
    return float(text.replace("\u00a0", " ").split()[0].replace("−", "-"))


@needs_browser
def test_the_tables_show_the_numbers_of_the_records(
    opened: webdriver.Chrome, cell: list[RunRecord], study: Study
) -> None:
    own = [record.test_accuracy for record in cell]
    row = _table(opened, "table", "slice_pool")
    assert row["seeds"] == "3"
    assert _number(row["mean"]) == pytest.approx(100 * np.mean(own), abs=0.006)
    assert _number(row["median"]) == pytest.approx(100 * np.median(own), abs=0.006)
    assert _number(row["std"]) == pytest.approx(100 * np.std(own, ddof=1), abs=0.06)
    trained = np.mean([record.predictions.accuracy(MID.train_sizes()) for record in cell])
    assert _number(row["gap"]) == pytest.approx(100 * (trained - np.mean(own)), abs=0.06)
    known = published_accuracy().filter(dataset="emoji", scenario="mid2rest", model="slice_pool")
    assert _number(row["published"]) == pytest.approx(100 * known["mean"][0], abs=0.006)
    glance = _table(opened, "glance", "slice_pool")
    assert _number(glance["mid → rest"]) == pytest.approx(100 * np.mean(own), abs=0.06)
    costs = study.costs.filter(protocol="paper-1", dataset="emoji", model="slice_pool")
    shown = _table(opened, "costs", "slice_pool")
    assert _number(shown["epoch"]) == pytest.approx(costs["epoch_seconds"][0], rel=0.006)
    assert _number(shown["× standard"]) == pytest.approx(costs["epoch_ratio"][0], rel=0.006)


@needs_browser
def test_charts_show_the_numbers_of_the_records(
    opened: webdriver.Chrome, cell: list[RunRecord]
) -> None:
    label = STYLES["slice_pool"].label
    chart = opened.find_element(By.CSS_SELECTOR, "#sizes svg")
    curves = [list(record.predictions.accuracy_per_size().values()) for record in cell]
    mean = 100 * np.mean(curves, axis=0)
    ends = [f"{mean[SIZES.index(size)]:.1f}\u00a0% at {size}" for size in (17, 40, 64)]
    assert f"{label}: {', '.join(ends)}." in str(chart.get_attribute("aria-label"))
    chart.send_keys(Keys.ARROW_RIGHT)
    tip = _text(opened, "#tip")
    assert "object size 41" in tip
    (at_cursor,) = re.findall(rf"{label}\s*([\d.]+)", tip)
    assert at_cursor == f"{mean[SIZES.index(41)]:.1f}"
    seeds = opened.find_elements(By.CSS_SELECTOR, f"#seeds g[aria-label^='{label}:'] circle.seed")
    accuracies = [record.test_accuracy for record in cell]
    places = [float(str(seed.get_attribute("cx"))) for seed in seeds]
    assert np.corrcoef(places, accuracies)[0, 1] == pytest.approx(1, abs=1e-4)


@needs_browser
def test_it_loads_without_an_error_or_a_request(opened: webdriver.Chrome, page: str) -> None:
    addresses = [a for a in _requests(opened) if not a.startswith(("data:", "blob:", "about:"))]
    assert addresses == [page]
    assert opened.get_log("browser") == []


@needs_browser
def test_names_with_code_in_them_are_text(opened: webdriver.Chrome, hostile: str) -> None:
    assert opened.execute_script("return window.hacked") is None
    _choose(opened, "c-selection", "slice_pool")
    assert hostile in _text(opened, "#c-item")
    assert not opened.find_elements(By.CSS_SELECTOR, "main img, main script")
    assert "<b>data</b>" in _text(opened, "#c-dataset")


@needs_browser
def test_the_controls_change_what_is_shown(opened: webdriver.Chrome) -> None:
    answer = _text(opened, "#answer")
    lines = len(opened.find_elements(By.CSS_SELECTOR, "#sizes path.series"))
    assert lines == 5
    _choose(opened, "c-scenario", "all2all")
    assert _text(opened, "#answer") != answer
    assert "scenario=all2all" in opened.current_url
    opened.find_element(By.ID, "c-none").click()
    assert not opened.find_elements(By.CSS_SELECTOR, "#sizes path.series")
    assert "choose at least one model" in _text(opened, "#answer")
    opened.find_element(By.ID, "c-all").click()
    assert len(opened.find_elements(By.CSS_SELECTOR, "#sizes path.series")) == 4


@needs_browser
def test_a_page_without_runs_by_the_papers_protocol_says_so(
    browser: webdriver.Chrome, study: Study, tmp_path: Path
) -> None:
    write_page(study.where(protocol="paper-1 max_epochs=3"), tmp_path / "short.html")
    open_page(browser, (tmp_path / "short.html").as_uri())
    assert "not by the paper's protocol" in _text(browser, "#notices")


@needs_browser
def test_tables_sort_by_key(opened: webdriver.Chrome) -> None:
    def column() -> list[str]:
        cells = opened.find_elements(By.CSS_SELECTOR, "#table tbody td:first-child")
        return [cell.text for cell in cells]

    before = column()
    opened.find_element(By.CSS_SELECTOR, "#table th:first-child button").send_keys(Keys.ENTER)
    assert column() == sorted(before)
    head = opened.find_element(By.CSS_SELECTOR, "#table th:first-child")
    assert head.get_attribute("aria-sort") == "ascending"
    assert "(1 missing)" in _text(opened, "#table")


@needs_browser
def test_the_slider_moves_the_choice_from_17_to_64(opened: webdriver.Chrome) -> None:
    def dots() -> list[str | None]:
        found = opened.find_elements(By.CSS_SELECTOR, "#selection circle.dot")
        return [dot.get_attribute("cy") for dot in found]

    slider = opened.find_element(By.ID, "c-size")
    slider.send_keys(Keys.HOME)
    assert _text(opened, "#size-output") == "17 px"
    small = dots()
    assert len(small) == 32
    slider.send_keys(Keys.END)
    assert _text(opened, "#size-output") == "64 px"
    assert dots() != small
    _choose(opened, "c-selection", "pixel_pool")
    assert len(opened.find_elements(By.CSS_SELECTOR, "#maps canvas")) == 8


@needs_browser
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_every_screen(browser: webdriver.Chrome, page: str, width: int, theme: str) -> None:
    emulate(browser, width, 900, theme)
    open_page(browser, page)
    script = "return [document.documentElement.scrollWidth, getComputedStyle(document.body).color]"
    scrolled, colour = browser.execute_script(script)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert scrolled <= width
    assert colour == {"light": "rgb(27, 31, 36)", "dark": "rgb(232, 234, 237)"}[theme]


def open_page_of(runs: Path, browser: webdriver.Chrome) -> None:
    """Open the page of a runs directory; nothing may go wrong."""
    write_page(read_study(runs), runs / "page.html")
    browser.get_log("browser")
    open_page(browser, (runs / "page.html").as_uri())
    assert browser.get_log("browser") == []


@needs_browser
def test_a_page_of_one_run_loads(browser: webdriver.Chrome, tmp_path: Path) -> None:
    record = SyntheticRuns().record("emoji", Scenario.ALL_TO_ALL, "standard", 1)
    write_records([record], tmp_path)
    open_page_of(tmp_path, browser)
    assert "1 run" in _text(browser, ".top")
    assert "A comparison needs two models" in _text(browser, "#pairs")


@needs_browser
def test_a_page_of_odd_records_loads(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """Intact records of others may hold anything."""
    usual = SyntheticRuns(scenarios=(MID,), models=("pixel_pool",))
    add_odd_records(write_records(usual.records(), tmp_path), 30, random.Random(1))
    open_page_of(tmp_path, browser)


@needs_browser
def test_variants_wait_until_they_are_chosen(browser: webdriver.Chrome, tmp_path: Path) -> None:
    plain = list(SyntheticRuns(scenarios=(MID,), models=("standard", "xu"), seeds=(1,)).records())
    changed = replace(plain[0].key, model_options={"batch_norm": True})
    write_records([*plain, replace(plain[0], key=changed)], tmp_path)
    open_page_of(tmp_path, browser)
    assert "1 variant of a model" in _text(browser, "#notices")
    for part in ("#glance", "#ranks", "#controls"):
        assert "batch_norm" not in _text(browser, part)
    browser.find_element(By.ID, "c-variants").click()
    assert "standard, batch_norm True" in _text(browser, "#controls")
    browser.find_element(By.ID, "c-all").click()
    assert "1 variant of a model" not in _text(browser, "#notices")
    assert "standard, batch_norm True" in _text(browser, "#glance")


@needs_browser
def test_a_served_page_follows_the_runs(
    browser: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.2)
    records = list(SyntheticRuns(scenarios=(MID,), models=("xu",)).records())
    with PageServer(tmp_path, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            browser.get(f"{serving.url}#scenario=mid2rest")
            assert "no finished run" in _text(browser, "body")
            write_records(records[:1], tmp_path)
            _until(browser, lambda: "1 run" in _text(browser, ".top"))
            write_records(records[1:], tmp_path)
            _until(browser, lambda: "3 runs" in _text(browser, ".top"))
            assert "scenario=mid2rest" in browser.current_url
        finally:
            serving.shutdown()
            thread.join()

"""The page in a real browser: no error, no request, and controls that do something."""

from __future__ import annotations

import json
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait
from tests.browser import WIDTHS, emulate, open_page, start_browser
from tests.synthetic_runs import Study, write_records

from equiscale.analysis.runs import Runs, read_runs
from equiscale.core.spec import Scenario
from equiscale.report import server
from equiscale.report.page import render_page, write_page
from equiscale.report.page_data import page_data
from equiscale.report.server import PageServer
from equiscale.runs.record import Measurement

pytestmark = pytest.mark.needs("chromium", "chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(runs, path)
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


def test_it_loads_without_an_error_or_a_request(opened: webdriver.Chrome, page: str) -> None:
    addresses = [a for a in _requests(opened) if not a.startswith(("data:", "blob:", "about:"))]
    assert addresses == [page]
    assert opened.get_log("browser") == []


def test_names_with_code_in_them_are_text(opened: webdriver.Chrome, hostile: str) -> None:
    assert opened.execute_script("return window.hacked") is None
    _choose(opened, "c-selection", "slice_pool")
    assert hostile in _text(opened, "#c-item")
    assert not opened.find_elements(By.CSS_SELECTOR, "main img, main script")
    assert "<b>data</b>" in _text(opened, "#c-dataset")


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
    _choose(opened, "c-protocol", "paper-1 max_epochs=3")
    assert "not by the paper's protocol" in _text(opened, "#notices")


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


def test_the_keyboard_moves_the_cursor_of_the_chart(opened: webdriver.Chrome) -> None:
    chart = opened.find_element(By.CSS_SELECTOR, "#sizes svg")
    chart.send_keys(Keys.ARROW_RIGHT)
    assert "object size 41" in _text(opened, "#tip")
    chart.send_keys(Keys.ARROW_LEFT)
    assert "object size 40" in _text(opened, "#tip")


def test_charts_have_text_alternatives(opened: webdriver.Chrome) -> None:
    charts = opened.find_elements(By.CSS_SELECTOR, ".chart > svg")
    assert len(charts) == 5
    for chart in charts:
        label = chart.get_attribute("aria-label")
        assert label is not None
        assert len(label) > 40


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


def test_a_page_of_one_run_loads(browser: webdriver.Chrome, tmp_path: Path) -> None:
    study = Study(scenarios=(Scenario.ALL_TO_ALL,), models=("standard",), seeds=(1,))
    write_records(study.records(), tmp_path / "runs")
    write_page(read_runs(tmp_path / "runs"), tmp_path / "one.html")
    browser.get_log("browser")
    open_page(browser, (tmp_path / "one.html").as_uri())
    assert browser.get_log("browser") == []
    assert "1 run" in _text(browser, ".top")
    assert "A comparison needs two models" in _text(browser, "#pairs")


def test_variants_wait_until_they_are_chosen(browser: webdriver.Chrome, tmp_path: Path) -> None:
    study = Study(scenarios=(Scenario.MID_TO_REST,), models=("standard", "xu"), seeds=(1,))
    plain = list(study.records())
    changed = replace(plain[0].key, model_options={"batch_norm": True})
    write_records([*plain, replace(plain[0], key=changed)], tmp_path / "runs")
    write_page(read_runs(tmp_path / "runs"), tmp_path / "report.html")
    open_page(browser, (tmp_path / "report.html").as_uri())
    assert "1 variant of a model" in _text(browser, "#notices")
    assert "batch_norm" not in _text(browser, "#glance")
    assert "batch_norm" not in _text(browser, "#ranks")
    assert "batch_norm" not in _text(browser, "#controls")
    browser.find_element(By.ID, "c-variants").click()
    assert "standard, batch_norm True" in _text(browser, "#controls")
    browser.find_element(By.ID, "c-all").click()
    assert "1 variant of a model" not in _text(browser, "#notices")
    assert "standard, batch_norm True" in _text(browser, "#glance")


def test_a_served_page_follows_the_runs(
    browser: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.2)
    records = list(Study(scenarios=(Scenario.MID_TO_REST,), models=("xu",)).records())
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
            serving.close()
            thread.join()


def test_a_browser_that_goes_away_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(Study().records(), tmp_path)
    at_once = struct.pack("ii", 1, 0)  # closed with a reset
    with PageServer(tmp_path, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            port = int(serving.url.rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as browser:
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with urllib.request.urlopen(serving.url) as answer:
                assert b"equiscale" in answer.read()
        finally:
            serving.close()
            thread.join()
    assert capsys.readouterr().err == ""


def test_the_page_of_500_runs_is_small(tmp_path: Path) -> None:
    study = Study(models=("standard", "pixel_pool", "slice_pool"), seeds=(1,))
    write_records(study.records(), tmp_path)
    runs = read_runs(tmp_path)
    copies = [runs.table.with_columns(seed=pl.col("seed") + index) for index in range(42)]
    many = Runs(pl.concat(copies), runs.selections)
    assert len(many.table) == 504
    assert len(render_page(many).encode()) < 5_000_000


def test_a_failed_measurement_is_named(tmp_path: Path) -> None:
    record = Study().record("emoji", Scenario.MID_TO_REST, "standard", 1)
    failed = {"equivariance": Measurement(values={"error": "ValueError: bad <maps>"})}
    write_records([replace(record, measurements=failed)], tmp_path)
    assert page_data(read_runs(tmp_path))["provenance"]["problems"] == [
        "equivariance of standard on emoji mid2rest seed 1 was not measured: ValueError: bad <maps>"
    ]

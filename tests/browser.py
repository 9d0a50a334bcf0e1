"""A real browser, for the tests of the page and for its pictures."""

from __future__ import annotations

import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
WIDTHS = {"desktop": 1400, "tablet": 820, "phone": 390}


def start_browser() -> webdriver.Chrome:
    """Start Chromium without a window; it logs what its console and the network see."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def open_page(browser: webdriver.Chrome, address: str) -> None:
    """Open a page and wait until it has drawn itself."""
    browser.get(address)
    body = browser.find_element(By.TAG_NAME, "body")
    WebDriverWait(browser, 30, poll_frequency=0.1).until(lambda _: body.get_attribute("data-ready"))


def emulate(browser: webdriver.Chrome, width: int, height: int, theme: str) -> None:
    """Show pages as on a screen of this size, light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

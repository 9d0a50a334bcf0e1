"""Pictures of the page of our runs, at three widths, for the documentation.

    python -m study.screenshots

Reads `study/runs` and writes `docs/images/report-*.png`. Needs Chromium and its driver.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.browser import WIDTHS, emulate, open_page, start_browser

from equiscale.analysis.runs import read_study
from equiscale.report.page import write_page
from study.evidence import ROOT, RUNS

HEIGHT = 1500
THEMES = {"desktop": "light", "tablet": "dark", "phone": "light"}


def main() -> None:
    """Write one picture per width."""
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "report.html"
        write_page(read_study(RUNS), page)
        browser = start_browser()
        try:
            for screen, width in WIDTHS.items():
                emulate(browser, width, HEIGHT, THEMES[screen])
                open_page(browser, page.as_uri())
                path = ROOT / "docs" / "images" / f"report-{screen}.png"
                browser.save_screenshot(str(path))
                print(path.relative_to(ROOT))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()

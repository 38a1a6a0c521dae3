"""Make docs/img/report*.png: pictures of the report of 60 steps of the quickstart, by Chromium.

The run is that of `make test-browser`, in build/report; it is trained if it is not there (a minute).
Where Chromium or playwright is missing, the pictures stay as they are.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZE = {"width": 1280, "height": 860}
PICTURES = {
    "report.png": ("", "light"),
    "report-episode.png": ("#episodes?step=60&filter=disagreeing", "light"),
    "report-roles.png": ("#roles?step=40", "dark"),
}
"""File -> the place in the report, and the theme."""


def main() -> None:
    """Write the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("docs/img/report*.png stay as they are: Chromium or the extra `browser` is not installed")
        return
    sys.path.insert(0, str(ROOT))
    from playwright.sync_api import sync_playwright

    from coterie.viewing.report import report
    from tests.browser.runs import KEPT, quickstart

    page_file = report(quickstart(), KEPT / "quickstart.html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (place, scheme) in PICTURES.items():
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(page_file.as_uri() + place)
            page.wait_for_selector("html[data-ready]")
            page.wait_for_timeout(300)  # charts are drawn once their place has its width
            page.screenshot(path=ROOT / "docs" / "img" / name)
            page.close()
        browser.close()
    print("docs/img:", ", ".join(PICTURES))


if __name__ == "__main__":
    main()

"""A browser for the reports: Debian's Chromium, without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coterie.viewing.report import report
from tests.browser.runs import hostile, large, magrpo, mathchat, quickstart

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
DESK, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "`make test-browser` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """A function that opens a report; no request, console error, dialog or exception may follow."""
    contexts, wrong = [], []

    def opened(path: Path, place: str = "", size=DESK, scheme="light"):
        context = chromium.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(8_000)
        page.on("request", lambda of: None if of.url.startswith(("file:", "data:")) else wrong.append(of.url))
        page.on("console", lambda of: wrong.append(of.text) if of.type in ("error", "warning") else None)
        page.on("pageerror", lambda of: wrong.append(str(of)))
        page.on("dialog", lambda of: (wrong.append(of.message), of.dismiss()))
        page.goto(path.as_uri() + place)
        page.wait_for_selector("html[data-ready]", timeout=20_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def _report_of(folder: Path) -> Path:
    return report(folder, folder.parent / f"{folder.name}.html")


@pytest.fixture(scope="session")
def quickstart_report() -> Path:
    return _report_of(quickstart())


@pytest.fixture(scope="session")
def mathchat_report() -> Path:
    return _report_of(mathchat())


@pytest.fixture(scope="session")
def magrpo_report() -> Path:
    return _report_of(magrpo())


@pytest.fixture(scope="session")
def large_report() -> Path:
    return _report_of(large())


@pytest.fixture(scope="session")
def hostile_report() -> Path:
    return _report_of(hostile())

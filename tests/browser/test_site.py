"""The documentation's site in Chromium: no page is wider than its screen, and no link or script fails."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html import escape, unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urldefrag

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"desk": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 844}}
EXTEND = (
    *("writing_plugins", "scaffold", "check", "first_environment", "first_algorithm", "first_reward"),
    *("your_data", "publish", "teams"),
)
PAGES = (
    "",
    *(f"{name}/" for name in EXTEND),
    "public_names/",
    "security/",
    *sorted(f"kinds/{path.stem}/" for path in (ROOT / "docs/kinds").glob("*.md") if path.stem != "index"),
    "kinds/",
    *sorted(f"api/{path.stem}/" for path in (ROOT / "docs/api").glob("*.md")),
)
WIDE = """() => {
  const page = document.documentElement, wide = [];
  if (page.scrollWidth <= page.clientWidth) return wide;
  for (const element of document.querySelectorAll("article *, header *"))
    if (element.getBoundingClientRect().right > page.clientWidth + 1)
      wide.push(element.outerHTML.slice(0, 150));
  return wide.slice(0, 3).concat([`${page.scrollWidth} > ${page.clientWidth}`]);
}"""
"""What makes the page scroll sideways; tables and code scroll in themselves."""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site, as `make docs` builds it, and its folder."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="the extra `docs` isn't installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", folder
    server.shutdown()


@pytest.mark.parametrize("size", SIZES)
def test_no_page_is_wider_than_the_screen_and_nothing_fails(site, chromium, size):
    address, _ = site
    context = chromium.new_context(viewport=SIZES[size])
    page, wrong = context.new_page(), []
    page.on("console", lambda of: wrong.append((page.url, of.text)) if of.type == "error" else None)
    page.on("pageerror", lambda of: wrong.append((page.url, str(of))))
    page.on("request", lambda of: None if of.url.startswith((address, "data:")) else wrong.append(of.url))
    page.on("response", lambda of: wrong.append((page.url, of.url, of.status)) if of.status >= 400 else None)
    for name in PAGES:
        page.goto(address + name)
        if wide := page.evaluate(WIDE):
            wrong.append((name, wide))
    context.close()
    assert wrong == []


def test_every_link_of_the_pages_leads_somewhere(site):
    _, folder = site
    texts: dict[Path, str] = {}

    def text(file: Path) -> str:
        if file not in texts:
            texts[file] = file.read_text(encoding="utf-8")
        return texts[file]

    links = 0
    for name in PAGES:
        for link in set(re.findall(r'<a [^>]*href="([^"]+)"', text(folder / name / "index.html"))):
            place, anchor = urldefrag(unescape(link))
            if ":" in place:
                continue
            file = (folder / name / place).resolve()
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), (name, link)
            assert not anchor or f'id="{escape(anchor)}"' in text(file), (name, link)
            links += 1
    assert links > 1000

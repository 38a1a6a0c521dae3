"""docs/publish.md: its commands, from the scaffold to a run of the wheel in a venv of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.support import ROOT, FreshVenv, built

PAGE = (ROOT / "docs" / "publish.md").read_text(encoding="utf-8")
BLOCKS = {
    section.partition("\n")[0]: "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}
AUTHORS = ("Start", "Build it, and try the wheel")
"""The sections whose commands are run; the others send something to an index."""


def test_the_page_has_the_commands():
    assert all(BLOCKS[title] for title in (*AUTHORS, "Upload", "CI"))
    assert not re.search("upload", "".join(BLOCKS[title] for title in AUTHORS))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_author_follows_the_page(tmp_path: Path):
    fresh = FreshVenv(tmp_path)
    wheel = built(ROOT, tmp_path / "coterie-wheel")
    fresh.install(wheel, "pytest", "build", "hatchling")
    script = "\n".join(BLOCKS[title] for title in AUTHORS)
    lines = ["set -e", *(line for line in script.splitlines() if not re.search(r"install coterie ", line))]
    # The wheel of this checkout stands for the index.
    settings = {
        "PATH": f"{fresh.bin}:{os.environ['PATH']}",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "maze-escape" / "fresh-run" / "metrics.jsonl").exists()
    assert "maze_escape" in done.stdout

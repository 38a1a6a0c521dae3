"""docs/cli.md is what the commands say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_the_command_line_is_up_to_date():
    page = runpy.run_path(str(DOCS / "generate.py"))["cli_page"]()
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page, "run `python docs/generate.py`"

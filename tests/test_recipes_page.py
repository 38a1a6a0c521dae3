"""docs/recipes.md: its commands resolve, and its example's output is what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.recipes import load
from tests.cli.support import coterie

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
CONFIG, LINES = re.search(r"```sh\n(coterie config .*?)\n```.*?```yaml\n(.*?)```", PAGE, re.DOTALL).groups()
BIG, CHILD = (re.search(rf"```yaml\n({start}.*?)```", PAGE, re.DOTALL)[1] for start in ("# big", "extends"))


def test_the_example_shows_lines_of_the_commands_output():
    printed = {" ".join(line.split()) for line in coterie(*shlex.split(CONFIG)[1:]).stdout.splitlines()}
    lines = [" ".join(line.split()) for line in LINES.splitlines()]
    assert len(lines) == 8 and set(lines) <= printed, set(lines) - printed


@pytest.mark.parametrize("line", re.findall(r"^coterie run ([^#\n]*)", PAGE, re.MULTILINE))
def test_the_run_commands_resolve(line, tmp_path):
    (tmp_path / "big.yaml").write_text(BIG)
    words = shlex.split(line)
    overlays = words[words.index("--with") + 1].replace("big.yaml", str(tmp_path / "big.yaml"))
    scale = words[words.index("--scale") + 1] if "--scale" in words else None
    load(words[0], overlays=[overlays], scale=scale, overrides=[word for word in words if "=" in word])


@pytest.mark.parametrize("override", re.findall(r"^\| `'(.+?)'` \|", PAGE, re.MULTILINE))
def test_the_patterns_match(override, tmp_path):
    tools = "{one: {type: python}, two: {type: python}}"
    resolved = load("sudoku_tool", overlays=["per_role"], overrides=[f"tools={tools}", override])
    assert any(
        origin == f"override {override.partition('=')[0]}" for origin in resolved.origins.values()
    ) or (override == "tools.*=null" and not resolved.config.tools)


def test_a_recipe_with_overlays_resolves(tmp_path):
    (tmp_path / "child.yaml").write_text(CHILD)
    config = load(tmp_path / "child.yaml").config
    assert list(config.policies) == ["planner", "executor"] and config.schedule.tasks_per_step == 64

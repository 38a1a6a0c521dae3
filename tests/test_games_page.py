"""What docs/games.md says of the games is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.discovery import plugins
from coterie.recipes import load
from tests.cli.support import coterie

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "games.md").read_text()
GAMES = ("plan_path", "sudoku", "sokoban")


def rows(first: str) -> dict[str, list[str]]:
    """The table whose first heading is `first`: name -> cells."""
    block = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize(("column", "game"), enumerate(GAMES))
def test_components_kinds_and_default_weights(column, game):
    environment = plugins().registry.load("environment", game)
    table = rows("component")
    stated = {name: cells for name, cells in table.items() if cells[1 + column] != "–"}
    assert {name: cells[0] for name, cells in stated.items()} == dict(environment.components)
    assert {name: float(cells[1 + column]) for name, cells in stated.items()} == dict(environment.weights)


def test_the_curriculum_is_accepted():
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if "curriculum" in b)
    line = next(line for line in block.splitlines() if "curriculum" in line).strip()
    resolved = load("plan_path", overrides=["env." + line.replace(": ", "=", 1)])
    assert resolved.config.env["curriculum"]["values"] == [4, 6, 8, 10]


@pytest.mark.parametrize("line", re.findall(r"^coterie (data [^#\n]*?) *#", PAGE, re.M))
def test_the_data_commands_work(line):
    words = shlex.split(line)
    if "--tasks" in words:
        words[words.index("--tasks") + 1] = "2"
    assert coterie(*words).exit_code == 0


@pytest.mark.parametrize("name", sorted({*re.findall(r"coterie (?:run|data show|data leaks) (\w+)", PAGE)}))
def test_the_recipes_exist(name):
    load(name)

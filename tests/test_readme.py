"""What the README says is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import coterie
from coterie.api.plugin_files import load_plugin_file
from coterie.core.config import load, recipes
from coterie.core.plugins import plugins

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_environment_in_forty_lines_is_the_examples():
    block = next(b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "class Signals" in b)
    assert block == (ROOT / "examples" / "signals.py").read_text()
    body = block[block.index("class Signals") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 40


def test_the_example_learns_to_communicate(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    if "signals" not in plugins().registry.names("environment"):
        load_plugin_file(plugins(), ROOT / "examples" / "signals.py")
    recipe = ROOT / "examples" / "signals.yaml"
    before = coterie.evaluate(recipe, samples=50).success.mean
    coterie.train(recipe, out=tmp_path / "run")
    after = coterie.evaluate(tmp_path / "run", samples=50).success.mean
    assert before < 0.3 and after > 0.9


def test_every_recipe_and_file_it_names_is_there():
    names = {info.name for info in recipes()}
    for name in re.findall(r"coterie (?:run|config|eval) ([a-z_]+)(?![\w/])", README):
        assert name in names, name
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:coterie|benchmarks|examples|docs)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("line", re.findall(r"^coterie run (plan_path[^#\n]*)", README, re.M))
def test_the_run_commands_resolve(line):
    words = line.split()
    scale = words[words.index("--scale") + 1] if "--scale" in words else None
    load(words[0], scale=scale, overrides=[word for word in words[1:] if "=" in word])


def test_the_quickstarts_table_is_the_committed_result():
    rows = json.loads((ROOT / "benchmarks" / "results" / "quickstart.json").read_text())["seeds"]
    for row in rows:
        cells = [
            f"{row[when][key]['mean']:.3f} [{row[when][key]['ci95'][0]:.3f}, {row[when][key]['ci95'][1]:.3f}]"
            for key in ("success", "success_greedy")
            for when in ("before", "after")
        ]
        assert f"| {row['seed']} | " + " | ".join(cells) + " |" in README
        for key in ("success", "success_greedy"):
            assert row["after"][key]["mean"] - row["before"][key]["mean"] >= 0.35


@pytest.mark.parametrize("name", ["at-grpo-table1", "at-grpo-table3"])
def test_the_papers_tables_are_the_committed_results(name):
    columns = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["columns"]
    games = [columns[game]["rows"] for game in ("plan_path", "sudoku", "sokoban")]
    for rows in zip(*games, strict=True):
        cells = [rows[0]["title"]]
        for row in rows:
            cells.append(" / ".join(f"{100 * seed['success']['mean']:.0f}" for seed in row["seeds"]))
            cells.append("–" if row["paper"] is None else f"{row['paper']:g}")
        assert "| " + " | ".join(cells) + " |" in README


def test_what_the_readme_says_of_the_tables_is_in_them():
    one, three = (
        json.loads((ROOT / "benchmarks" / "results" / f"at-grpo-{name}.json").read_text())["columns"]
        for name in ("table1", "table3")
    )
    for game in ("plan_path", "sudoku"):
        for claim in (*one[game]["claims"], *three[game]["claims"]):
            assert all(seed["holds"] is not False for seed in claim["seeds"]), (game, claim["statement"])
    for game, column in three.items():
        mean = {row["id"]: row["success"]["mean"] for row in column["rows"]}
        assert mean["alone_planner"] > mean["together"], game
    learnt = [seed["holds"] for claim in one["sokoban"]["claims"][:2] for seed in claim["seeds"]]
    assert learnt.count(False) == 1

"""docs/code.md: its commands resolve, and its tables are what the code has."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from coterie.backends.data.sets.source import SetData
from coterie.backends.data.shipped import Cooperative
from coterie.data.sources import known_sets
from coterie.discovery import plugins
from coterie.plugins.envs.code.judging import LEAST_CPU, LEAST_WALL
from coterie.plugins.envs.code.problem import problem_of, record_of
from coterie.plugins.envs.code.written_tests import written_tests
from coterie.plugins.rewards import reports
from coterie.recipes import load, recipes
from tests.plugins.envs.code.problems import ADD, SUM_LINES

ENVIRONMENTS = ("code_collab", "code_game", "code_tests")
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "code.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables in a section, without their heads."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("line", re.findall(r"^coterie run ([^\n]+)", PAGE, re.MULTILINE))
def test_commands_resolve(line):
    recipe, *overrides = shlex.split(line, comments=True)
    scale = overrides[1] if overrides[:1] == ["--scale"] else None
    config = load(recipe, overrides=overrides[2 * bool(scale) :], scale=scale).config
    assert config.env["type"] in ENVIRONMENTS


def test_every_set_is_listed_with_its_defaults():
    listed = {name: (hub, *splits) for name, hub, *splits in rows("Known sets") if name != "source"}
    ours = {
        name: (known.form.hub, *(known.form.splits[split] for split in ("train", "val", "test")))
        for name in known_sets()
        if issubclass(known := plugins().registry.load("data_source", name), SetData)
    }
    assert {name: tuple(cell.strip("`") for cell in cells) for name, cells in listed.items()} == ours


def test_the_fields_of_a_problem_are_those_that_are_read():
    listed = {
        name.strip("` ") for field, _ in rows("Problems") if field != "field" for name in field.split(",")
    }
    read = set(record_of(problem_of({**ADD, "size_limit": 9, "visible_tests": "assert f(0, 0) == 0"})))
    read |= set(record_of(problem_of({**SUM_LINES, "visible_cases": [["1", "1"]]})))
    assert listed == read | {"id", "difficulty"}


def test_our_problems_are_as_many_as_it_says():
    source = Cooperative(Cooperative.Config(), None)
    count = sum(len(source.records(split)) for split in ("train", "val", "test"))
    assert f"a set of {count} functions" in PAGE


def test_what_testers_can_write_without_a_test_is_as_it_says():
    kept = [len(written_tests(f"```tests\n{line}\n```", "f", 9).tests) for line in (
        "assert f(1) is not None", "assert f(1) in range(10**9)")]  # fmt: skip
    assert kept == [0, 1]


def test_the_levels_are_those_of_the_reward():
    values = [float(row[-1]) for row in rows("Rewards") if re.fullmatch(r"-?\d\.\d", row[-1])]
    names = ("AUX", "MAIN", "SYNTAX", "TESTS", "CALLED", "NOT_THIN", "IGNORED")
    assert values == [getattr(reports, name) for name in names]
    assert reports.HIGHEST == 4.0 and "add up to 4" in PAGE


def test_every_recipe_is_listed_with_its_turns():
    listed = {}
    for names, team, turns in rows("Recipes")[1:]:
        for name in names.replace("`", "").split(", "):
            listed[name] = (team, int(turns[0]))
    ours = {}
    for info in recipes():
        config = load(info.name).config
        if config.env["type"] in ENVIRONMENTS:
            ours[info.name] = (" and ".join(config.team.roles), config.team.max_turns)
    assert listed == ours


RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def test_the_game_s_figures_are_those_of_its_benchmark():
    results = json.loads((RESULTS / "code_game.json").read_text())
    seeds = results["one_turn"]
    assert len(seeds) == 3 and all(
        s["before"]["return"]["ci95"][1] < s["after"]["return"]["ci95"][0] for s in seeds
    )
    assert all(seed["after"]["return"]["n"] == results["tasks"] >= 500 for seed in seeds)
    parts = [
        (when, key, digits) for key, digits in (("return", 2), ("success", 3)) for when in ("before", "after")
    ]
    wanted = [
        [str(seed["seed"]), *(interval(seed[when][key], digits) for when, key, digits in parts)]
        for seed in seeds
    ]
    listed = rows("The coding game")
    assert [row for row in listed if len(row) == 5 and row[0].isdigit()] == wanted
    modes = {
        (str(row["seed"]), row["mode"]): interval(row["after"]["success"], 3) for row in results["two_turns"]
    }
    turns = {
        (row[0], mode): cell
        for row in listed
        if len(row) == 3 and row[0].isdigit()
        for mode, cell in zip(("plain", "level_feedback"), row[1:], strict=True)
    }
    assert turns == modes and len(modes) == 6


def interval(value, digits):
    low, high = value["ci95"]
    return f"{value['mean']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def test_judging_takes_the_share_that_the_page_says():
    share = json.loads((RESULTS / "code_judging.json").read_text())["median_waits"]
    assert share <= 0.1 and f"{share:.1%} of a step" in PAGE.replace(" %", "%")


def test_the_least_time_of_a_test_is_as_it_says():
    assert f"at least {LEAST_CPU:g} of CPU time and {LEAST_WALL:g} of wall time" in PAGE

"""docs/headlines.md: its tables are the columns' figures of the paper, and its arithmetic is right."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from coterie.studies.catalogue import load_column

PAGE = (Path(__file__).parents[1] / "docs" / "headlines.md").read_text(encoding="utf-8")
ROWS = ("single", "single_grpo", "team", "shared", "per_role")
GAMES = {"Sudoku": "sudoku", "Sokoban": "sokoban", "Plan-Path": "plan_path"}
CODING, MATHS = ("LiveCodeBench", "APPS", "CodeContests"), ("AIME24", "AIME25", "OlympiadBench")


def table(head: str, section: str = "") -> dict[str, list[str]]:
    """The rows of the first table after `section` whose first heading is `head`: name -> cells."""
    page = PAGE[PAGE.index(section) :]
    block = page[page.index(f"| {head} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block[2:]]
    return {row[0]: row[1:] for row in cells}


TABLES = [
    {name: dict(zip(ROWS, map(float, cells), strict=True)) for name, cells in table(head).items()}
    for head in ("1.7B", "8B")
]


def mean(sizes_table: dict, names: tuple[str, ...], row: str, over: str) -> float:
    return sum(sizes_table[name][row] - sizes_table[name][over] for name in names) / len(names)


@pytest.mark.parametrize("game", GAMES)
def test_the_games_figures_are_the_columns(game):
    for name in (GAMES[game], f"{GAMES[game]}_code"):
        paper = load_column(name).paper
        for study, figures in zip(("at-grpo-table1", "at-grpo-table2"), TABLES, strict=True):
            assert paper[study] == figures[game], (name, study)


def test_the_rows_of_planning_go_from_the_single_agent_with_grpo_to_the_better_team():
    rows = table("game", "## Planning")
    assert {*rows} == {*GAMES}
    for game, cells in rows.items():
        for cell, figures in zip(cells, TABLES, strict=True):
            best = max(figures[game]["shared"], figures[game]["per_role"])
            assert cell == f"{figures[game]['single_grpo']:g} → {best:g}"


@pytest.mark.parametrize(("section", "names"), [("## Coding", CODING), ("## Maths", MATHS)])
def test_gains_are_a_policy_per_role_over_the_single_agent_with_grpo(section, names):
    rows = table("benchmark", section)
    means = rows.pop("mean")
    assert tuple(rows) == names
    for name, cells in rows.items():
        for cell, figures in zip(cells, TABLES, strict=True):
            team, single = figures[name]["per_role"], figures[name]["single_grpo"]
            assert cell == f"{team:g} − {single:g} = {round(team - single, 2):g}"
    assert means == [f"{mean(figures, names, 'per_role', 'single_grpo'):.2f}" for figures in TABLES]


def test_the_other_means_are_as_stated_and_none_is_the_headlines_nine():
    rows = table("mean over the three, 1.7B")
    for title, row in (("shared policy", "shared"), ("a policy per role", "per_role")):
        means = [mean(TABLES[0], MATHS, row, over) for over in ("single", "single_grpo", "team")]
        assert rows[title] == [f"{round(value, 2):g}" for value in means]
        assert all(abs(value - 9.0) > 0.05 for value in means)
    assert sum((3.3, 6.9, 16.8)) / 3 == pytest.approx(9.0) and "39.6 − 22.2 is 17.4" in PAGE
    for over, text in (("single", "6.33 and 9.65"), ("team", "3.73 and 2.57")):
        one, two = (f"{mean(figures, CODING, 'per_role', over):.2f}" for figures in TABLES)
        assert text == f"{one} and {two}" and text in PAGE


def test_no_ratio_of_a_row_is_the_headlines_factor():
    ablation = {name: float(cells[0]) for name, cells in table("row", "## Table 3").items()}
    rows = [[*figures.values()] for sizes_table in TABLES for figures in sizes_table.values()]
    ratios = [a / b for row in (*rows, [*ablation.values()]) for a, b in itertools.permutations(row, 2) if b]
    assert all(round(ratio, 1) != 5.8 for ratio in ratios)
    nearest = sorted({round(ratio, 2) for ratio in ratios}, key=lambda ratio: abs(ratio - 5.8))[:2]
    assert nearest == [5.92, 6.0]


def test_table_3_is_the_columns_with_its_gains():
    paper = load_column("plan_path").paper["at-grpo-table3"]
    cells = table("row", "## Table 3").values()
    assert [float(success) for success, _ in cells] == list(paper.values())
    gains = [gain for _, gain in cells][1:]
    assert gains == [f"{value - paper['single']:+g}" for value in list(paper.values())[1:]]


def test_the_summary_states_the_results_of_the_sections():
    rows = {name.partition(":")[0]: cells[0] for name, cells in table("headline").items()}
    assert "baseline of the 99.5 is 54" in rows["planning"] and TABLES[1]["Sudoku"]["single_grpo"] == 54
    assert re.findall(r"\d\.\d\d", rows["coding"]) == ["3.87", "7.63"]
    assert re.findall(r"\d+\.\d\d", rows["maths"]) == ["17.94", "8.77"] and rows["5.8x"] == "no"

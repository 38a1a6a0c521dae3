"""docs/algorithms.md says what the code does: its tables, its rules, and the example to redo by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coterie.compose import prepare
from coterie.core.protocols import Batch
from coterie.core.types import Key, RewardWeights
from coterie.discovery import plugins
from coterie.plugins.algos.blocks.estimator import RULES, GroupEstimator
from coterie.plugins.algos.blocks.groups import turn_weights
from coterie.recipes import load
from coterie.testing import J, build, tree_literals
from tests.cli.support import TABULAR

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def table(first_column: str) -> dict[str, list[str]]:
    """The rows of the table whose header begins so: name -> the other cells, without backquotes."""
    _, _, rest = PAGE.partition(f"| {first_column} |")
    rows = rest.split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[0].strip("`"): row[1:] for row in cells}


def ours(kind: str) -> set[str]:
    return {entry.name for entry in plugins().registry.entries(kind) if entry.distribution == "coterie"}


def test_every_estimator_and_loss_has_a_row():
    assert set(table("`algorithm.type`")) == ours("estimator")
    assert set(table("`loss.type`")) == ours("loss")


@pytest.mark.parametrize("name", sorted(ours("estimator") - {"compose", "rae", "gae", "reinforce_pp"}))
def test_the_table_names_the_pieces(name: str):
    estimator = build("estimator", name)
    assert isinstance(estimator, GroupEstimator)
    pieces = estimator.pieces
    row = table("`algorithm.type`")[name]
    assert [cell.strip("`") for cell in row[:3]] == [pieces.group, pieces.returns, pieces.baseline]
    assert row[3].startswith(f"`{pieces.normalise.type}`")
    assert ("over the batch" in row[3]) == (pieces.normalise.scope != "group")


@pytest.mark.parametrize("name", sorted(ours("estimator") - {"compose"}))
def test_the_table_names_the_papers_loss_as_the_estimator_does(name: str):
    assert table("`algorithm.type`")[name][4].replace("`", "") == build("estimator", name).paper_loss


def test_an_override_of_the_algorithm_says_which_loss_it_keeps(caplog: pytest.LogCaptureFixture):
    sampling = ("algorithm=magrpo", "env.team=potential", "sampler.expand=all", "team.max_turns=1")
    prepare(load(TABULAR, overrides=sampling))
    assert "keeps the loss that was there (ppo_clip, token_mean, kl 0.0)" in caplog.text
    assert "its paper has another: reinforce, sequence_sum" in caplog.text
    caplog.clear()
    prepare(load(TABULAR, overrides=(*sampling, "loss={type: reinforce, length: sequence_sum}")))
    prepare(load(TABULAR, overrides=["algorithm.alpha=0.5"]))  # the recipe's own choice
    prepare(load(TABULAR))
    assert "keeps the loss" not in caplog.text


def test_the_rules_are_the_ones_that_check_enforces():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for rule in RULES:
        assert f"| {rule.when} | {rule.needs} | {rule.why} |" in rows


# ------------------------------------------------------------------------------------------ the example


def example() -> Batch:
    step = tree_literals([J(0.0, [J(2.0), J(0.0)]), J(1.0, [J(1.0), J(1.0)])])
    return Batch(trees=step.trees, scores=step.scores, annotations={}, reward_weights=RewardWeights())


def pairs(by_branch: dict[Key, Any]) -> list[list[float]]:
    """Of the root, x and y."""
    root = Key("t")
    return [
        [by_branch[place.of_branch("one", branch)] for branch in (0, 1)]
        for place in (root, root.child(0), root.child(1))
    ]


@pytest.mark.parametrize("name", ["magrpo", "marloo", "mareinforce", "maremax"])
def test_the_example_by_hand(name: str):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` (")]
    wanted = [[float(number) for number in cell.split(",")] for cell in row.strip("|").split("|")[1:]]
    credit, _ = build("estimator", name)(example(), None)
    assert pairs(credit.advantage) == [pytest.approx(pair) for pair in wanted]


def test_the_examples_returns_weights_and_immediate_credit():
    credit, _ = build("estimator", "magrpo")(example(), None)
    assert pairs(credit.returns) == [[1, 2], [2, 0], [1, 1]]
    assert pairs(turn_weights(example().trees, credit.advantage, ())) == [
        [1 / 2] * 2,
        [1 / 4] * 2,
        [1 / 4] * 2,
    ]
    immediate, _ = build("estimator", "at_grpo")(example(), None)
    assert pairs(immediate.advantage)[0] == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    assert re.search(r"-0\.7071 and 0\.7071", PAGE)

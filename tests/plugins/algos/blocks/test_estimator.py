"""The pieces of an estimator, and what they must say to each other."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError, PluginError
from coterie.core.protocols import Plan
from coterie.plugins.algos.blocks.estimator import RULES, Pieces, check_pieces
from coterie.plugins.algos.blocks.groups import Normaliser
from coterie.testing import coterie_run
from tests.plugins.algos.support import team

SCALE, WHITEN, NONE = (Normaliser(type=kind) for kind in ("scale", "whiten", "none"))
GLOBAL = Normaliser(type="scale", scope="global")
BRANCHES = Plan(chains=1, branches=2, expand="best", pairing="aligned")
CHAINS = Plan(chains=2, branches=1, expand="best", pairing="aligned")
ALL = Plan(chains=1, branches=2, expand="all", pairing="aligned")
ONE = replace(CHAINS, chains=1)


AT_ONCE, IN_TURN = team([("one", "two")], turns=2), team([("one",), ("two",)], turns=2)
EPISODE = Pieces(group="task", returns="episode")
BARE = Pieces(group="batch", baseline="none", normalise=NONE)

CASES = [
    # rule, (pieces, plan, team) that break it, the least change that doesn't
    ("group `decision` with a baseline", (Pieces(), ONE, AT_ONCE), (Pieces(), BRANCHES, AT_ONCE)),
    (
        "normaliser of scope `group` on group `decision`",
        (Pieces(baseline="none", normalise=WHITEN), CHAINS, AT_ONCE),
        (Pieces(baseline="none", normalise=NONE), CHAINS, AT_ONCE),
    ),
    ("group `task` or `turn` with a baseline", (Pieces(group="turn"), ONE, AT_ONCE),
     (Pieces(group="turn"), CHAINS, AT_ONCE)),
    ("group `task` or `turn` with a baseline", (Pieces(group="task"), ONE, AT_ONCE),
     (Pieces(group="task"), BRANCHES, AT_ONCE)),
    ("group `task` or `turn` with a baseline", (EPISODE, replace(ALL, branches=1), AT_ONCE),
     (EPISODE, ALL, AT_ONCE)),
    (
        "normaliser of scope `group` on group `task` or `turn`",
        (replace(EPISODE, baseline="none", normalise=WHITEN), ONE, AT_ONCE),
        (replace(EPISODE, baseline="none", normalise=NONE), ONE, AT_ONCE),
    ),
    ("return `episode`", (EPISODE, replace(BRANCHES, chains=2), AT_ONCE), (EPISODE, CHAINS, AT_ONCE)),
    ("return `episode`", (EPISODE, replace(BRANCHES, chains=2), AT_ONCE),
     (EPISODE, replace(ALL, chains=2), AT_ONCE)),
    ("return `to_go`", (replace(BARE, returns="to_go"), ALL, AT_ONCE),
     (replace(BARE, returns="tree"), ALL, AT_ONCE)),
    ("return `to_go`", (replace(BARE, returns="to_go"), BRANCHES, AT_ONCE),
     (replace(BARE, returns="to_go"), CHAINS, AT_ONCE)),
    ("return `tree`", (Pieces(returns="tree"), BRANCHES, AT_ONCE), (Pieces(returns="tree"), ALL, AT_ONCE)),
    ("return `tree`", (Pieces(returns="tree"), replace(ALL, expand="sampled"), AT_ONCE),
     (Pieces(returns="immediate"), replace(ALL, expand="sampled"), AT_ONCE)),
    ("return `episode`", (replace(EPISODE, group="decision"), ALL, AT_ONCE), (EPISODE, ALL, AT_ONCE)),
    ("return `episode`", (replace(EPISODE, group="turn"), CHAINS, AT_ONCE),
     (replace(EPISODE, group="role"), CHAINS, AT_ONCE)),
    ("normaliser `scale` without a baseline", (replace(BARE, normalise=SCALE), CHAINS, AT_ONCE),
     (replace(BARE, normalise=WHITEN), CHAINS, AT_ONCE)),
    ("normaliser `scale` without a baseline", (replace(BARE, normalise=GLOBAL), CHAINS, AT_ONCE),
     (Pieces(group="batch", normalise=GLOBAL), CHAINS, AT_ONCE)),
    ("`fill: repeat`", (Pieces(returns="tree", fill="repeat"), ALL, IN_TURN),
     (Pieces(returns="tree", fill="repeat"), ALL, AT_ONCE)),
    ("`fill: repeat`", (replace(EPISODE, fill="repeat"), CHAINS, IN_TURN),
     (replace(EPISODE, fill="difference"), CHAINS, IN_TURN)),
    ("`gamma` below 1", (Pieces(gamma=0.9), BRANCHES, AT_ONCE), (Pieces(gamma=1.0), BRANCHES, AT_ONCE)),
    ("`gamma` below 1", (Pieces(gamma=0.9), ALL, AT_ONCE), (Pieces(gamma=0.9, returns="tree"), ALL, AT_ONCE)),
    ("`fill`", (Pieces(fill="repeat"), ALL, AT_ONCE), (Pieces(fill="repeat", returns="tree"), ALL, AT_ONCE)),
    ("`fill`", (Pieces(fill="repeat"), BRANCHES, IN_TURN), (Pieces(), BRANCHES, IN_TURN)),
]  # fmt: skip


def test_every_rule_is_tried():
    broken = [rule for rule in RULES if any(rule.broken(*bad) for when, bad, _ in CASES if when == rule.when)]
    assert broken == list(RULES)


@pytest.mark.parametrize(("when", "bad", "good"), CASES)
def test_a_pair_without_a_meaning_is_refused_and_the_least_change_is_not(when, bad, good):
    with pytest.raises(ConfigError) as error:
        check_pieces(*bad)
    rule = next(rule for rule in RULES if rule.when == when and rule.broken(*bad))
    assert error.value.path == rule.path
    for part in (rule.when.replace("`", ""), rule.needs.replace("`", ""), rule.why, rule.fix, rule.path):
        assert part in str(error.value)
    check_pieces(*good)


@pytest.mark.parametrize("group", ["decision", "task"])
def test_no_message_speaks_of_a_baseline_where_there_is_none(group):
    with pytest.raises(ConfigError) as error:
        check_pieces(Pieces(group=group, baseline="none", normalise=WHITEN), ONE, AT_ONCE)
    assert "baseline" not in str(error.value) and "algorithm.normalise.type=none" in error.value.fix


def test_the_message_gives_the_wrong_number():
    with pytest.raises(ConfigError, match=r"sampler\.branches is 1"):
        check_pieces(Pieces(), ONE, AT_ONCE)
    with pytest.raises(ConfigError, match=r"sampler\.chains is 1"):
        check_pieces(EPISODE, ONE, AT_ONCE)


@pytest.mark.parametrize(
    ("pieces", "warns"),
    [
        (Pieces(baseline="mean", normalise=WHITEN), False),
        (Pieces(baseline="loo", normalise=WHITEN), True),
        (Pieces(baseline="max", normalise=WHITEN), True),
        (Pieces(baseline="none", normalise=WHITEN), True),
        (Pieces(baseline="loo", normalise=SCALE), False),
        (Pieces(baseline="max", normalise=NONE), False),
        (Pieces(baseline="loo", normalise=Normaliser(type="whiten", scope="global")), False),
        (Pieces(group="role", baseline="loo", normalise=Normaliser(type="whiten", scope="role")), True),
    ],
)
def test_a_baseline_that_whitening_takes_away_is_warned_about(pieces, warns, caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        check_pieces(pieces, ALL, AT_ONCE)
    assert ("makes no difference" in caplog.text) == warns


@pytest.mark.parametrize("alpha", [float("nan"), float("inf")])
def test_alpha_is_a_finite_number(alpha):
    with pytest.raises(PluginError, match="finite number") as caught:
        coterie_run(algorithm={"type": "at_grpo", "alpha": alpha})
    assert caught.value.path == "algorithm"

"""Which way of sampling each estimator accepts, and what a run's configuration is refused for."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError
from coterie.core.protocols import Plan
from coterie.testing import coterie_run
from tests.plugins.algos.support import ALL, BRANCHES, CHAINS, CROSS, PLANS, TREES, estimator

SINGLE = Plan(chains=1, branches=1, expand="best", pairing="aligned")
SAMPLED = Plan(chains=1, branches=3, expand="sampled", pairing="aligned")
WAYS = {
    "single": SINGLE,
    "chains": CHAINS,
    "branches": BRANCHES,
    "sampled": SAMPLED,
    "all": ALL,
    "cross": CROSS,
    "line": Plan(chains=1, branches=1, expand="all", pairing="aligned"),
    "forest": Plan(chains=2, branches=2, expand="all", pairing="aligned"),
}
ACCEPTS = {
    "at_grpo": {"branches", "sampled", "all", "cross", "forest"},
    **{name: {"chains", "all", "cross", "forest"} for name in ("grpo", "dr_grpo", "rloo")},
    "reinforce": {"single", "chains", "line"},
    **{name: {"all", "cross", "forest"} for name in ("magrpo", "marloo", "maremax")},
    "mareinforce": {"all", "cross", "line", "forest"},
    "reinforce_pp": set(WAYS),
    "reinforce_pp_baseline": {"chains", "branches", "sampled", "all", "cross", "forest"},
    "rae": {"single", "chains", "all", "cross", "line", "forest"},
    "gae": {"single", "chains", "line"},
}


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("name", sorted(PLANS))
def test_who_accepts_what(name, way):
    if way in ACCEPTS[name]:
        estimator(name, plan=WAYS[way])
        return
    with pytest.raises(ConfigError) as error:
        estimator(name, plan=WAYS[way])
    assert error.value.path.startswith("sampler.") and error.value.fix and error.value.why


# ------------------------------------------------------------------------------------- as a run says it


@pytest.mark.parametrize(
    ("algorithm", "sampler", "path", "says"),
    [
        ({"type": "at_grpo"}, {"branches": 1}, "sampler.branches", "one member"),
        ({"type": "grpo"}, {"branches": 1}, "sampler.chains", "one member"),
        ({"type": "grpo"}, {"branches": 2, "chains": 2}, "sampler.branches", "whole chains"),
        ({"type": "reinforce"}, {"branches": 2}, "sampler.branches", "not played out"),
        ({"type": "magrpo"}, {"branches": 2}, "sampler.expand", "no children"),
        ({"type": "magrpo"}, {"branches": 2, "expand": "sampled"}, "sampler.expand", "no children"),
        ({"type": "gae"}, {"branches": 2}, "sampler.branches", "whole chains"),
    ],
)
def test_a_sampling_that_means_nothing_is_refused(algorithm, sampler, path, says):
    with pytest.raises(ConfigError, match=says) as error:
        coterie_run(algorithm=algorithm, sampler=sampler)
    assert error.value.path == path and error.value.fix


@pytest.mark.parametrize(
    ("algorithm", "path"),
    [
        ({"type": "at_grpo", "gamma": 0.9}, "algorithm.gamma"),
        ({"type": "at_grpo", "fill": "repeat"}, "algorithm.fill"),
        ({"type": "reinforce_pp_baseline", "gamma": 0.9}, "algorithm.gamma"),
        ({"type": "compose", "group": "decision", "return": "immediate", "gamma": 0.9}, "algorithm.gamma"),
        ({"type": "compose", "group": "decision", "return": "immediate", "fill": "repeat"}, "algorithm.fill"),
        ({"type": "compose", "group": "node", "return": "immediate"}, "algorithm.group"),
        ({"type": "compose", "group": "decision", "return": "td"}, "algorithm.return"),
        (
            {"type": "compose", "group": "decision", "return": "immediate", "baseline": "min"},
            "algorithm.baseline",
        ),
        ({"type": "compose", "group": "decision"}, "algorithm.return"),
        ({"type": "at_grpo", "normalise": {"type": "none", "eps": 0.1}}, "algorithm.normalise"),
        ({"type": "at_grpo", "normalise": {"per": "token"}}, "algorithm.normalise"),
        ({"type": "at_grpo", "normalise": {"ddof": 2}}, "algorithm.normalise.ddof"),
        ({"type": "at_grpo", "normalise": {"sigma": 2}}, "algorithm.normalise.sigma"),
        ({"type": "at_grpo", "turn_weights": [1.0]}, "algorithm.turn_weights"),
        ({"type": "at_grpo", "termination_threshold": 1.0}, "algorithm.termination_threshold"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(algorithm, path):
    with pytest.raises(ConfigError) as error:
        coterie_run(algorithm=algorithm, sampler={"branches": 2})
    assert error.value.path == path


@pytest.mark.parametrize("name", ["grpo", "reinforce", *TREES])
@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_is_between_0_and_1(name, gamma):
    with pytest.raises(ConfigError) as error:
        estimator(name, gamma=gamma)
    assert error.value.path == "algorithm.gamma"


def test_to_fill_up_turns_roles_must_act_at_once():
    settings = {
        "sampler": {"branches": 2, "expand": "all"},
        "algorithm": {"type": "magrpo", "fill": "repeat"},
    }
    with pytest.raises(ConfigError, match="one stage a turn") as error:
        coterie_run(order=["one", "two"], **settings)
    assert error.value.path == "algorithm.fill" and error.value.fix
    coterie_run(order=[["one", "two"]], **settings)


def test_turn_weights_are_as_many_as_the_teams_turns():
    settings = {"sampler": {"branches": 2, "expand": "all"}, "order": ["one"]}
    with pytest.raises(ConfigError, match="has 2 weights, and an episode 3 turns"):
        coterie_run(algorithm={"type": "magrpo", "turn_weights": [1.2, 0.8]}, max_turns=3, **settings)
    coterie_run(algorithm={"type": "magrpo", "turn_weights": [1.2, 0.8]}, max_turns=2, **settings)


# ------------------------------------------------------------------------- the normaliser's own defaults


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("grpo", {"ddof": 0}, {"type": "scale", "eps": 1e-4, "ddof": 0}),
        ("dr_grpo", {"type": "scale", "eps": 0.5}, {"type": "scale", "eps": 0.5}),
        ("gae", {"per": "action"}, {"type": "whiten", "scope": "global", "per": "action", "eps": 1e-8}),
        ("gae", {"type": "none"}, {"type": "none"}),
        ("reinforce_pp", {"scope": "role"}, {"type": "whiten", "scope": "role", "per": "token", "ddof": 0}),
        ("reinforce_pp_baseline", {"per": "action"}, {"type": "scale", "scope": "global", "per": "action"}),
    ],
)
def test_a_table_changes_the_estimators_own_normaliser_key_by_key(name, given, wanted):
    normaliser = estimator(name, normalise=given).config.normalise
    assert {key: getattr(normaliser, key) for key in wanted} == wanted


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "reinforce", "rae", *TREES])
def test_who_has_no_normaliser_gets_none_by_half_a_table(name):
    with pytest.raises(ConfigError, match="type none reads no eps") as error:
        estimator(name, normalise={"eps": 0.1})
    assert error.value.path == "algorithm.normalise"

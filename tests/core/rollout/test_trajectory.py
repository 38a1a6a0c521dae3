"""Scope `trajectory`: one call of a source scores every action of an episode, each for its own role."""

from __future__ import annotations

import pytest

from coterie import PolicyFault, Score, SystemFault, UserError, train
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import ConfigError, PluginError
from coterie.core.types import TEAM
from coterie.testing import coterie_run, play_episode

CALLS: list[list[tuple[str, str]]] = []
CHAIN = {"sampler": {"branches": 1, "chains": 2}, "algorithm": {"type": "reinforce_pp", "beta": 0.0}}


def lengths(view):
    """The number of earlier actions, with the role as comment."""
    CALLS.append([(played.decision.role, played.action.text) for played in view.actions])
    return [Score(float(at), comment=role) for at, (role, _) in enumerate(CALLS[-1])]


def lost(view):
    raise SystemFault("503 from the judge")


def broken_output(view):
    raise PolicyFault("the text kills the judge")


def too_few(view):
    return [1.0]


def one_missing(view):
    return [None, *[1.0] * (len(list(view.actions)) - 1)]


def to_the_team(view):
    return [{(TEAM, "r"): 1.0} for _ in view.actions]


def spent(view):
    raise UserError("the budget is spent")


def run(name, **tables):
    rewards = {"r": {"type": "function", "function": f"{__name__}:{name}", "scope": "trajectory"}}
    schedule = {"max_missing": 1.0}
    return coterie_run(order=["one", "two"], rewards=rewards, schedule=schedule, **{**CHAIN, **tables})


def scored(name, **tables):
    trees, scores = play_episode(run(name, **tables))
    assert len(trees) == 2
    return trees, [(key, role, score) for key, role, component, score in scores if component == "r"]


def test_each_action_of_an_episode_gets_its_score_in_one_call():
    CALLS.clear()
    trees, rows = scored("lengths")
    assert len(CALLS) == 2, "one call a trajectory"
    for actions in CALLS:
        assert [role for role, _ in actions] == ["one", "two"] * (len(actions) // 2)
    for tree in trees:
        (path,) = tree.chains()
        expected = {
            node.key.of_branch(role, 0): (float(at), role)
            for at, (node, role) in enumerate((node, role) for node, _ in path for role in node.decisions)
        }
        got = {key: (score.value, role) for key, role, score in rows if key in expected}
        assert got == expected
    assert all(score.comment == role for _, role, score in rows)


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("lost", None, "503 from the judge"), ("broken_output", 0.0, "floor: the text kills the judge"),
])  # fmt: skip
def test_a_failed_call_is_the_failure_of_each_role(name, value, reason):
    trees, rows = scored(name)
    actions = sum(len(node.decisions) for tree in trees for node in tree.nodes())
    assert len(rows) == actions and all(role in ("one", "two") for _, role, _ in rows)
    assert {score.value for *_, score in rows} == {value}
    assert all(reason in score.reason and not score.whole for *_, score in rows)


def test_one_score_may_be_missing():
    trees, rows = scored("one_missing")
    assert [score.value for _, _, score in rows].count(None) == len(trees)
    assert {role for _, role, score in rows if score.value is None} == {"one"}


def test_a_list_of_another_length_is_refused():
    with pytest.raises(PluginError, match=r"a list of \d+ scores, one per action"):
        scored("too_few")


def test_a_score_of_the_team_counts_at_its_place():
    _, rows = scored("to_the_team")
    assert {role for _, role, _ in rows} == {TEAM} and all(score.value == 1.0 for *_, score in rows)


def test_a_failure_that_no_call_escapes_stops_the_run():
    with pytest.raises(UserError, match="the budget is spent") as caught:
        scored("spent")
    assert caught.value.path == "rewards.r"


@pytest.mark.parametrize(
    "sampler", [{"branches": 2}, {"branches": 2, "expand": "all"}, {"branches": 2, "expand": "sampled"}]
)
def test_an_episode_that_forks_is_refused(sampler):
    with pytest.raises(ConfigError, match="where episodes fork") as caught:
        run("lengths", sampler=sampler)
    assert caught.value.path == "rewards.r"


def test_comments_are_recorded_with_the_rollout(tmp_path):
    table = run("lengths").resolved.table
    train(table, out=tmp_path / "run")
    rows = read_rollouts(tmp_path / "run/rollouts/step-000001.jsonl.gz")
    branches = [row for row in rows if row["kind"] == "branch"]
    assert branches and all(row["comments"] == {"r": row["role"]} for row in branches)

"""The fields that episodes are searched and sorted by, worked out by hand."""

from __future__ import annotations

import math

from coterie.api.episodes import trees_of
from coterie.api.rollouts import rollout_rows
from coterie.viewing.episode_fields import FIELDS, OF_ROLES, fields_of, repeats_of
from tests.core.toy_trees import toy


def toy_fields():
    tree, scores, credit, weights = toy()
    (recorded,) = trees_of(rollout_rows([tree], scores, credit, weights), step=4)
    (episode,) = recorded.episodes()
    return fields_of(episode)


def test_fields_of_the_toy_are_those_by_hand():
    fields = toy_fields()
    assert (fields["step"], fields["task"], fields["turns"], fields["success"]) == (4, "train-7", 2, 1.0)
    assert fields["outcome.quality"] == 0.5 and fields["actions"] == 3
    # Joint 1, then joint 0 of the second node: the planner's `format` is missing in the first.
    assert fields["reward"] is None and fields["reward.planner"] is None and fields["missing"] == 1
    assert fields["missing.planner"] == 1 and fields["missing.coder"] == 0
    assert fields["reward.coder"] == 2.0 * (1 / 3) + 1.0
    assert fields["score.team.progress"] == math.fsum([1 / 3, 1.0]) / 2 and fields["score.coder.tests"] == 1.0
    assert fields["score.planner.format"] is None
    assert (fields["faults"], fields["faults.coder"], fields["faults.planner"]) == (1, 1, 0)
    assert (fields["finish_length"], fields["finish_length.planner"], fields["empty"], fields["lost"]) == (
        1,
        1,
        0,
        0,
    )
    assert (fields["tokens"], fields["tokens.planner"], fields["tokens.coder"]) == (5 + 3 + 2, 7, 3)
    assert (
        fields["advantage.coder"] == 1.0 and fields["advantage.planner"] is None and fields["return"] is None
    )
    assert fields["spread.coder"] == abs((2.0 / 3 + 1.0) - 0.5)


def test_every_field_has_a_meaning():
    known = {name for name in FIELDS if "<" not in name}
    for name in toy_fields():
        base = name.partition(".")[0]
        assert name in known or base in ("score", "outcome") or (base in OF_ROLES and base in known)


def branch(text):
    return {"completion": text, "branch": 0}


class Acted:
    def __init__(self, role, text, node):
        self.role, self.branch, self.node = role, branch(text), node


def test_an_action_repeats_the_last_other_role_that_it_could_see():
    first, second, third = object(), object(), object()
    actions = [
        Acted("planner", "go  left", first),
        Acted("executor", "go left\n", second),  # repeats
        Acted("planner", "go left", third),  # its own text, which the executor repeated
        Acted("planner", "up", object()),
        Acted("executor", "down", object()),
        Acted("planner", "down", object()),  # repeats
        Acted("executor", "", object()),
    ]
    assert list(repeats_of(actions)) == [actions[1], actions[5]]
    together = [Acted("row", "a", first), Acted("column", "a", first)]
    assert list(repeats_of(together)) == []


def fields_of_rows(rows):
    (recorded,) = trees_of(rows)
    return fields_of(next(iter(recorded.episodes())))


def toy_rows():
    tree, scores, credit, weights = toy()
    return [dict(row) for row in rollout_rows([tree], scores, credit, weights)]


def test_a_fault_of_an_action_counts_once_and_one_of_the_step_beside_it():
    unparsable, refused = {"kind": "policy", "reason": "unparsable"}, {"kind": "policy", "reason": "refused"}
    for fault, faults, lost in ((unparsable, 1, 0), (refused, 2, 0), ({**refused, "kind": "system"}, 1, 1)):
        rows = toy_rows()
        joint = next(row for row in rows if row["kind"] == "joint" and row["joint"] == 1)
        joint["fault"] = fault
        fields = fields_of_rows(rows)
        assert (fields["faults"], fields["lost"]) == (faults, lost)


def test_a_mean_is_over_those_that_are_there_but_for_rewards():
    rows = toy_rows()
    for row in rows:
        if row["kind"] == "branch":
            row["return"] = 2.0 if row["role"] == "coder" else None
    fields = fields_of_rows(rows)
    assert fields["return"] == 2.0 and fields["return.planner"] is None and fields["reward"] is None


def test_an_episode_in_which_no_joint_action_could_go_on_is_lost():
    rows = [row for row in toy_rows() if row["node"] == "train-7/e0/c0/n"]
    for row in rows:
        if row["kind"] == "joint":
            row |= {"expanded": False, "child": None}
    fields = fields_of_rows(rows)
    assert (fields["lost"], fields["actions"], fields["success"]) == (1, 0, None)

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

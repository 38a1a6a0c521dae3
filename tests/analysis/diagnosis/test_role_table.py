"""What a role did in a step, on steps whose faults were planted."""

from __future__ import annotations

import pytest

from coterie.analysis.diagnosis.role_table import roles_in_step
from coterie.api.episodes import trees_of
from coterie.api.rollouts import rollout_rows
from tests.core.toy_trees import toy


def test_the_toys_roles_by_hand():
    tree, scores, credit, weights = toy()
    planner, coder = roles_in_step(trees_of(rollout_rows([tree], scores, credit, weights), step=4))
    assert (planner.role, planner.step, planner.actions) == ("planner", 4, 3)
    # Joint 0 pays .5 * 1 + 2 * .25, the second node 2 * 1; branch 1 has a missing score.
    assert planner.reward == (1.0 + 2.0) / 2 and planner.missing == pytest.approx(1 / 3)
    assert planner.tokens == (4 + 5 + 2) / 3 and planner.finish_length == pytest.approx(1 / 3)
    assert (coder.actions, coder.unparsed, coder.empty, coder.fault) == (2, 0.5, 0.5, "unparsable")
    assert coder.advantage == 1.0 and coder.distinct == 1.0 and coder.length_reward is None


def rows(texts, rewards, *, fault=None, role="writer", key="t/e0/c0/n"):
    place = {"task_id": "t", "epoch": 0, "chain": 0, "node": key}
    yield {"kind": "node", **place, "turn": 0, "stage": 0, "role": role, "prompt": "p"}
    for index, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        call = {"token_ids": list(range(len(text))), "logprobs": [], "finish": "stop"}
        yield {
            "kind": "branch", **place, "role": role, "branch": index, "completion": text, "calls": [call],
            "fault": fault, "reward": reward, "advantage": None, "return": None, "scores": {},
        }  # fmt: skip


def test_a_reward_that_pays_length_is_seen():
    texts = ["a" * n for n in (5, 1, 4, 2, 3, 9, 7, 8)]
    (writer,) = roles_in_step(trees_of(rows(texts, [float(len(t)) for t in texts])))
    assert writer.length_reward == pytest.approx(1.0)
    (writer,) = roles_in_step(trees_of(rows(texts, [-float(len(t)) for t in texts])))
    assert writer.length_reward == pytest.approx(-1.0)
    (writer,) = roles_in_step(trees_of(rows(texts, [1.0] * 8)))
    assert writer.length_reward is None
    (writer,) = roles_in_step(trees_of(rows(texts[:7], [float(len(t)) for t in texts[:7]])))
    assert writer.length_reward is None, "too few to say"


def test_what_the_system_lost_counts_in_no_share():
    lost = {"kind": "system", "reason": "the engine aborted the call"}
    (writer,) = roles_in_step(trees_of(rows(["a", "b"], [None, None], fault=lost)))
    assert (writer.actions, writer.lost, writer.missing, writer.unparsed, writer.reward) == (0, 2, 0, 0, None)


def test_equal_siblings_are_not_distinct():
    (writer,) = roles_in_step(trees_of(rows(["a", "a ", "b", "a"], [0.0] * 4)))
    assert writer.distinct == 0.5 and writer.repeats is None

"""Samples: token exactness, and token coefficients that no split into minibatches changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coterie.backends.models.minibatches import minibatches, span_ids, token_coefficients
from coterie.core.training.samples import action_samples, samples_of, staleness
from coterie.core.types import (
    Action,
    Call,
    Credit,
    Decision,
    JointAction,
    Key,
    Node,
    Sample,
    Span,
    Task,
    Tree,
)


def call(prompt, tokens, continues=False, version=3):
    return Call(
        prompt_ids=tuple(prompt),
        token_ids=tuple(tokens),
        logprobs=tuple(-0.1 * t for t in tokens),
        version=version,
        finish="stop",
        continues=continues,
    )


def decision(*actions, trainable=True):
    return Decision(
        role="r",
        policy="p",
        observation=None,
        messages=(),
        prompt_ids=(7, 8),
        prompt_sha256="",
        branches=actions,
        trainable=trainable,
        temperature=0.7,
    )


KEY = Key("t").of_branch("r", 0)


def samples(action, advantage=1.0, weight=1.0, annotations=None):
    return action_samples(KEY, decision(action), action, advantage, weight, annotations or {})


def test_the_ids_that_were_sampled_are_the_ids_that_are_trained_on():
    (row,) = samples(Action(calls=(call([7, 8], [1, 2, 3]),), text="x"))
    assert row.token_ids.tolist() == [7, 8, 1, 2, 3]
    assert row.loss_mask.tolist() == [False, False, True, True, True]
    assert row.logprobs.tolist() == pytest.approx([0, 0, -0.1, -0.2, -0.3])
    assert (row.version, row.temperature, row.prompt_tokens, row.policy) == (3, 0.7, 2, "p")


def test_tool_results_lie_between_the_calls_and_are_masked():
    action = Action(calls=(call([7, 8], [1, 2]), call([7, 8, 1, 2, 50, 51], [3], True)), text="x")
    (row,) = samples(action)
    assert row.token_ids.tolist() == [7, 8, 1, 2, 50, 51, 3]
    assert row.loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert row.spans == (Span(2, 7, KEY, 1.0),)


def test_a_samples_version_is_that_of_its_oldest_call():
    calls = call([7, 8], [1, 2], version=3), call([7, 8, 1, 2, 50], [3], True, version=4)
    (row,) = samples(Action(calls=calls, text="x"))
    assert row.version == 3
    first, second = samples(Action(calls=(calls[0], call([9], [3], version=4)), text="x"))
    assert (first.version, second.version) == (3, 4)


def test_version_runs_are_those_of_all_calls_of_a_sample():
    """Neighbours of one version are one run; a run may lie within a call or go on in the next one."""
    first = dataclasses.replace(call([7, 8], [1, 2, 3], version=3), version_runs=((3, 1), (4, 2)))
    (row,) = samples(Action(calls=(first, call([7, 8, 1, 2, 3, 50], [4], True, version=4)), text="x"))
    assert row.version_runs == ((3, 1), (4, 3))
    alike = dataclasses.replace(call([7, 8, 1, 2, 3, 50], [4, 5], True), version_runs=((3, 1), (5, 1)))
    (row,) = samples(Action(calls=(first, alike), text="x"))
    assert row.version_runs == ((3, 1), (4, 2), (3, 1), (5, 1)), "both calls began with version 3"
    (row,) = samples(Action(calls=(call([7, 8], [1]), call([7, 8, 1, 50], [4], True)), text="x"))
    assert row.version_runs == ()
    unlike = call([7, 8], [1], version=3), call([7, 8, 1, 50], [4, 5], True, version=6)
    (row,) = samples(Action(calls=unlike, text="x"))
    assert row.version_runs == ((3, 1), (6, 2))
    assert staleness([row], 6) == {3: 1, 0: 2} and staleness([row], 4) == {1: 1, -2: 2}


def test_a_broken_prefix_starts_a_new_sample():
    action = Action(calls=(call([7, 8], [1, 2]), call([7, 8, 9], [3], False)), text="x")
    first, second = samples(action, advantage=np.array([1.0, 2.0, 3.0]))
    assert first.token_ids.tolist() == [7, 8, 1, 2] and second.token_ids.tolist() == [7, 8, 9, 3]
    assert first.advantages.tolist() == [0, 0, 1, 2] and second.advantages.tolist() == [0, 0, 0, 3]
    assert first.group != second.group or first.key != second.key


def test_a_prompt_with_continues_that_does_not_continue_starts_a_new_sample():
    action = Action(calls=(call([7, 8], [1, 2]), call([7, 8, 9, 9], [3], True)), text="x")
    assert len(samples(action)) == 2


def test_annotations_are_on_the_sampled_tokens():
    action = Action(calls=(call([7, 8], [1, 2]), call([7, 8, 1, 2, 50], [3], True)), text="x")
    (row,) = samples(action, annotations={"ref_logprobs": {KEY: np.array([0.1, 0.2, 0.3])}})
    assert row.extras["ref_logprobs"].tolist() == pytest.approx([0, 0, 0.1, 0.2, 0, 0.3])


def tree(*decisions):
    node = Node(
        key=Key("t"),
        turn=0,
        stage=0,
        decisions={d.role: d for d in decisions},
        joints=(JointAction(branches={"r": 0}, state_digest=""),),
        expanded=(0,),
    )
    return Tree(task=Task(id="t"), chain=0, epoch=0, root=node)


def test_a_branch_without_credit_or_of_a_frozen_policy_gives_no_sample():
    action = Action(calls=(call([7, 8], [1]),), text="x")
    credit = Credit(advantage={KEY: 1.0})
    assert len(samples_of([tree(decision(action, action))], credit)["p"]) == 1
    assert samples_of([tree(decision(action, trainable=False))], credit) == {}


# --------------------------------------------------------------------------------------- denominators


def sample(branch, tokens, prompt=2, weight=1.0, group=0):
    key = Key(f"t{group}").of_branch("r", branch)
    mask = np.array([False] * prompt + [True] * tokens)
    return Sample(
        key=key,
        policy="p",
        token_ids=np.zeros(prompt + tokens, dtype=np.int64),
        loss_mask=mask,
        logprobs=np.zeros(prompt + tokens, np.float32),
        advantages=np.zeros(prompt + tokens, np.float32),
        spans=(Span(prompt, prompt + tokens, key, weight),),
        version=0,
        prompt_tokens=prompt,
    )


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("token_mean", [[0.2, 0.2], [0.2, 0.2, 0.2]]),
        ("sequence_mean", [[0.25, 0.25], [1 / 6, 1 / 6, 1 / 6]]),
        ("sequence_sum", [[0.5, 0.5], [0.5, 0.5, 0.5]]),
    ],
)
def test_coefficients_by_hand(length, expected):
    rows = token_coefficients([sample(0, 2), sample(1, 3)], length)
    assert [row[2:].tolist() for row in rows] == [pytest.approx(e) for e in expected]
    assert all((row[:2] == 0).all() for row in rows)


def test_a_constant_divides_every_sequence_alike():
    """1 / (4 * weights of 3 and 1), whatever the lengths: Dr. GRPO's."""
    rows = token_coefficients([sample(0, 2, weight=3.0), sample(1, 5)], "constant", 4.0)
    assert rows[0].tolist() == pytest.approx([0, 0, 3 / 16, 3 / 16])
    assert rows[1][2:].tolist() == pytest.approx([1 / 16] * 5)
    with pytest.raises(ValueError, match="needs its constant"):
        token_coefficients([sample(0, 2)], "constant")


def test_sequences_are_numbered_through_all_samples():
    row = sample(0, 4)
    row = dataclasses.replace(row, spans=(Span(2, 3, row.key, 1.0), Span(3, 6, row.key, 1.0)))
    ids, count = span_ids([row, sample(1, 2)])
    assert (ids.tolist(), count) == ([0, 1, 1, 1, 2, 2], 3)
    short = dataclasses.replace(row, spans=row.spans[:1])
    with pytest.raises(ValueError, match="t0/e0/c0/n/r/b0: a trained token lies in no span"):
        span_ids([short])


def test_the_calls_around_a_tool_result_are_one_sequence():
    action = Action(calls=(call([7, 8], [1, 2]), call([7, 8, 1, 2, 50, 51], [3], True)), text="x")
    ids, count = span_ids(samples(action))
    assert (ids.tolist(), count) == ([0, 0, 0], 1)


def test_weights_count_in_the_denominator():
    rows = token_coefficients([sample(0, 1, weight=3.0), sample(1, 1, weight=1.0)], "sequence_mean")
    assert [row[2] for row in rows] == [0.75, 0.25]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_minibatches_use_every_sample_once_and_keep_siblings_together(sizes, size):
    rows = [sample(branch, 1, group=g) for g, count in enumerate(sizes) for branch in range(count)]
    batches = minibatches(rows, size, seed=1)
    assert sorted(id(s) for batch in batches for s in batch) == sorted(id(s) for s in rows)
    for g in range(len(sizes)):
        assert sum(any(s.key.task == f"t{g}" for s in batch) for batch in batches) == 1
    assert [[s.key for s in b] for b in batches] == [
        [s.key for s in b] for b in minibatches(rows, size, seed=1)
    ]

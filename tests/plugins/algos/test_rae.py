"""RAE: every role against its own running mean, which goes on from step to step."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.protocols import Plan
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import CHAINS, advantages, credit, estimator, step

SEQUENTIAL = (("one",), ("two",))
SINGLE = Plan(chains=1, branches=1, expand="best", pairing="aligned")


def test_three_steps_by_hand():
    algorithm = estimator("rae", decay=0.5)
    first, state = step(algorithm, Forest(order=SEQUENTIAL).grow(chain(1, 2), chain(4)))
    # b starts at 0; one earned 3 and 4, two 3
    assert places(first.advantage) == {"0:one0": 3, "0.0:two0": 3, "1:one0": 4}
    assert state == {"one": 0.5 * 3.5, "two": 0.5 * 3}
    second, state = step(algorithm, Forest(order=SEQUENTIAL).grow(chain(0, 1)), state=state)
    assert places(second.advantage) == {"0:one0": 1 - 1.75, "0.0:two0": 1 - 1.5}
    assert state == {"one": 0.5 * 1.75 + 0.5, "two": 0.5 * 1.5 + 0.5}
    third, state = step(algorithm, Forest(order=SEQUENTIAL).grow(chain(2)), state=state)
    assert places(third.advantage) == {"0:one0": 2 - 1.375}
    assert state == {"one": 0.5 * 1.375 + 1, "two": 1.25}  # two did not play


def test_the_record_holds_the_return_and_the_metrics_the_baseline():
    result = credit(estimator("rae"), Forest().grow(chain(3)), state={"one": 1.0})
    assert places(result.returns) == {"0:one0": 3.0} and places(result.advantage) == {"0:one0": 2.0}
    assert result.metrics["baseline/one"] == 1.0


def test_the_baseline_is_of_before_the_step():
    # With the step's own return in it, the only chain of a first step would be credited decay * R.
    result = credit(estimator("rae", plan=SINGLE, decay=0.5), Forest().grow(chain(8)))
    assert places(result.advantage) == {"0:one0": 8.0}


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5))
@settings(max_examples=30, deadline=None)
def test_its_state_goes_on_the_same_through_json(steps):
    algorithm, through_json, direct = estimator("rae"), None, None
    for returns in steps:
        forest = Forest().grow(*(chain(value) for value in returns))
        first, through_json = step(algorithm, forest, state=json.loads(json.dumps(through_json)))
        other, direct = step(algorithm, forest, state=direct)
        assert first.advantage == other.advantage and through_json == direct


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_the_mean_is_an_exponential_average_of_the_steps(steps, decay):
    algorithm, state = estimator("rae", decay=decay), None
    for returns in steps:
        _, state = step(algorithm, Forest().grow(*(chain(value) for value in returns)), state=state)
    means = [sum(returns) / len(returns) for returns in steps]
    last = len(means) - 1
    assert state["one"] == pytest.approx(
        sum((1 - decay) * decay ** (last - at) * mean for at, mean in enumerate(means)), abs=1e-9
    )


def test_with_decay_1_it_is_reinforce():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2), chain(4))
    pieces = {"plan": CHAINS, "group": "batch", "return": "episode", "baseline": "none"}
    reinforce = advantages("compose", forest, **pieces, normalise={"type": "none"})
    algorithm, state = estimator("rae", decay=1.0), None
    for _ in range(3):
        result, state = step(algorithm, forest, state=state)
        assert places(result.advantage) == reinforce


def test_missing_returns_leave_the_mean_alone():
    algorithm = estimator("rae", decay=0.5)
    result, state = step(
        algorithm, Forest().grow(chain(None), chain(6), chain(J(lost=True))), state={"one": 2.0}
    )
    assert places(result.advantage) == {"1:one0": 4.0} and state == {"one": 4.0}
    assert result.metrics["groups/one/missing_rows"] == 2.0
    result, state = step(algorithm, Forest().grow(chain(None)), state=state)
    assert result.advantage == {} and state == {"one": 4.0}


def test_it_does_not_change_the_state_it_was_given():
    before = {"one": 1.0}
    step(estimator("rae"), Forest().grow(chain(3)), state=before)
    assert before == {"one": 1.0}


@pytest.mark.parametrize("scope", ["group", "role"])
def test_whitening_over_a_role_takes_the_running_mean_out_again_and_warns(scope, caplog):
    forest = Forest().grow(chain(1), chain(2), chain(6))
    with caplog.at_level(logging.WARNING, "coterie"):
        algorithm = estimator("rae", normalise={"type": "whiten", "scope": scope})
    assert "makes no difference" in caplog.text
    first, other = (places(credit(algorithm, forest, state={"one": mean}).advantage) for mean in (0.0, 5.0))
    assert first == pytest.approx(other)


def test_whitening_over_the_step_keeps_the_roles_apart(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        algorithm = estimator("rae", normalise={"type": "whiten", "scope": "global"})
    assert caplog.text == ""
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2), chain(4))
    first, other = (places(credit(algorithm, forest, state={"one": mean}).advantage) for mean in (0.0, 5.0))
    assert first != pytest.approx(other)

"""GAE: one trajectory of tokens a role and chain, through a value head."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, BRANCHES, advantages, credit, estimator

PLAIN = {"normalise": {"type": "none"}}
SEQUENTIAL = (("one",), ("two",))
numbers = st.floats(-3, 3).map(lambda value: round(value, 3))


def two_actions() -> tuple[Forest, dict[str, list[float]]]:
    """Two tokens and a pay of 1, then one token and a pay of 2; values .5, 1 | 2."""
    forest = Forest(logprobs={"0:one0": (-1.0, -1.0)}).grow(chain(1, 2))
    return forest, {"0:one0": [0.5, 1.0], "0.0:one0": [2.0]}


@pytest.mark.parametrize(
    ("gamma", "lam", "wanted"),
    [
        # what is still to come less the value: 3 - .5, 3 - 1, 2 - 2
        (1.0, 1.0, [2.5, 2.0, 0.0]),
        # errors of one step: 0 + 1 - .5, 1 + 2 - 1, 2 + 0 - 2
        (1.0, 0.0, [0.5, 2.0, 0.0]),
        # errors 0 + .5 - .5, 1 + 1 - 1, 0; then 0 + 1/4, 1, 0
        (0.5, 0.5, [0.25, 1.0, 0.0]),
    ],
)
def test_two_actions_by_hand(gamma, lam, wanted):
    forest, values = two_actions()
    algorithm = estimator("gae", gamma=gamma, lam=lam, **PLAIN)
    result = credit(algorithm, forest, forest.annotations("values", values))
    advantage = places(result.advantage)
    assert [*advantage["0:one0"], *advantage["0.0:one0"]] == pytest.approx(wanted)
    target = places(result.target)
    assert [*target["0:one0"], *target["0.0:one0"]] == pytest.approx(np.add(wanted, [0.5, 1.0, 2.0]))
    assert places(result.returns) == {"0:one0": 1.0, "0.0:one0": 2.0}


@given(
    st.lists(st.tuples(st.lists(numbers, min_size=1, max_size=3), numbers), min_size=1, max_size=4),
    st.sampled_from([1.0, 0.9, 0.5]),
    st.sampled_from([1.0, 0.95, 0.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_naive_double_sum_says_the_same(actions, gamma, lam):
    places_of = [".".join(["0"] * (index + 1)) + ":one0" for index in range(len(actions))]
    given_values = {at: values for at, (values, _) in zip(places_of, actions, strict=True)}
    forest = Forest(logprobs={at: (-1.0,) * len(values) for at, values in given_values.items()})
    forest.grow(chain(*(pay for _, pay in actions)))
    advantage = advantages(
        "gae", forest, annotations=forest.annotations("values", given_values), gamma=gamma, lam=lam, **PLAIN
    )
    values = [value for action, _ in actions for value in action]
    rewards = [pay * (place == len(action) - 1) for action, pay in actions for place in range(len(action))]
    count = len(values)

    def error(t: int) -> float:
        return rewards[t] + (gamma * values[t + 1] if t + 1 < count else 0.0) - values[t]

    wanted = [sum((gamma * lam) ** (k - t) * error(k) for k in range(t, count)) for t in range(count)]
    assert np.concatenate([advantage[at] for at in places_of]) == pytest.approx(wanted, abs=1e-9)


def test_a_role_is_paid_what_was_earned_until_its_next_action():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 10, 100, 1000))
    result = credit(estimator("gae", **PLAIN), forest)
    # What `one` earned before `two` had ever spoken is nothing of two's.
    assert places(result.returns) == {"0:one0": 11, "0.0.0:one0": 1100, "0.0:two0": 110, "0.0.0.0:two0": 1000}


def test_potentials_pay_their_differences_across_the_others_actions():
    forest = Forest(order=SEQUENTIAL).grow(
        chain(J(potential=0.3), J(potential=0.5), J(potential=0.2), J(potential=1.0))
    )
    returns = places(credit(estimator("gae", **PLAIN), forest).returns)
    assert returns == pytest.approx({"0:one0": 0.5, "0.0.0:one0": 0.5, "0.0:two0": -0.1, "0.0.0.0:two0": 0.8})


def test_an_early_end_is_worth_nothing_more_and_stays_in():
    forest = Forest().grow(chain(1), chain(0, 0, 1))
    values = forest.annotations("values", {"0:one0": [0.4]})
    advantage = advantages("gae", forest, annotations=values, gamma=0.5, lam=1.0, **PLAIN)
    assert advantage["0:one0"] == pytest.approx([1 - 0.4])
    assert advantage["1:one0"] == pytest.approx([0.25])
    assert len(advantage) == 4


def test_a_chain_with_a_missing_score_is_out_for_all_it_concerns_and_counted():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2), chain(None, 2), chain(3, None), chain(J(lost=True)))
    result = credit(estimator("gae", **PLAIN), forest)
    # Chain 1's missing score came before `two` spoke; chain 3 was lost with the first call.
    assert set(places(result.advantage)) == {"0:one0", "0.0:two0", "1.0:two0"}
    assert result.metrics["groups/one/missing_rows"] == 3.0
    assert result.metrics["groups/two/missing_rows"] == 1.0
    assert set(result.target) == set(result.advantage)


def test_a_chain_that_a_fault_cut_in_the_middle_is_out_and_counted():
    forest = Forest().grow(chain(1, 2), chain(1, J(lost=True)))
    result = credit(estimator("gae", **PLAIN), forest)
    assert set(places(result.advantage)) == {"0:one0", "0.0:one0"}
    assert result.metrics["groups/one/missing_rows"] == 1.0


def test_a_policy_that_is_not_trained_has_no_values_and_needs_none():
    forest = Forest(order=SEQUENTIAL, untrained=("two",)).grow(chain(1, 10, 100, 1000))
    result = credit(estimator("gae", **PLAIN), forest)
    assert places(result.returns) == {"0:one0": 11, "0.0.0:one0": 1100}


def test_an_empty_action_is_no_place_and_its_pay_is_the_one_befores():
    forest = Forest(logprobs={"0.0:one0": ()}).grow(chain(1, 10, 100))
    assert places(credit(estimator("gae", **PLAIN), forest).returns) == {"0:one0": 11, "0.0.0:one0": 100}


def test_it_is_whitened_over_all_tokens_of_the_step():
    forest = Forest(logprobs={"0:one0": (-1.0,) * 3}).grow(chain(1), chain(3), chain(8))
    advantage = advantages("gae", forest, gamma=1.0, lam=1.0)
    # token by token 1, 1, 1, 3, 8: mean 2.8, squares 3 * 3.24 + .04 + 27.04 = 36.8, over 4
    wanted = (np.array([1, 1, 1, 3, 8]) - 2.8) / np.sqrt(36.8 / 4)
    assert np.concatenate(list(advantage.values())) == pytest.approx(wanted, abs=1e-6)


def test_targets_are_not_normalised():
    forest, values = two_actions()
    annotations = forest.annotations("values", values)
    plain = credit(estimator("gae", **PLAIN), forest, annotations)
    scaled = credit(estimator("gae"), forest, annotations)
    assert {at: list(own) for at, own in places(scaled.target).items()} == {
        at: list(own) for at, own in places(plain.target).items()
    }


@pytest.mark.parametrize(
    ("plan", "settings", "path"),
    [
        (BRANCHES, {}, "sampler.branches"),
        (ALL, {}, "sampler.branches"),
        (None, {"normalise": {"scope": "group", "per": "action"}}, "algorithm.normalise.scope"),
    ],
)
def test_it_follows_whole_chains_and_has_no_groups(plan, settings, path):
    with pytest.raises(ConfigError) as error:
        estimator("gae", plan=plan, **settings)
    assert error.value.path == path and error.value.fix

"""Invariant 10: staying unsolved never pays, early success is never punished, whatever sums over turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, PLANS, TREES, advantages, credit, estimator

PLAIN = {"normalise": {"type": "none"}}
SETTINGS = {
    "gae": {**PLAIN, "gamma": 1.0, "lam": 1.0},
    "reinforce_pp": {**PLAIN, "beta": 0.0, "return": "to_go"},
}
FILLED = ("grpo", "dr_grpo", "rloo", "reinforce", "rae", *TREES)
"""Have `fill`, and a discount per turn."""
SUMMING = (*FILLED, *SETTINGS)
IMMEDIATE = ("at_grpo", "reinforce_pp_baseline")

values = st.floats(0, 1).map(lambda value: round(value, 3))
quick = settings(max_examples=10, deadline=None)


def test_these_are_all():
    assert {*SUMMING, *IMMEDIATE} == set(PLANS)
    for name in SUMMING:
        assert estimator(name, **SETTINGS.get(name, {})).sums_over_turns
    for name in IMMEDIATE:
        assert not estimator(name).sums_over_turns


def episodes(name: str, *potentials: list[float], **more: object) -> list[float]:
    """Advantages of the first actions of episodes whose states had these values, turn by turn."""
    paths = [chain(*(J(potential=potential) for potential in path)) for path in potentials]
    if PLANS[name].chains == 1:
        forest, first = Forest().grow([path[0] for path in paths]), [f"0:one{b}" for b in range(len(paths))]
    else:
        forest, first = Forest().grow(*paths), [f"{c}:one0" for c in range(len(paths))]
    advantage = advantages(name, forest, **{**SETTINGS.get(name, {}), **more})
    return [float(np.atleast_1d(advantage[at])[0]) for at in first]


@pytest.mark.parametrize("name", SUMMING)
def test_staying_unsolved_never_pays(name):
    once, long, solved = episodes(name, [0.5], [0.5] * 4, [1.0])
    assert once == pytest.approx(long) and solved > once


@pytest.mark.parametrize("name", SUMMING)
@given(st.lists(values, min_size=1, max_size=3))
@quick
def test_early_success_is_never_punished(name, before):
    early, late, unsolved = episodes(name, [1.0], [*before, 1.0], [*before, *before[-1:]])
    assert early == pytest.approx(late) and unsolved <= early + 1e-9


@pytest.mark.parametrize("name", FILLED)
@given(st.lists(values, min_size=1, max_size=3), st.sampled_from([1.0, 0.9, 0.5]))
@quick
def test_nor_under_a_discount(name, before, gamma):
    early, late = episodes(name, [1.0], [*before, 1.0], gamma=gamma)
    assert late <= early + 1e-9


@pytest.mark.parametrize("name", SUMMING)
def test_going_away_and_coming_back_earns_nothing(name):
    straight, repeating = episodes(name, [0.6], [0.6, 0.0, 0.6, 0.6])
    assert straight == pytest.approx(repeating)


@pytest.mark.parametrize("name", SUMMING)
def test_increments_of_the_same_numbers_would_be_earned_repeatedly(name):
    """What the two kinds are for: as a gain every turn, staying at .5 beats being done at once."""
    staying, done = chain(0.5, 0.5, 0.5, 0.5), chain(1.0)
    siblings = PLANS[name].chains == 1
    forest = Forest().grow([staying[0], done[0]]) if siblings else Forest().grow(staying, done)
    advantage = list(advantages(name, forest, **SETTINGS.get(name, {})).items())
    first = {at: float(np.atleast_1d(value)[0]) for at, value in advantage}
    assert first["0:one0"] > first["0:one1" if siblings else "1:one0"]


# ------------------------------------------------------------------------------------------- repeat


@pytest.mark.parametrize("name", FILLED)
@given(
    st.lists(st.lists(values, min_size=1, max_size=4), min_size=2, max_size=4), st.sampled_from([1.0, 0.5])
)
@quick
def test_repeat_pays_the_potential_every_turn_and_an_ended_episodes_last_one_too(name, paths, gamma):
    filled = episodes(name, *paths, fill="repeat", gamma=gamma, turns=4)
    padded = [[*path, *path[-1:] * (4 - len(path))] for path in paths]
    forest = (
        Forest().grow([chain(*path)[0] for path in padded])
        if PLANS[name].chains == 1
        else Forest().grow(*(chain(*path) for path in padded))
    )
    advantage = advantages(name, forest, gamma=gamma)
    wanted = [value for at, value in advantage.items() if "." not in at]
    assert filled == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", FILLED)
def test_repeat_does_not_punish_an_early_stop(name):
    stopped, unsolved, improving = episodes(
        name, [0.8], [0.5] * 4, [0.2, 0.8, 0.8, 0.8], fill="repeat", turns=4
    )
    assert stopped > improving > unsolved


@pytest.mark.parametrize("name", FILLED)
def test_without_repeat_only_the_last_potential_counts(name):
    stopped, unsolved, improving = episodes(name, [0.8], [0.5] * 4, [0.2, 0.8, 0.8, 0.8], turns=4)
    assert stopped == pytest.approx(improving) and stopped > unsolved


@pytest.mark.parametrize("name", ["gae", "reinforce_pp", *IMMEDIATE])
def test_who_does_not_fill_has_no_key_for_it(name):
    with pytest.raises(ConfigError, match="unknown key 'fill'"):
        estimator(name, fill="repeat")


# ------------------------------------------------------------------------------------- counterfactuals


def with_forks(fork: float, siblings: bool) -> Forest:
    joints = [J(1, chain(2), fork=fork), J(3, fork=0.0)]
    return Forest().grow(joints) if siblings else Forest().grow([joints[0]], [joints[1]])


@pytest.mark.parametrize("name", SUMMING)
def test_what_no_role_was_paid_is_in_no_sum(name):
    siblings = PLANS[name].chains == 1
    plain, forked = (
        {at: list(np.atleast_1d(value)) for at, value in advantage.items()}
        for advantage in (
            advantages(name, with_forks(fork, siblings), **SETTINGS.get(name, {})) for fork in (0.0, 9.0)
        )
    )
    assert plain == forked


@pytest.mark.parametrize("name", SUMMING)
def test_and_one_that_is_missing_makes_nothing_missing(name):
    siblings = PLANS[name].chains == 1
    joints = [J(1, fork=None), J(3, fork=0.0)]
    forest = Forest().grow(joints) if siblings else Forest().grow([joints[0]], [joints[1]])
    assert len(advantages(name, forest, **SETTINGS.get(name, {}))) == 2


@pytest.mark.parametrize("name", IMMEDIATE)
def test_immediate_credit_is_what_it_is_for(name):
    siblings = PLANS[name].chains == 1
    algorithm = estimator(name)
    returns = places(credit(algorithm, with_forks(9.0, siblings)).returns)
    assert returns["0:one0"] == 10.0


@pytest.mark.parametrize("name", IMMEDIATE)
def test_immediate_credit_takes_a_potential_as_it_is(name):
    once, again = (chain(J(potential=0.5), J(potential=0.5)), chain(J(potential=0.2), J(potential=0.5)))
    forest = Forest().grow([once[0], again[0]]) if PLANS[name].chains == 1 else Forest().grow(once, again)
    returns = places(credit(estimator(name), forest).returns)
    assert [value for at, value in returns.items() if "." not in at] == [0.5, 0.2]


def test_a_potentials_owner_may_be_a_role():
    paths = [
        chain(J(role_potential={"one": 0.4}), J(role_potential={"one": 1.0})),
        chain(J(role_potential={"one": 0.5})),
    ]
    forest = Forest(order=(("one", "two"),)).grow([path[0] for path in paths])
    advantage = advantages("mareinforce", forest, plan=ALL)
    assert advantage["0:one0"] == pytest.approx(1.0) and advantage["0:one1"] == 0.5
    assert advantage["0:two0"] == advantage["0:two1"] == 0.0

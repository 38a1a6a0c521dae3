"""Immediate returns of potentials: differences where groups span chains, the value inside one decision."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, CHAINS, advantages, credit, estimator

NONE = {"type": "none"}
SPANNING = [
    ("reinforce_pp_baseline", {}),
    ("compose", {"group": "turn", "return": "immediate", "normalise": NONE}),
    ("compose", {"group": "task", "return": "immediate", "normalise": NONE}),
    ("compose", {"group": "role", "return": "immediate", "normalise": NONE}),
    ("compose", {"group": "batch", "return": "immediate", "normalise": NONE}),
    ("reinforce_pp", {"beta": 0.0, "normalise": NONE}),
]
HIGH = [J(potential=0.75), J(potential=0.75)]
RISING = [J(potential=0.0), J(potential=0.5)]


def worth(name, settings, *paths, plan=CHAINS, **forest):
    result = credit(estimator(name, plan=plan, **settings), Forest(**forest).grow(*paths))
    return places(result.returns)


@pytest.mark.parametrize(("name", "settings"), SPANNING)
def test_who_keeps_a_high_value_has_done_nothing_for_it(name, settings):
    returns = worth(name, settings, chain(*HIGH), chain(*RISING))
    found = [float(np.atleast_1d(returns[at])[-1]) for at in ("0:one0", "0.0:one0", "1:one0", "1.0:one0")]
    assert found == [0.75, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(("name", "settings"), SPANNING)
def test_counterfactuals_and_increments_are_paid_as_they_are(name, settings):
    returns = worth(name, settings, chain(J(1, fork=2), J(1, fork=2)), chain(0, 0))
    assert [float(np.atleast_1d(returns[at])[-1]) for at in ("0:one0", "0.0:one0")] == [3.0, 3.0]


@pytest.mark.parametrize(("name", "settings"), SPANNING)
def test_a_difference_to_a_missing_value_is_missing(name, settings):
    returns = worth(
        name, settings, chain(J(potential=None), J(potential=0.5), J(potential=0.75)), chain(0, 0, 0)
    )
    assert "0:one0" not in returns and "0.0:one0" not in returns
    assert float(np.atleast_1d(returns["0.0.0:one0"])[-1]) == 0.25


@pytest.mark.parametrize("settings", [{}, {"group": "decision", "return": "immediate"}])
def test_inside_one_decision_a_potential_is_taken_as_it_is(settings):
    """All branches start from the same value, so nothing changes but a float's last bit."""
    later = [J(potential=0.25), J(potential=0.75)]
    name = "compose" if settings else "at_grpo"
    forest = Forest().grow([J(0, later, potential=0.5), J(1, potential=0.1)])
    result = credit(estimator(name, **settings), forest)
    assert places(result.returns)["0.0:one1"] == 0.75


def test_a_partners_turn_between_changes_nothing_for_a_roles_own_potential():
    order = (("one",), ("two",))
    own = [J(role_potential={"one": 0.5}), J(0), J(role_potential={"one": 0.75}), J(0)]
    returns = worth("compose", SPANNING[1][1], chain(*own), chain(0, 0, 0, 0), order=order)
    assert returns["0:one0"] == 0.5 and returns["0.0.0:one0"] == 0.25


def test_below_a_sibling_the_difference_is_to_that_siblings_value():
    forest = Forest(rule="all").grow(
        [J(0, [J(potential=0.5)], potential=0.25), J(0, [J(potential=0.5)], potential=0.5)]
    )
    found = advantages(
        "compose", forest, plan=ALL, group="batch", baseline="none", normalise=NONE, **{"return": "immediate"}
    )
    assert [found["0.0:one0"], found["0.1:one0"]] == [0.25, 0.0]

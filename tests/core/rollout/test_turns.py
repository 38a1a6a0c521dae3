"""Who acts next, and what a role remembers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.core.errors import PluginError
from coterie.core.rollout.turns import Stage, extended, first_stage, next_stage
from coterie.core.types import Action, Step

ORDER = (("one",), ("two", "three"))


def names(*roles):
    """An environment that names these roles in every state; None: `team.order` decides."""
    return SimpleNamespace(acting_roles=lambda state: roles[0] if roles else None)


def test_the_order_decides_where_the_environment_names_nobody():
    assert first_stage(names(), ORDER, "s") == (0, 0, ("one",))
    after = Step(state="t", scores={})
    assert next_stage(names(), ORDER, 2, Stage(0, 0, ("one",)), after) == ((0, 1, ("two", "three")), False)
    assert next_stage(names(), ORDER, 2, Stage(0, 1, ("two", "three")), after) == ((1, 0, ("one",)), False)
    assert next_stage(names(), ORDER, 2, Stage(1, 1, ("two", "three")), after) == (None, False)
    early = Step(state="t", scores={}, turn_over=True)
    assert next_stage(names(), ORDER, 2, Stage(0, 0, ("one",)), early) == ((1, 0, ("one",)), False)


def test_an_environment_that_names_roles_decides_and_nobody_is_the_end():
    assert first_stage(names(("two",)), ORDER, "s") == (0, 0, ("two",))
    assert first_stage(names(()), ORDER, "s") is None
    after = Step(state="t", scores={})
    assert next_stage(names(("two",)), ORDER, 9, Stage(3, 4, ("one",)), after) == ((3, 5, ("two",)), False)
    assert next_stage(names(()), ORDER, 9, Stage(0, 0, ("one",)), after) == (None, True)
    with pytest.raises(PluginError, match="four"):
        first_stage(names(("four",)), ORDER, "s")


def test_a_turn_has_a_bound_on_its_stages():
    after = Step(state="t", scores={})
    at = Stage(1, 4, ("one",))
    assert next_stage(names(("two",)), ORDER, 9, at, after, 6) == ((1, 5, ("two",)), False)
    with pytest.raises(PluginError, match="acting_roles named roles in 5 stages of turn 2") as caught:
        next_stage(names(("two",)), ORDER, 9, at, after, 5)
    assert caught.value.path == "team.max_stages" and "turn_over=True" in caught.value.fix
    turned = Step(state="t", scores={}, turn_over=True)
    assert next_stage(names(("two",)), ORDER, 9, at, turned, 5) == ((2, 0, ("two",)), False)
    assert next_stage(names(()), ORDER, 9, at, after, 5) == (None, True)
    with pytest.raises(PluginError, match="1,000 stages"):
        next_stage(names(("two",)), ORDER, 9, Stage(0, 999, ("one",)), after)


def test_a_role_remembers_every_decision_of_its_own():
    history = {}
    for turn, roles in enumerate([("one",), ("two", "three"), ("one",)]):
        prompts = {role: (f"{role} sees {turn}", [{"role": "user", "content": "?"}]) for role in roles}
        actions = {role: Action(calls=(), text=f"{role} {turn}") for role in roles}
        before = dict(history)
        history = extended(history, turn, prompts, actions, {"turn": turn})
        assert before.keys() <= history.keys()
    assert [(entry.turn, entry.action.text, entry.observation) for entry in history["one"]] == [
        (0, "one 0", "one sees 0"), (2, "one 2", "one sees 2")
    ]  # fmt: skip
    assert [entry.info for entry in history["two"]] == [{"turn": 1}]

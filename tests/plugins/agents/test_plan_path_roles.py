"""How answers of Plan-Path's roles are read, and what the roles refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.agents.plan_path import PlanPathExecutor, PlanPathPlanner, PlanPathSolver
from coterie.plugins.envs.plan_path import PlanPath
from coterie.plugins.envs.plan_path.messages import as_moves, as_waypoints
from tests.plugins.envs.mazes import WALLED, start
from tests.plugins.support import Build, make, role_input


def seen(role, **settings):
    env = make(PlanPath, size=4, **settings)
    return env.observe(start(env, *WALLED), role)


def role(plugin=PlanPathExecutor, name="executor", **settings):
    return make(plugin, Build(name=name, path=f"team.roles.{name}"), **settings)


@pytest.mark.parametrize(
    ("rendering", "text", "moves"),
    [
        ("compact", "U R R", "URR"),
        ("compact", "  U\n", "U"),
        ("compact", "", ""),
        ("compact", "U r", None),
        ("compact", "URR", None),
        ("compact", "U r1c2", None),
        ("compact", "[U, R]", None),
        ("prose", "[U, R, R]", "URR"),
        ("prose", '["U", "r", \'R\']', "URR"),
        ("prose", "First [D], no. The answer is [Up, right].", "UR"),
        ("prose", "Moves: U,R", "UR"),
        ("prose", "I go up.\n**Moves:** U, R", "UR"),
        ("prose", "plan: U\nmoves = R R", "RR"),
        ("prose", '{"moves": ["U", "L"]}', "UL"),
        ("prose", "U R R", "URR"),
        ("prose", "[]", ""),
        ("prose", "   ", ""),
        ("prose", "I would go up and right", None),
        ("prose", "[north]", None),
        ("prose", "[U, R] or rather [1, 2]", None),
        ("prose", "[" * 3000, None),
    ],
)
def test_reading_moves(rendering, text, moves):
    observation = seen("executor", rendering=rendering)
    if moves is None:
        with pytest.raises(PolicyFault):
            role().parse(text, observation)
    else:
        assert role().parse(text, observation) == tuple(moves)


@pytest.mark.parametrize(
    ("settings", "text", "cells"),
    [
        ({}, "r1c2 r3c2", ((1, 2), (3, 2))),
        ({}, "", ()),
        ({}, "r9c9", ((9, 9),)),
        ({}, "U", None),
        ({}, "r" + "9" * 5000 + "c1", None),
        ({"waypoint_words": "offsets"}, "+2-1 +0+1", ((3, 0), (1, 2))),
        ({"waypoint_words": "offsets"}, "r1c2", None),
        ({"rendering": "prose"}, "[r1c2, r3c2]", ((1, 2), (3, 2))),
        ({"rendering": "prose"}, "[(1, 2), (3, 2)]", ((1, 2), (3, 2))),
        ({"rendering": "prose"}, "so: [[1, 2], [3,2]].", ((1, 2), (3, 2))),
        ({"rendering": "prose"}, "Way-points: R1C2, r3c2", ((1, 2), (3, 2))),
        ({"rendering": "prose"}, "[U, R]", None),
        ({"rendering": "prose"}, "go to the corner", None),
    ],
)
def test_reading_waypoints(settings, text, cells):
    planner = role(PlanPathPlanner, "planner")
    if cells is None:
        with pytest.raises(PolicyFault):
            planner.parse(text, seen("planner", **settings))
    else:
        assert planner.parse(text, seen("planner", **settings)) == cells


@given(st.text(alphabet="UDLR[](),:r0c1 \n\"'-+moves", max_size=60))
def test_any_text_is_read_or_is_the_policys_fault(text):
    for name, plugin in (("planner", PlanPathPlanner), ("executor", PlanPathExecutor)):
        for rendering in ("compact", "prose"):
            with suppress(PolicyFault):
                assert isinstance(role(plugin, name).parse(text, seen(name, rendering=rendering)), tuple)


def test_what_other_roles_hand_over_is_read_too():
    assert as_moves(["up", "R"]) == ("U", "R") == as_moves("I say [U, R]")
    assert as_waypoints([[1, 2], "r0c3"]) == ((1, 2), (0, 3)) == as_waypoints("(1, 2), (0, 3)")
    for nonsense in (None, 7, {"moves": "U"}, [1], "nothing", [[1]], [["a", "b"]]):
        assert as_moves(nonsense) is None and as_waypoints(nonsense) is None


def test_feedback_is_never_dropped_by_the_compact_rendering():
    executor = role()
    with pytest.raises(ConfigError, match="can't show the feedback") as caught:
        executor.render(role_input(seen("executor"), "executor", feedback=("You hit a wall.",)))
    assert caught.value.path == "team.roles.executor"


def test_a_role_may_override_the_rendering_and_the_system_prompt():
    prose = role(rendering="prose", system="Walk.")
    system, user = prose.render(role_input(seen("executor"), "executor", feedback=("You hit a wall.",)))
    assert system == {"role": "system", "content": "Walk."} and "You hit a wall." in user["content"]
    assert prose.parse("Hm. [U]", seen("executor")) == ("U",)
    assert len(role(rendering="prose", system="").render(role_input(seen("executor"), "executor"))) == 1


def test_a_role_refuses_another_roles_name():
    with pytest.raises(ConfigError, match="of the role") as caught:
        role(PlanPathSolver, "executor")
    assert caught.value.path == "team.roles.executor.type"

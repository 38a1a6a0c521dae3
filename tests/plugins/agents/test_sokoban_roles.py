"""How answers of Sokoban's roles are read, and what the roles refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.agents.sokoban import SokobanExecutor, SokobanPlanner, SokobanSolver, SokobanTool
from coterie.plugins.envs.sokoban import Sokoban
from coterie.plugins.envs.sokoban.messages import as_moves, as_pushes
from tests.plugins.envs.sokobans import CORNER, start
from tests.plugins.support import Build, make, role_input


def seen(role, **settings):
    env = make(Sokoban, size=4, **settings)
    return env.observe(start(env, *CORNER), role)


def role(plugin=SokobanExecutor, name="executor", **settings):
    return make(plugin, Build(name=name, path=f"team.roles.{name}"), **settings)


@pytest.mark.parametrize(
    ("rendering", "text", "moves"),
    [
        ("compact", "U R R", "URR"),
        ("compact", "", ""),
        ("compact", "U r", None),
        ("compact", "[U, R]", None),
        ("prose", "[U, R, R]", "URR"),
        ("prose", "First [D], no. The answer is [Up, right].", "UR"),
        ("prose", "I go up.\n**Moves:** U, R", "UR"),
        ("prose", '{"moves": ["U", "L"]}', "UL"),
        ("prose", "U R R", "URR"),
        ("prose", "[]", ""),
        ("prose", "   ", ""),
        ("prose", "I would go up and right", None),
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
    ("settings", "text", "pushes"),
    [
        ({}, "r1c2R r3c2U", (((1, 2), "R"), ((3, 2), "U"))),
        ({}, "", ()),
        ({}, "r9c9L", (((9, 9), "L"),)),
        ({}, "r1c2", None),
        ({}, "U", None),
        ({}, "r" + "9" * 5000 + "c1U", None),
        ({"push_words": "offsets"}, "+2-1D +0+1L", (((3, 0), "D"), ((1, 2), "L"))),
        ({"push_words": "offsets"}, "r1c2R", None),
        ({"push_words": "directions"}, "pR pU", ((None, "R"), (None, "U"))),
        ({"push_words": "directions"}, "R", None),
        ({"rendering": "prose"}, "[r1c2R, r3c2u]", (((1, 2), "R"), ((3, 2), "U"))),
        ({"rendering": "prose"}, "[r1c2 right, R3C2: U]", (((1, 2), "R"), ((3, 2), "U"))),
        ({"rendering": "prose"}, "so [U]? no.\nPushes: r1c2-L", None),  # the last list counts
        ({"rendering": "prose"}, "Pushes: r1c2-L", (((1, 2), "L"),)),
        ({"rendering": "prose"}, "[r1c2Right]", None),
        ({"rendering": "prose"}, "push the box up", None),
        ({"rendering": "prose", "push_words": "directions"}, "[pR, pu]", ((None, "R"), (None, "U"))),
    ],
)
def test_reading_pushes(settings, text, pushes):
    planner = role(SokobanPlanner, "planner")
    if pushes is None:
        with pytest.raises(PolicyFault):
            planner.parse(text, seen("planner", **settings))
    else:
        assert planner.parse(text, seen("planner", **settings)) == pushes


@given(st.text(alphabet="UDLRp[](),:r0c1 \n\"'-+moves", max_size=60))
def test_any_text_is_read_or_is_the_policys_fault(text):
    for name, plugin in (("planner", SokobanPlanner), ("executor", SokobanExecutor)):
        for settings in ({}, {"rendering": "prose"}, {"push_words": "offsets"}):
            with suppress(PolicyFault):
                assert isinstance(role(plugin, name).parse(text, seen(name, **settings)), tuple)


def test_what_other_roles_hand_over_is_read_too():
    assert as_moves(["up", "R"]) == ("U", "R") == as_moves("I say [U, R]")
    assert as_pushes([[[1, 2], "R"], "r0c3U"], "cells") == (((1, 2), "R"), ((0, 3), "U"))
    assert as_pushes("[r1c2R]", "offsets") == (((1, 2), "R"),)
    assert as_pushes([[None, "R"], "pU"], "directions") == ((None, "R"), (None, "U"))
    for nonsense in (
        None,
        7,
        {"moves": "U"},
        [1],
        "nothing",
        [[1]],
        [["a", "b"]],
        [[None, "R"]],
        [[[], "R"]],
    ):
        assert as_moves(nonsense) is None and as_pushes(nonsense, "cells") is None
    assert as_pushes([[[1, 2], "R"]], "directions") is None


def test_a_program_is_the_last_closed_block():
    tool = role(SokobanTool, "tool")
    observation = seen("tool", rendering="prose")
    assert tool.parse("so:\n```python\nprint('U')\n```", observation) == "print('U')\n"
    assert tool.parse("", observation) == ""
    with pytest.raises(PolicyFault):
        tool.parse("```python\nprint('U')", observation)


def test_feedback_is_never_dropped_by_the_compact_rendering():
    with pytest.raises(ConfigError, match="can't show the feedback") as caught:
        role().render(role_input(seen("executor"), "executor", feedback=("You hit a wall.",)))
    assert caught.value.path == "team.roles.executor"


def test_a_role_may_override_the_rendering_and_the_system_prompt():
    prose = role(rendering="prose", system="Walk.")
    system, user = prose.render(role_input(seen("executor"), "executor", feedback=("You hit a wall.",)))
    assert system == {"role": "system", "content": "Walk."} and "You hit a wall." in user["content"]
    assert prose.parse("Hm. [U]", seen("executor")) == ("U",)
    assert len(role(rendering="prose", system="").render(role_input(seen("executor"), "executor"))) == 1


def test_a_role_refuses_another_roles_name_and_a_rendering_that_cannot_show_programs():
    with pytest.raises(ConfigError, match="of the role") as caught:
        role(SokobanSolver, "executor")
    assert caught.value.path == "team.roles.executor.type"
    with pytest.raises(ConfigError, match="compact") as caught:
        role(SokobanTool, "tool", rendering="compact")
    assert caught.value.path == "team.roles.tool.rendering"

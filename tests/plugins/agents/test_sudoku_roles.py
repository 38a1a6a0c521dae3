"""How answers of Sudoku's roles are read, and what the roles refuse."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.agents.sudoku import (
    SudokuExecutor,
    SudokuPlan,
    SudokuPlanner,
    SudokuSolver,
    SudokuTool,
)
from coterie.plugins.envs.common.parsing import write
from coterie.plugins.envs.sudoku import Sudoku
from coterie.plugins.envs.sudoku.messages import as_assignments, assignment_word, read_assignments
from tests.plugins.envs.sudokus import EASY, start
from tests.plugins.support import Build, make, role_input


def seen(role, **settings):
    env = make(Sudoku, **settings)
    return env.observe(start(env, *EASY), role)


def role(plugin=SudokuExecutor, name="executor", **settings):
    return make(plugin, Build(name=name, path=f"team.roles.{name}"), **settings)


GRID = "1 2 | 3 4\n3 4 | . 2\n----+----\n2 . | 4 3\n. 3 | 2 1"
NEW = ((0, 2, 3), (0, 3, 4), (2, 0, 2))


@pytest.mark.parametrize(
    ("rendering", "text", "assignments"),
    [
        ("compact", "r0c2=3 r2c0=2", ((0, 2, 3), (2, 0, 2))),
        ("compact", "  r0c2=3\n", ((0, 2, 3),)),
        ("compact", "", ()),
        ("compact", "r9c-1=12", ((9, -1, 12),)),
        ("compact", "r0c2 = 3", None),
        ("compact", "r0c2", None),
        ("compact", "3 4", None),
        ("compact", "[r0c2=3]", None),
        ("prose", "[r0c2=3, r2c0=2]", ((0, 2, 3), (2, 0, 2))),
        ("prose", 'First [r0c2=1], no. So: [R0C2 = 3, "r2c0": 2].', ((0, 2, 3), (2, 0, 2))),
        ("prose", "[(0, 2, 3), (2, 0, 2)]", ((0, 2, 3), (2, 0, 2))),
        ("prose", "[[0, 2, 3], [2,0,2]]", ((0, 2, 3), (2, 0, 2))),
        ("prose", "[0, 2, 3]", ((0, 2, 3),)),
        ("prose", "**Answer:** r0c2=3; r2c0=2", ((0, 2, 3), (2, 0, 2))),
        ("prose", "r0c2=3 r2c0=2", ((0, 2, 3), (2, 0, 2))),
        ("prose", f"The grid:\n{GRID}\n", NEW),
        ("prose", f"So.\n```\n{GRID}\n```\nDone.", NEW),
        ("prose", "1234\n34.2\n2.43\n.321", NEW),
        ("prose", "[[1,2,3,4],[3,4,0,2],[2,0,4,3],[0,3,2,1]]", NEW),
        ("prose", "[[1,2,3,4],[3,4,0,2],[2,0,4,3]]", None),
        ("prose", "[1, 2, 3, 4]\n[3, 4, 0, 2]\n[2, 0, 4, 3]\n[0, 3, 2, 1]", NEW),
        (
            "prose",
            "4 2 3 4\n3 4 . 2\n2 . 4 3\n. 3 2 1",
            ((0, 0, 4), *NEW),
        ),  # a given digit: illegal, not lost
        ("prose", f"{GRID}\nthat is [r0c2=3]", ((0, 2, 3),)),
        ("prose", f"[r0c2=3], that is\n{GRID}", NEW),
        ("prose", "[]", ()),
        ("prose", "   ", ()),
        ("prose", "a three in the corner", None),
        ("prose", "[three]", None),
        ("prose", "[r0c2=3] or rather [r0c2]", None),
        ("prose", "[" * 3000, None),
        ("prose", "r" + "9" * 5000 + "c1=1", None),
    ],
)
def test_reading_assignments(rendering, text, assignments):
    observation = seen("executor", rendering=rendering)
    if assignments is None:
        with pytest.raises(PolicyFault):
            role().parse(text, observation)
    else:
        assert role().parse(text, observation) == assignments


@pytest.mark.parametrize(
    ("settings", "text", "assignments"),
    [
        ({}, "3 4", ((0, 2, 3), (0, 3, 4))),
        ({}, "- 4 - 2", ((0, 3, 4), (2, 0, 2))),
        ({}, "3 4 1 2 1 4", ((0, 2, 3), (0, 3, 4), (1, 2, 1), (2, 0, 2), (2, 1, 1), (3, 0, 4))),
        ({}, "", ()),
        ({}, "3 4 1 2 1 4 1", None),
        ({}, "5", None),
        ({}, "c", None),
        ({"plan_language": "letters"}, "c d", ((0, 2, 3), (0, 3, 4))),
        ({"plan_language": "letters"}, "3", None),
        ({"plan_language": "letters"}, "e", None),
        ({"rendering": "prose"}, "so [r0c2=3]", ((0, 2, 3),)),
    ],
)
def test_reading_plans(settings, text, assignments):
    planner = role(SudokuPlanner, "planner")
    if assignments is None:
        with pytest.raises(PolicyFault):
            planner.parse(text, seen("planner", **settings))
    else:
        assert planner.parse(text, seen("planner", **settings)) == assignments


@given(st.text(alphabet="rc0123=[](),:. \n\"'-+|ab", max_size=60))
def test_any_text_is_read_or_is_the_policys_fault(text):
    for name, plugin in (("planner", SudokuPlanner), ("executor", SudokuExecutor)):
        for rendering in ("compact", "prose"):
            with suppress(PolicyFault):
                assert isinstance(role(plugin, name).parse(text, seen(name, rendering=rendering)), tuple)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(1, 16)), max_size=40))
def test_what_is_written_is_read(assignments):
    words = [assignment_word(assignment) for assignment in assignments]
    for rendering in ("compact", "prose"):
        assert read_assignments(write(words, rendering), rendering, 16) == tuple(assignments)


def test_what_other_roles_hand_over_is_read_too():
    shown = [0] * 16
    assert as_assignments([[0, 2, 3], "r1c0=4"], 4, shown) == ((0, 2, 3), (1, 0, 4))
    assert as_assignments("I say [r0c2=3]", 4, shown) == ((0, 2, 3),)
    for nonsense in (
        None,
        7,
        {"r0c2": 3},
        [1],
        "nothing",
        [[1, 2]],
        [["a", "b", "c"]],
        [[1, 2, float("inf")]],
    ):
        assert as_assignments(nonsense, 4, shown) is None


def test_programs_are_read_and_both_roles_need_prose():
    tool = role(SudokuTool, "tool")
    observation = seen("tool", rendering="prose")
    assert tool.parse("so\n```python\nprint(1)\n```\n", observation) == "print(1)\n"
    assert tool.parse("", observation) == ""
    with pytest.raises(PolicyFault):
        tool.parse("print(1)", observation)
    assert "```python" in tool.render(role_input(observation, "tool"))[-1]["content"]
    for plugin, name in ((SudokuTool, "tool"), (SudokuPlan, "plan")):
        with pytest.raises(ConfigError, match="prose") as caught:
            role(plugin, name, rendering="compact")
        assert caught.value.path == f"team.roles.{name}.rendering"


def test_feedback_is_never_dropped_by_the_compact_rendering():
    with pytest.raises(ConfigError, match="can't show the feedback") as caught:
        role().render(role_input(seen("executor"), "executor", feedback=("You slept.",)))
    assert caught.value.path == "team.roles.executor"


def test_a_role_may_override_the_rendering_and_the_system_prompt():
    prose = role(rendering="prose", system="Fill.")
    system, user = prose.render(role_input(seen("executor"), "executor", feedback=("You slept.",)))
    assert system == {"role": "system", "content": "Fill."} and "You slept." in user["content"]
    assert prose.parse("Hm. [r0c2=3]", seen("executor")) == ((0, 2, 3),)
    assert len(role(rendering="prose", system="").render(role_input(seen("executor"), "executor"))) == 1


def test_a_role_refuses_another_roles_name():
    with pytest.raises(ConfigError, match="of the role") as caught:
        role(SudokuSolver, "executor")
    assert caught.value.path == "team.roles.executor.type"

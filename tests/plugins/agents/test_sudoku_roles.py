"""How answers of Sudoku's roles are read, and what the roles refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.board.parsing import write
from coterie.plugins.envs.sudoku.messages import as_assignments, assignment_word, read_assignments
from tests.plugins.envs.players import SUDOKU
from tests.plugins.support import read

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
    observation = SUDOKU.seen("executor", rendering=rendering)
    read(SUDOKU.role("executor"), text, observation, assignments)


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
    planner = SUDOKU.role("planner")
    read(planner, text, SUDOKU.seen("planner", **settings), assignments)


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

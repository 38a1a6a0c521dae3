"""How answers of Sokoban's roles are read, and what the roles refuse."""

from __future__ import annotations

import pytest

from coterie.plugins.envs.sokoban.messages import as_moves, as_pushes
from tests.plugins.envs.players import SOKOBAN
from tests.plugins.support import read


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
    planner = SOKOBAN.role("planner")
    read(planner, text, SOKOBAN.seen("planner", **settings), pushes)


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

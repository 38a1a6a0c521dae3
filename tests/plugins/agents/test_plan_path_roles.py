"""How answers of Plan-Path's roles are read, and what the roles refuse."""

from __future__ import annotations

import pytest

from coterie.plugins.envs.plan_path.messages import as_moves, as_waypoints
from tests.plugins.envs.players import PLAN_PATH
from tests.plugins.support import read


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
    planner = PLAN_PATH.role("planner")
    read(planner, text, PLAN_PATH.seen("planner", **settings), cells)


def test_what_other_roles_hand_over_is_read_too():
    assert as_moves(["up", "R"]) == ("U", "R") == as_moves("I say [U, R]")
    assert as_waypoints([[1, 2], "r0c3"]) == ((1, 2), (0, 3)) == as_waypoints("(1, 2), (0, 3)")
    for nonsense in (None, 7, {"moves": "U"}, [1], "nothing", [[1]], [["a", "b"]]):
        assert as_moves(nonsense) is None and as_waypoints(nonsense) is None

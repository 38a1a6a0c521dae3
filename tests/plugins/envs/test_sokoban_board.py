"""The world of Sokoban against a slow second opinion: moves, deadlocks, the oracle, generated boards."""

from __future__ import annotations

from itertools import combinations

import pytest

from coterie.core.errors import ConfigError
from coterie.plugins.envs.common.generated import split_of
from coterie.plugins.envs.sokoban import Sokoban
from coterie.plugins.envs.sokoban.board import deadlocked, follow, play, route
from coterie.plugins.envs.sokoban.solver import solve
from tests.plugins.envs.sokobans import CORNER, Slow, drawn, mask
from tests.plugins.support import make


def boards(split="train", seed=0, size=6, boxes=1, density=0.1, least=1, most=None, count=1000):
    bounds = {"min_pushes": least, "max_pushes": most}
    env = make(Sokoban, size=size, boxes=boxes, wall_density=density, **bounds, **{f"{split}_tasks": count})
    return env.tasks(split, seed)


def walk(board, moves, limit=None, skip=False):
    return play(board, board.boxes, board.player, moves, limit=limit, skip=skip)


# ---- moves and pushes


@pytest.mark.parametrize(
    ("moves", "skip", "after", "illegal", "played", "pushes"),
    [
        ("R", False, ["---", "-@$", "#--"], (), 1, 1),
        ("RR", False, ["---", "-@$", "#--"], ((2, "box"),), 1, 1),
        ("LD", False, ["---", "@$-", "#--"], ((1, "edge"),), 0, 0),
        ("LDU", True, ["@--", "-$-", "#--"], ((1, "edge"), (2, "wall")), 1, 0),
        ("URD", False, ["---", "-@-", "#$-"], (), 3, 1),
        ("URDD", False, ["---", "-@-", "#$-"], ((4, "box"),), 3, 1),
    ],
)
def test_moves(moves, skip, after, illegal, played, pushes):
    board = drawn(["--.", "@$-", "#--"])
    effect = walk(board, moves, skip=skip)
    assert board.rows(effect.boxes, effect.end, targets=False) == after
    assert (effect.illegal, effect.played, effect.pushes, effect.written) == (
        illegal,
        played,
        pushes,
        len(moves),
    )


def test_boxes_block_boxes_and_a_walk_ends_when_solved_or_at_its_limit():
    board = drawn(["@$$-..", "------"])
    assert walk(board, "R").illegal == ((1, "box"),)
    board = drawn(["@$.--", "-----"])
    assert walk(board, "RRRR").tried == 1
    board = drawn(["@$--.", "-----"])
    limited = walk(board, "RRRR", limit=2)
    assert (limited.played, limited.written, limited.items) == (2, 4, ("R", "R"))


def test_every_move_agrees_with_the_rules():
    for index in range(20):
        board = boards(size=4, boxes=2, density=0.15)[index].payload
        slow = Slow(board)
        position = (slow.boxes, slow.player)
        for number in range(60):
            move = "UDLR"[(number * number + index) % 4]
            effect = play(
                board,
                mask(board, position[0]),
                mask(board, [position[1]]).bit_length() - 1,
                move,
                limit=None,
                skip=True,
            )
            result = slow.moved(*position, move)
            if position[0] != slow.targets:
                assert (result is None) == bool(effect.illegal)
            if result is not None and position[0] != slow.targets:
                position = result[:2]
                assert (effect.boxes, effect.pushes) == (mask(board, position[0]), result[2])
                assert board.cell(effect.end) == position[1]


@pytest.mark.parametrize(
    ("pushes", "moves", "illegal"),
    [
        ([((1, 2), "L")], "URRDL", ()),
        ([((1, 2), "L"), ((1, 1), "D"), ((2, 1), "D")], "URRDLULDD", ()),
        ([(None, "L")], "URRDL", ()),
        ([((1, 2), "D")], "", ((1, "blocked"),)),
        ([((1, 2), "U")], "", ((1, "cut off"),)),
        ([((0, 0), "U")], "", ((1, "no box"),)),
        ([((9, 0), "U")], "", ((1, "edge"),)),
        ([((1, 2), "R"), ((1, 3), "R")], "R", ((2, "blocked"),)),
        ([((1, 2), "R"), ((1, 3), "L")], "R", ((2, "cut off"),)),
    ],
)
def test_pushes_are_carried_out_by_the_shortest_walk(pushes, moves, illegal):
    board = drawn(CORNER)
    effect = follow(board, board.boxes, board.player, pushes, limit=None, skip=False)
    assert ("".join(effect.items), effect.illegal) == (moves, illegal)
    assert walk(board, effect.items).boxes == effect.boxes
    assert (effect.written, effect.pushes) == (len(pushes), len(pushes) - len(illegal))


def test_a_route_goes_round_what_blocks_or_there_is_none():
    assert route(3, 2, 0b000010, 0, 2) == ("D", "R", "R", "U")
    assert route(3, 2, 0b010010, 0, 2) is None
    assert route(3, 2, 0, 4, 4) == ()


# ---- deadlocks


@pytest.mark.parametrize(
    ("grid", "stuck"),
    [
        (["@--$", "----", "--.-"], True),  # in a corner
        (["@---", "---$", "--.-"], True),  # along an edge without a target
        (["@---", "---$", "---."], False),  # along an edge with one
        (["@----", "--$#-", "--#--", "----."], True),  # between two walls
        (["@-----", "--$$--", "--$$--", "------", "--....", "------"], True),  # two by two
        (["@-----", "--**--", "--**--", "------", "------", "------"], False),  # the same on targets
        (["@-----", "--*$--", "--**--", "---.--", "------", "------"], True),  # and all but one
        (["@-----", "--##--", "--$$--", "------", "--..--", "------"], True),  # two below a wall
        (["@-----", "--#---", "--$$--", "---#--", "--..--", "------"], True),  # they hold each other
        (["@-----", "--#---", "--$$--", "------", "--..--", "------"], False),  # one of them can go
        (["@-----", "------", "--$$--", "------", "--..--", "------"], False),
    ],
)
def test_textbook_deadlocks(grid, stuck):
    board = drawn(grid)
    assert deadlocked(board, board.boxes) == stuck
    if stuck:
        assert solve(board, board.boxes, board.player) is None


@pytest.mark.parametrize(("size", "boxes", "count"), [(4, 1, 20), (4, 2, 12), (4, 3, 4), (5, 2, 3)])
def test_no_solvable_state_is_called_a_deadlock(size, boxes, count):
    flagged = 0
    for index in range(count):
        board = boards(size=size, boxes=boxes, density=0.2)[index].payload
        slow = Slow(board)
        alive = {placed for placed, _ in slow.solvable()}
        for cells in combinations(sorted(slow.floor), boxes):
            if deadlocked(board, mask(board, cells)):
                flagged += 1
                assert frozenset(cells) not in alive, (board.rows(), cells)
    assert flagged > count  # and it does find some


# ---- the oracle


@pytest.mark.parametrize(("size", "boxes", "count"), [(5, 1, 30), (4, 2, 20), (4, 3, 5), (5, 2, 4)])
def test_the_oracle_is_optimal_in_pushes_and_then_in_moves(size, boxes, count):
    for index in range(count):
        board = boards(size=size, boxes=boxes, density=0.15)[index].payload
        solution = solve(board, board.boxes, board.player)
        assert (len(solution.pushes), len(solution.moves)) == Slow(board).best(), board.rows()
        assert walk(board, solution.moves).boxes == board.targets


def test_the_oracle_with_more_boxes_than_it_assigns():
    board = drawn(["@------", "$$$$$$$", ".......", "-------"])
    solution = solve(board, board.boxes, board.player)
    assert (len(solution.pushes), len(solution.moves)) == (7, 19)
    lost = drawn(["@------", "$-$$$$$", ".......", "$------"])
    assert solve(lost, lost.boxes, lost.player) is None


def test_the_oracle_knows_what_has_no_solution():
    checked = 0
    for index in range(3):
        board = boards(size=4, boxes=2, density=0.2)[index].payload
        alive = Slow(board).solvable()
        for cells in combinations(sorted(Slow(board).floor), 2):
            boxes = mask(board, cells)
            for player in sorted(Slow(board).floor - set(cells))[::4]:
                solution = solve(board, boxes, player[0] * 4 + player[1])
                assert (solution is not None) == ((frozenset(cells), player) in alive)
                checked += solution is None
    assert checked > 50
    board = drawn(["@*-"])
    assert solve(board, board.boxes, board.player).moves == ()


# ---- generated boards


@pytest.mark.parametrize(
    ("size", "boxes", "each"),
    [
        (6, 1, 80),
        (6, 2, 80),
        (5, 1, 60),
        pytest.param(6, 1, 334, marks=pytest.mark.long),
        pytest.param(6, 2, 334, marks=pytest.mark.long),
    ],
)
def test_generated_boards_are_solvable_as_hard_as_asked_and_in_one_split_only(size, boxes, each):
    contents = {}
    for split in ("train", "val", "test"):
        source = boards(split, seed=7, size=size, boxes=boxes, least=2, most=8)
        for index in range(each):
            board = source[index].payload
            solution = solve(board, board.boxes, board.player)
            assert walk(board, solution.moves).boxes == board.targets
            assert 2 <= len(solution.pushes) <= 8
            assert board.boxes.bit_count() == board.targets.bit_count() == boxes
            assert not board.walls & (board.boxes | board.targets | 1 << board.player)
            assert not board.boxes >> board.player & 1
            assert contents.setdefault(board.content, split) == split == split_of(board.content)
    for index in range(50):  # under another seed too
        split = ("train", "val", "test")[index % 3]
        board = boards(split, seed=index, size=size, boxes=boxes)[index].payload
        assert contents.setdefault(board.content, split) == split


def test_a_task_is_a_function_of_split_seed_and_index():
    tasks, again, other = boards(seed=3), boards(seed=3), boards(seed=4)
    picked = [tasks[index] for index in range(20)]
    assert [again[index] for index in reversed(range(20))] == picked[::-1]
    assert [other[index].payload for index in range(20)] != [task.payload for task in picked]
    assert picked[7].id == "train-7" and boards("test")[7].id == "test-7"
    assert (len(tasks), len(boards(count=5))) == (1000, 5)
    with pytest.raises(IndexError):
        tasks[1000]


def test_where_the_player_starts_in_its_region_makes_no_other_problem():
    first, same, other = (
        drawn(["@-#-", "--#-", "-$-.", "--#-"]),
        drawn(["--#-", "-@#-", "-$-.", "--#-"]),
        drawn(["--#@", "--#-", "-$-.", "--#-"]),
    )
    assert first.content == same.content
    assert first.content != other.content  # it is on the other side of the box
    assert first.content != drawn(["@-#-", "$-#-", "---.", "--#-"]).content


def test_difficulty_that_cannot_be_had_is_said():
    with pytest.raises(ConfigError, match="no board for split 'val'") as caught:
        boards("val", size=3, density=0.0, least=12)[0]
    assert "at least 12" in caught.value.why and caught.value.path == "env"


def test_records_of_another_game_are_refused():
    good = {"grid": list(CORNER)}
    env = make(Sokoban, size=4)
    board = env.task_of(good, "test-0").payload
    assert board.rows() == list(CORNER)
    for grid, why in (
        (["@$."], "rows"),
        (["----"] * 4, "one player"),
        (["@$--"] + ["----"] * 3, "0 targets"),
        (["@*--"] + ["----"] * 3, "already"),
        (["@--$", "----", "-.--", "----"], "no solution"),
        (["@$.x"] + ["----"] * 3, "not of x"),
        (["@-$-", "-$..", "----", "----"], "2 boxes"),
        ("@$.", "list of rows"),
        ([], "list of rows"),
        (["@", "$."], "list of rows"),
    ):
        with pytest.raises(ValueError, match=why):
            env.task_of({"grid": grid}, "test-0")
    with pytest.raises(ValueError, match="no field 'grid'"):
        env.task_of({"maze": 1}, "test-0")

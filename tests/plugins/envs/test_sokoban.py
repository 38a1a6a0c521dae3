"""The game: states are values, roles see what they should, the oracle's messages solve it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.core.types import TEAM
from coterie.plugins.envs.common.generated import FrozenTasks
from coterie.plugins.envs.sokoban import Sokoban
from coterie.plugins.envs.sokoban.solver import solve
from tests.plugins.envs.players import SOKOBAN
from tests.plugins.envs.sokobans import CORNER, start
from tests.plugins.support import Build, make

send, prompt = SOKOBAN.send, SOKOBAN.prompt


# ---- who sees what


def test_compact_prompts_golden():
    env = make(Sokoban, size=4, push_words="offsets")
    state = start(env, *CORNER)
    assert env.observe(state, "planner").compact() == "planner r1c1 T+2+0 B+0+1 #+1+1 :"
    assert env.observe(state, "solver").compact() == "solver r1c1 T+2+0 B+0+1 #+1+1 :"
    planned = send(env, state, planner="+0+1L +0+0D").state
    assert env.observe(planned, "executor").compact() == (
        "executor r1c1 T+2+0 B+0+1 #+1+1 plan +0+1L +0+0D :"
    )
    moved = send(env, planned, executor="U R R").state
    assert env.observe(moved, "planner").compact() == "planner r0c3 T+3-2 B+1-1 #+2-1 :"
    assert env.observe(moved, "executor").compact() == "executor r0c3 T+3-2 B+1-1 #+2-1 plan :"
    env = make(Sokoban, size=4, push_words="directions")
    planned = send(env, start(env, *CORNER), planner="pL pD").state
    assert env.observe(planned, "executor").compact().endswith("plan pL pD :")
    assert planned.plan.fork.items == tuple("URRDLULD")


@pytest.mark.parametrize("rendering", ["compact", "prose"])
def test_split_views_hide_the_targets_from_the_executor(rendering):
    env = make(Sokoban, size=5, boxes=2, views="split", rendering=rendering)
    rng = np.random.default_rng(0)
    for index in range(100):
        state = env.reset(env.tasks("train", 0)[index], 0)
        state = send(env, state, planner=env.demonstrate(state, "planner", 0.2, rng)).state
        seen = env.observe(state, "executor")
        assert seen.targets is None and env.observe(state, "planner").targets is not None
        prompt_text = prompt(env, state, "executor")
        if rendering == "compact":
            assert not any(word.startswith("T") for word in prompt_text.split())
        else:
            assert "target" not in prompt_text and not {"*", "+"} & set(prompt_text)
            picture = prompt_text.split("\n\n")[1]
            assert "." not in picture and picture.count("$") == 2
        # Another board that differs in its targets alone looks the same.
        other = dataclasses.replace(state.board, targets=state.board.boxes)
        assert env.observe(dataclasses.replace(state, board=other), "executor") == seen


def test_compact_prompts_are_short_and_in_the_vocabulary():
    rng = np.random.default_rng(0)
    for more in (
        {"views": "split", "push_words": "directions"},
        {"push_words": "offsets"},
        {"push_words": "cells", "boxes": 2},
    ):
        env = make(Sokoban, size=5, max_moves=10, max_pushes_planned=4, **more)
        words, counts = set(env.vocabulary()), []
        assert len(list(env.vocabulary())) == len(words)
        for index in range(100):
            state = env.reset(env.tasks("train", 0)[index], 0)
            for role in ("planner", "executor"):
                prompt = env.observe(state, role).compact().split()
                message = env.demonstrate(state, role, 0.3, rng)
                assert {*prompt, *message.split()} <= words
                assert 1 <= len(message.split()) <= (4 if role == "planner" else 10)
                counts.append(len(prompt))
                state = send(env, state, **{role: message}).state
        assert max(counts) < 30


def test_prose_golden():
    env = make(Sokoban, size=4, rendering="prose", max_moves=9)
    state = send(env, start(env, "----", "-@*-", "--#-", "-.$-"), planner="[r1c2L, r3c2L]").state
    assert (
        prompt(env, state, "executor", feedback=("Last turn you slept.",))
        == """\
Turn 1. The grid has 4 rows (r0 at the top) and 4 columns (c0 at the left).
'#' is a wall, '.' a target, '$' a box, '@' the player, '*' a box on a target, '+' the player on a target, \
'-' a free cell.

- - - -
- @ * -
- - # -
- . $ -

The player is at r1c1, the boxes at r1c2, r3c2, the targets at r1c2, r3c1.
The planner's pushes: r1c2L, r3c2L.
Last turn you slept.
Your moves (U, D, L, R, at most 9) as a list such as [U, R, R]:"""
    )
    assert prompt(env, state, "planner").endswith(
        "Name the pushes in order, each the cell of a box and a direction (U, D, L, R), as a list such as "
        "[r1c2R, r1c3U]:"
    )


def test_a_planner_that_plays_alone_makes_its_pushes():
    env = make(Sokoban, Build(order=["planner"]), size=4, plan_moves=True, max_pushes_planned=3)
    step = send(env, start(env, *CORNER), planner="r1c2L r1c1D r2c1D r3c1U")
    assert step.state.solved and step.state.turn == 1 and step.scores[TEAM, "team"] == 1.0
    assert step.scores["planner", "safe"] == 1.0 and (TEAM, "plan_team") not in step.scores
    assert "Last turn you played 3 of 4 pushes from r1c1." in env.diagnose(step.state, "planner")


def test_a_plan_is_worth_all_its_pushes_though_a_message_plays_fewer_moves():
    env = make(Sokoban, size=4, max_moves=2)
    step = send(env, start(env, *CORNER), planner="r1c2L r1c1D r2c1D")
    assert step.scores[TEAM, "plan_team"] == step.scores[TEAM, "plan_goal"] == 1.0
    assert send(env, step.state, executor="U R R D L").state.player_cell == (0, 2)


# ---- feedback


def test_the_diagnosis_says_what_happened():
    env = make(Sokoban, size=4, max_moves=3)
    state = start(env, *CORNER)
    assert env.diagnose(state, "executor") == ""
    state = send(env, send(env, state, planner="r1c2D r1c2L").state, executor="L L U D").state
    assert env.diagnose(state, "executor") == (
        "Last turn you played 1 of 4 moves from r1c1. Move 2 (L) would have left the grid. "
        "Only the first 3 moves of a message are played. The walk stopped there. "
        "The player is at r1c0, the box at r1c2."
    )
    assert env.diagnose(state, "planner").startswith(
        "Push 1 of your plan (r1c2D) would push the box against something solid. "
        "Last turn the executor played 1 of 4 moves"
    )
    state = send(env, state, executor="R R R").state
    assert "pushed a box against something solid" in env.diagnose(state, "executor")
    assert "played nothing" in env.diagnose(send(env, state, executor="").state, "executor")
    assert "target" not in env.diagnose(state, "executor")


# ---- the oracle's messages


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"boxes": 2, "push_words": "offsets"},
        {"views": "split", "push_words": "directions", "max_pushes_planned": 2},
        {"views": "split", "max_moves": 4},
        {"rendering": "prose", "boxes": 2, "views": "split"},
        {"rendering": "prose", "push_words": "directions"},
    ],
)
def test_demonstrations_without_noise_solve_the_game(more):
    env = make(Sokoban, size=5, **more)
    rng = np.random.default_rng(0)
    for index in range(60):
        state = env.reset(env.tasks("train", 0)[index], 0)
        moves = len(solve(state.board, state.boxes, state.player).moves)
        while not state.solved:
            planned = send(env, state, planner=env.demonstrate(state, "planner", 0.0, rng))
            assert planned.scores["planner", "safe"] == planned.scores["planner", "legal"] == 1.0
            step = send(env, planned.state, executor=env.demonstrate(planned.state, "executor", 0.0, rng))
            assert step.scores["executor", "safe"] == 1.0
            state = step.state
            assert state.turn <= moves
        assert env.outcome(state)["success"] == 1.0


def test_noise_replaces_moves_at_its_rate_and_a_lost_board_gets_a_word():
    env = make(Sokoban, Build(order=["solver"]), size=6, min_pushes=3)
    rng, kept, total = np.random.default_rng(0), 0, 0
    for index in range(200):
        state = env.reset(env.tasks("train", 0)[index], 0)
        clean = env.demonstrate(state, "solver", 0.0, rng).split()
        noisy = env.demonstrate(state, "solver", 0.6, rng).split()
        assert len(clean) == len(noisy)
        kept += sum(clean_word == other for clean_word, other in zip(clean, noisy, strict=True))
        total += len(clean)
    assert kept / total == pytest.approx(0.4 + 0.6 / 4, abs=0.03)  # a random move may be the right one
    lost = send(env, start(env, "----", "-@$-", "----", "-.--"), solver="R").state
    assert env.demonstrate(lost, "solver", 0.0, rng) in "UDLR"
    assert env.demonstrate(lost, "planner", 0.0, rng)[:4] == "r1c3"


# ---- tasks as data


class Records:
    def __init__(self, rows):
        self.rows = rows

    def records(self, split):
        return self.rows[split]


def test_tasks_go_to_records_and_back():
    env = make(Sokoban, size=5, boxes=2)
    tasks = [env.tasks("test", 0)[index] for index in range(20)]
    rows = [env.record(task) for task in tasks]
    assert [env.task_of(row, task.id) for row, task in zip(rows, tasks, strict=True)] == tasks
    assert env.picture(tasks[0]).splitlines() == rows[0]["grid"]
    assert len({env.fingerprints(task)["content"] for task in tasks}) > 10
    frozen = make(Sokoban, size=5, boxes=2, data=Records({"test": rows})).tasks("test", 99)
    assert isinstance(frozen, FrozenTasks) and len(frozen) == 20
    assert [frozen[index] for index in range(20)] == tasks
    wrong = make(Sokoban, size=5, boxes=1, data=Records({"test": rows})).tasks("test", 0)
    with pytest.raises(ConfigError, match="record 0 of the test split") as caught:
        wrong[0]
    assert "2 boxes" in caught.value.why


# ---- configurations that make no sense


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"push_words": "offsets", "rendering": "prose"}, "prose names cells"),
        ({"push_words": "directions", "boxes": 2}, "boxes: 1"),
        ({"size": 2, "boxes": 3}, "no room"),
        ({"min_pushes": 4, "max_pushes": 3}, "below min_pushes"),
    ],
)
def test_settings_that_do_not_fit_are_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        make(Sokoban, **more)


def test_width_and_height_may_differ():
    env = make(Sokoban, width=7, height=3, boxes=2)
    board = env.tasks("val", 0)[3].payload
    assert (board.width, board.height) == (7, 3)
    assert solve(board, board.boxes, board.player) is not None

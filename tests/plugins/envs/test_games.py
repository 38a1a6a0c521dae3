"""What holds of all games: no reward is earned repeatedly, splits share nothing, roles and sandbox fit
together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.types import TEAM, Action, Fault
from coterie.data.leaks import leaks
from coterie.plugins.envs.common.generated import split_of
from tests.plugins.envs import mazes, sokobans, sudokus
from tests.plugins.envs.paying import (
    ILLEGAL,
    LIMIT,
    SMALL,
    above,
    game,
    message_text,
    oracle,
    planned,
    returned,
    send,
)
from tests.plugins.envs.players import GAMES
from tests.plugins.envs.programs import INLINE
from tests.plugins.support import context, team_run, wait

games = pytest.mark.parametrize("name", list(GAMES))
INDICES = st.integers(0, 300)
MESSAGE = st.lists(st.integers(0, 255), max_size=7)
MESSAGES = st.lists(MESSAGE, max_size=7)
TO_AND_FRO = [[0, 1], [2, 3], [1, 0], [3, 2]]  # up and down, left and right; a wrong digit and the right one
ONE_BY_ONE = [[number] for number in (1, 0, 1, 0, 3, 2, 3, 2)]
BUMPS = [[0] * 7, [1] * 7, [2] * 7, [3] * 7]


def setting(name, limit, illegal, **more):
    limits = {LIMIT[name]: limit} if name in LIMIT else {}
    return {ILLEGAL[name]: illegal, **limits, **more}


# ---- no reward is earned repeatedly


@games
@settings(max_examples=40, deadline=None)
@given(
    index=INDICES,
    messages=MESSAGES,
    repeats=st.integers(1, 4),
    illegal=st.sampled_from(["stop", "skip"]),
    limit=st.sampled_from([None, 1, 3]),
    discount=st.sampled_from([1.0, 0.9, 0.5]),
)
@example(index=0, messages=TO_AND_FRO, repeats=4, illegal="skip", limit=None, discount=1.0)
@example(index=1, messages=ONE_BY_ONE, repeats=4, illegal="stop", limit=None, discount=0.9)
@example(index=2, messages=BUMPS, repeats=4, illegal="skip", limit=3, discount=1.0)
def test_no_episode_returns_more_than_the_oracles(name, index, messages, repeats, illegal, limit, discount):
    """`potential`, for returns that sum over turns: with every term weighed, and any discount."""
    env = game(name, **setting(name, limit, illegal, team="potential"))
    state = env.reset(env.tasks("train", 0)[index], 0)
    best, solved = returned(env, name, state, None, discount)
    episode_return, end = returned(env, name, state, messages * repeats, discount)
    assert solved.solved and episode_return <= best + 1e-9
    if discount == 1.0 and not end.solved:
        assert episode_return < best - 1e-9


@games
@settings(max_examples=40, deadline=None)
@given(
    index=INDICES,
    before=st.lists(MESSAGE, max_size=4),
    message=MESSAGE,
    illegal=st.sampled_from(["stop", "skip"]),
    limit=st.sampled_from([None, 1, 3]),
    team=st.sampled_from(["progress", "potential"]),
)
@example(index=0, before=TO_AND_FRO, message=[0, 1] * 6, illegal="skip", limit=None, team="progress")
def test_no_message_has_a_better_term_than_the_oracles(name, index, before, message, illegal, limit, team):
    """Immediate credit, after anything."""
    env = game(name, **setting(name, limit, illegal, team=team))
    _, state = returned(env, name, env.reset(env.tasks("train", 0)[index], 0), before)
    if state.solved or env.outcome(state).get("deadlocked"):
        return
    best = send(env, name, state, oracle(env, state))
    if name == "sokoban" and not best.state.solved:
        return  # it is lost, though one doesn't see it
    assert not above(send(env, name, state, message_text(name, state, message)), best)


@pytest.mark.parametrize(("name", "more"), [
    ("plan_path", {"plan_language": "waypoints"}), ("plan_path", {"plan_language": "legs"}),
    ("plan_path", {"plan_language": "moves"}), ("plan_path", {"plan_language": "legs", "max_moves": 2}),
    ("plan_path", {"plan_language": "legs", "plan_moves": True}),
    ("plan_path", {"plan_language": "waypoints", "plan_moves": True, "max_moves": 3}),
    ("sudoku", {}), ("sudoku", {"max_cells": 2}), ("sudoku", {"plan_moves": True}),
    ("sokoban", {}), ("sokoban", {"plan_moves": True}),
])  # fmt: skip
@settings(max_examples=20, deadline=None)
@given(
    index=INDICES, before=st.lists(MESSAGE, max_size=3), numbers=MESSAGE, skip=st.booleans(),
    team=st.sampled_from(["progress", "potential"]),
)  # fmt: skip
def test_no_plan_has_a_better_term_than_the_oracles(name, more, index, before, numbers, skip, team):
    env = game(name, **more, **{ILLEGAL[name]: "skip" if skip else "stop"}, team=team)
    _, state = returned(env, name, env.reset(env.tasks("train", 0)[index], 0), before)
    if state.solved or env.outcome(state).get("deadlocked"):
        return
    best = send(env, name, state, oracle(env, state, "planner"), "planner")
    if name == "sokoban" and 1.0 not in (
        best.scores.get(("team", "goal")),
        best.scores.get(("team", "plan_goal")),
    ):
        return
    words = planned(env)
    text = " ".join(words[number % len(words)] for number in numbers)
    assert not above(send(env, name, state, text, "planner"), best)


@pytest.mark.parametrize(("name", "more"), [
    ("plan_path", {}), ("plan_path", {"size": 10, "wall_density": 0.22}),
    ("plan_path", {"size": 20, "wall_density": 0.22}), ("sudoku", {}), ("sokoban", {"size": 5}),
])  # fmt: skip
@pytest.mark.parametrize("illegal", ["stop", "skip"])
def test_ten_thousand_moves_return_no_more(name, more, illegal):
    env = game(name, **{**more, ILLEGAL[name]: illegal}, team="potential")
    rng = np.random.default_rng(0)
    for index in range(2):
        state = env.reset(env.tasks("train", 0)[index], 0)
        best, _ = returned(env, name, state, None)
        numbers = [int(number) for number in rng.integers(0, 256, 10_000)]
        for messages in ([numbers], [numbers[at : at + 100] for at in range(0, 10_000, 100)]):
            assert returned(env, name, state, messages)[0] <= best + 1e-9


REPEATING = {
    "plan_path": (mazes.start, mazes.WALLED, ["U", "D"] * 8),
    "sudoku": (sudokus.start, sudokus.EASY, ["r0c2=3", "r0c2=4"] * 8),
    # On and off its target, past the one that is left alone.
    "sokoban": (
        sokobans.start,
        ("-------", "-@$-.--", "-------", "-$-.---"),
        ["R R", *["R", "U R R D L", "L", "U L L D R"] * 3],
    ),
}


@games
def test_what_progress_pays_is_earned_repeatedly_by_summing(name):
    """Which is why it is named in `not_summable`. And so the tests above could fail."""
    start, rows, texts = REPEATING[name]
    size = {"sokoban": {"width": 7, "height": 4}}.get(name, {})
    for team, repeatable in (("progress", True), ("potential", False)):
        env = game(name, team=team, **size)
        state, totals = start(env, *rows), dict.fromkeys(env.repeatable_gains, 0.0)
        for text in texts:
            step = send(env, name, state, text)
            state, totals = step.state, {one: totals[one] + step.scores[TEAM, one] for one in totals}
        assert not state.solved and [total > 1.2 for total in totals.values()] == [repeatable] * len(totals)
        assert ("team" in env.not_summable) == repeatable


# ---- splits


@games
def test_splits_share_no_fingerprint(name):
    """Content, and where a game has one, the solution: under the same seed and under others."""
    env = game(name)
    shared = leaks({
        split: [
            (task.id, env.fingerprints(task))
            for seed in (0, 1)
            for task in (env.tasks(split, seed)[index] for index in range(60))
        ]
        for split in ("train", "val", "test")
    })  # fmt: skip
    assert set(shared.sizes.values()) == {120} and not shared.shared


def test_the_split_of_a_content_is_written_down():
    """These must never change, or old runs would have trained on new test tasks."""
    assert [split_of(content) for content in ("a", "b", "c", "d", "e", "f", "g", "h")] == [
        "train",
        "train",
        "train",
        "train",
        "train",
        "val",
        "train",
        "train",
    ]


# ---- roles and sandbox


def composed(name, order, settings=None, **more):
    env = {"type": name, **SMALL[name], **more.pop("env", {})}
    roles = {role: {"type": f"{name}_{role}", **(settings or {})} for role in order}
    return team_run(env=env, roles=roles, **more)


@games
def test_a_unused_sandbox_is_refused(name):
    pair, sandbox = ["planner", "executor"], {"type": INLINE}
    for tables, path in (({"sandbox": sandbox}, "sandbox"), ({"env": {"sandbox": sandbox}}, "env.sandbox")):
        with pytest.raises(ConfigError, match="nothing would run in this sandbox") as caught:
            composed(name, pair, **tables)
        assert caught.value.path == path
    weighed = {"environment": {"type": "environment", "weights": {"team": 2.0}}}
    with pytest.raises(ConfigError, match="nothing would run"):
        composed(name, pair, sandbox=sandbox, rewards=weighed)


@games
def test_a_sandbox_may_be_there_for_a_tool(name):
    prose, sandbox = {"rendering": "prose"}, {"type": INLINE}
    tools = {"python": {"type": "python"}}
    composed(name, ["solver"], {"tools": ["python"]}, sandbox=sandbox, tools=tools, env=prose)
    composed(name, ["tool", "plan"], sandbox=sandbox, env=prose)
    composed(name, ["planner", "executor"])


@games
@pytest.mark.parametrize(
    ("order", "more", "path", "message"),
    [
        (["planner"], {}, "env", "no role in team.order moves"),
        (["tool"], {"rendering": "prose"}, "env", "no role in team.order moves"),
        ([["executor", "solver"]], {}, "env", "can't move at once"),
        (["tool", "plan"], {"rendering": "prose"}, "env.sandbox", "no sandbox"),
        (["tool", "plan"], {}, "env.rendering", "prose"),
        (["plan"], {}, "env.rendering", "prose"),
        (["tool", "executor"], {"rendering": "prose"}, "team.order", "can't play with executor"),
        (["planner", "plan"], {"rendering": "prose"}, "team.order", "can't play with planner"),
        ([["tool", "plan"], "solver"], {"rendering": "prose"}, "team.order", "can't play with solver"),
    ],
)
def test_teams_that_cannot_play_are_refused(name, order, more, path, message):
    with pytest.raises(ConfigError, match=message) as caught:
        GAMES[name].make(*order, **SMALL[name], **more)
    assert caught.value.path == path


@games
def test_an_action_that_the_system_lost_is_no_action(name):
    env = game(name)
    lost = Action(calls=(), text="", fault=Fault(kind="system", reason="engine"))
    with pytest.raises(SystemFault, match="was lost"):
        wait(env.step(env.reset(env.tasks("train", 0)[0], 0), {"solver": lost}, context()))


@games
def test_a_planner_that_moves_isnt_asked_for_what_it_did_already(name):
    """Its plan was played: who moves next is shown none."""
    env = GAMES[name].make(**SMALL[name], plan_moves=True)
    state = env.reset(env.tasks("train", 0)[0], 0)
    noisy = env.demonstrate(state, "planner", 1.0, np.random.default_rng(1))
    after = send(env, name, state, noisy, "planner").state
    assert after.turn == 1 and after.last_mover == "planner" and after.last_plan is not None
    assert not env.observe(after, "executor").plan
    assert env.diagnose(after, "planner") and env.diagnose(after, "executor")

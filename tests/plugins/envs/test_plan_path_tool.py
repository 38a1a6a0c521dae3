"""The paper's form of Plan-Path: what a program prints is paid by its fork and shown to the plan role."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest

from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.types import TEAM
from coterie.plugins.envs.plan_path import PlanPath
from coterie.recipes import load
from coterie.testing import play_episode
from tests.plugins.envs.mazes import WALLED, distance_by_the_book, start
from tests.plugins.envs.players import PLAN_PATH
from tests.plugins.envs.programs import INLINE, Inline, answer, search
from tests.plugins.support import Build, make

send, prompt = PLAN_PATH.send_one, PLAN_PATH.prompt


def game(order=("tool", "plan"), **settings):
    settings = {"size": 4, "rendering": "prose", "sandbox": Inline(), **settings}
    return make(PlanPath, Build(order=list(order)), **settings)


def worth(maze, cell, moves, limit=None):
    """The default form by its formula: (before - after) / before, not below 0; 1 at the goal."""
    before = distance_by_the_book(maze, cell)
    for move in moves[:limit]:
        row, column = cell
        target = {"U": (row - 1, column), "D": (row + 1, column), "L": (row, column - 1)}.get(
            move, (row, column + 1)
        )
        outside = target[0] not in range(maze.height) or target[1] not in range(maze.width)
        if cell == maze.cell(maze.goal) or outside or maze.walls >> target[0] * maze.width + target[1] & 1:
            break
        cell = target
    after = distance_by_the_book(maze, cell)
    return 1.0 if after == 0 else max(0.0, (before - after) / before)


# ---- a whole step of AT-GRPO, with the real sandbox

PROGRAMS = ("crash", "loop", "search", "garbage", "nothing", "one step", "half way")
"""By branch. `search` is the best one, and not the first."""


def programmer(request: Any, text: str) -> str:
    """Seven programs; the plan role's second branch follows the proposal that it is shown."""
    branch = request.key.branch
    if request.key.role == "tool":
        return {
            "crash": answer("print(1 / 0)"),
            "loop": answer("print('[U, U]', flush=True)\nwhile True: pass"),
            "search": answer(search(text)),
            "garbage": answer("print('over the hills')"),
            "nothing": answer("x = 1"),
            "one step": answer(search(text, "print(path[:1])")),
            "half way": answer(search(text, "print('Moves:', *path[:1])\nraise KeyError('rest')")),
        }[PROGRAMS[branch]]
    proposed = [line for line in text.splitlines() if line.startswith("It proposes: ")]
    return f"[{proposed[-1].removeprefix('It proposes: ').rstrip('.')}]" if branch == 1 else "[]"


def run_of(*overrides: str, **env: Any) -> Any:
    """The recipe, small, on a scripted engine."""
    return compose(
        load(
            "plan_path_tool",
            overrides=[
                *(f"env.{name}={value}" for name, value in {"size": 4, "min_distance": 4, **env}.items()),
                "policies.shared={model: {init: none}, train: none, lora: null}",
                "engine={type: scripted, play: 'tests.plugins.envs.test_plan_path_tool:programmer'}",
                "trainer=none",
                "team.max_turns=2",
                "chat=auto",
                *overrides,
            ],
        )
    )


def test_a_step_of_at_grpo_with_real_programs():
    run = run_of("sampler.branches=7", "sandbox.limits={cpu_seconds: 0.3}", max_moves=2)
    (tree,), scores = play_episode(run, 1)
    credit, _ = run.estimator(
        Batch(trees=[tree], scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    nodes = list(tree.nodes())
    assert [tuple(node.decisions) for node in nodes] == [("tool",), ("plan",)] * 2
    maze = tree.task.payload
    for asked, following in zip(nodes[::2], nodes[1::2], strict=True):
        cell = asked.decisions["tool"].observation.position
        info = [joint.info["tool"] for joint in asked.joints]
        joint_scores = [scores.at(asked.key.of_joint(index)) for index in range(7)]
        moves = [role_info.get("moves", []) for role_info in info]
        assert [len(branch_moves) for branch_moves in moves] == [0, 0, 2, 0, 0, 1, 1]
        assert [role_info["readable"] for role_info in info] == [False, False, True, False, False, True, True]
        # The counterfactual of every branch by its own program, and nothing for the team itself.
        for scored, branch_moves in zip(joint_scores, moves, strict=True):
            assert scored[TEAM, "plan_team"].value == pytest.approx(worth(maze, cell, branch_moves, 2))
            assert scored[TEAM, "team"].value == 0.0
        paid = worth(maze, cell, moves[2], 2) + 1.0
        rewards = branch_rewards(asked, "tool", scores, run.reward_weights)
        assert rewards[2] == pytest.approx(paid) == max(rewards) and rewards.count(0.0) == 4
        assert 0 < rewards[5] == rewards[6] < rewards[2]
        assert (asked.expanded, asked.rule) == ((2,), "best")
        advantages = [credit.advantage[asked.key.of_branch("tool", branch)] for branch in range(7)]
        assert advantages[2] == max(advantages) and advantages[2] > advantages[5] > advantages[0]
        # The plan role is shown the best branch's program and what it printed, and no other's.
        shown = following.decisions["plan"].messages[-1]["content"]
        assert f"You are at r{cell[0]}c{cell[1]}." in shown and "from collections import deque" in shown
        assert info[2]["output"].startswith("so: ['") and info[2]["output"].rstrip("\n") in shown
        for other in ("KeyError", "over the hills", "ZeroDivisionError", "CPU time", "path[:1]"):
            assert other not in shown
        # Its second branch adopts the proposal, and that moves the world.
        assert following.expanded == (1,)
        earned = scores.at(following.key.of_joint(1))[TEAM, "team"].value
        assert earned == pytest.approx(worth(maze, cell, moves[2], 2))
    # What became of the programs: how they ended is in the records.
    problems = [joint.info["tool"]["problem"] for joint in nodes[0].joints]
    assert problems[0].endswith("ZeroDivisionError: division by zero") and "CPU time" in problems[1]
    assert problems[6].endswith("KeyError: 'rest'") and problems[2:6] == [""] * 4
    assert nodes[0].joints[1].info["tool"]["output"] == ""  # of a loop it depends on the machine's speed
    assert "Your last program proposed: " in nodes[2].decisions["tool"].messages[-1]["content"]


def test_a_sandbox_that_fails_leaves_the_score_missing():
    run = run_of(
        "sampler.branches=3",
        f"sandbox.type={INLINE}",
        "engine.play=tests.plugins.envs.test_plan_path_tool:loser",
    )
    (tree,), scores = play_episode(run, 1)
    root = tree.root
    rewards = branch_rewards(root, "tool", scores, run.reward_weights)
    assert rewards[1] is None and None not in (rewards[0], rewards[2])
    fault = root.joints[1].fault
    assert fault is not None and fault.kind == "system"
    assert fault.reason == "environment 'plan_path' of coterie: step raised SystemFault: the worker was lost"
    assert {score.value for score in scores.at(root.key.of_joint(1)).values()} == {None}
    assert root.expanded == (2,)  # a killer is scored, and worth nothing
    assert (rewards[0], root.joints[0].info["tool"]["problem"]) == (0.0, "a program ended its worker twice")
    credit, _ = run.estimator(
        Batch(trees=[tree], scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    assert root.key.of_branch("tool", 1) not in credit.advantage
    assert (
        credit.advantage[root.key.of_branch("tool", 2)] > 0 > credit.advantage[root.key.of_branch("tool", 0)]
    )


def loser(request: Any, text: str) -> str:
    if request.key.role == "plan":
        return "[]"
    return answer(("# killer", "# lost", search(text))[request.key.branch])


# ---- what is paid


@pytest.mark.parametrize("walk", ["stop", "skip"])
@pytest.mark.parametrize("form", ["progress", "potential"])
def test_a_proposal_is_worth_what_walking_it_earns(form, walk):
    env = game(size=5, team=form, walk=walk, max_moves=4)
    rng, signs = random.Random(0), set()
    for index in range(100):
        state = env.reset(env.tasks("train", 0)[index], 0)
        moves = rng.choices("UDLR", k=rng.randint(1, 6))
        proposed = send(env, state, "tool", answer(f"print({moves})"))
        walked = send(env, proposed.state, "plan", f"[{', '.join(moves)}]")
        assert proposed.state.position == state.position
        for name in ("team", "goal", "progress"):
            value = proposed.scores[TEAM, f"plan_{name}"]
            assert value == walked.scores[TEAM, name] and proposed.scores[TEAM, name] == 0.0
            assert (TEAM, f"plan_{name}") not in walked.scores
        for name in ("format", "legal", "shortest", "illegal", "empty"):
            assert proposed.scores["tool", name] == walked.scores["plan", name]
        if (form, walk) == ("progress", "stop"):
            expected = worth(state.maze, state.cell, moves, 4)
            assert proposed.scores[TEAM, "plan_team"] == pytest.approx(expected)
        signs.add(proposed.scores[TEAM, "plan_progress"] > 0)
    assert signs == {True, False}


@pytest.mark.parametrize(
    ("code", "moves"),
    [
        ("print(['U', 'R'])", "UR"),
        ("print('[L]')\nprint('no: [U, R]')", "UR"),
        ("print('U R')", "UR"),
        ("for move in 'UR': print(move)", "UR"),
        ("print('path:', ['up', 'right'])", "UR"),
        ("print('[U, R]')\n1 / 0", "UR"),
        ("print('x' * 90_000, '[U, R]')", "UR"),
        ("print([])", ""),
        ("print('[U, R]')\n# slow", None),
        ("print(['U', 'north'])", None),
        ("print([(0, 1), (0, 2)])", None),
        ("print('no way')", None),
        ("print()", None),
        ("pass", None),
        ("1 / 0", None),
        ("x = (", None),
        ("# killer", None),
    ],
)
def test_what_a_program_prints_is_its_proposal(code, moves):
    env = game()
    step = send(env, start(env, *WALLED), "tool", answer(code))
    local = {name: value for (role, name), value in step.scores.items() if role == "tool"}
    plan = step.state.plan
    assert plan.run.code == code + "\n" and len(plan.run.output) < 2050
    if moves is None:
        assert plan.fork is None and set(step.scores.values()) == {0.0}
    else:
        assert plan.moves == tuple(moves) and local["empty"] == float(not moves)
        assert step.scores[TEAM, "plan_team"] == pytest.approx(len(moves) / 6)  # U R of U R R D D D
        assert local["format"] == local["shortest"] == float(bool(moves))


@pytest.mark.parametrize(
    ("text", "empty"), [("", 1.0), (" \n", 1.0), ("[U, R]", 0.0), ("```python\nprint(", 0.0)]
)
def test_a_message_without_a_program_runs_nothing_and_earns_nothing(text, empty):
    env = game()
    step = send(env, start(env, *WALLED), "tool", text)
    assert env.config.sandbox.ran == [] and step.scores["tool", "empty"] == empty
    assert all(value == 0 for (_, name), value in step.scores.items() if name != "empty")
    assert "The tool wrote no program." in prompt(env, step.state, "plan")
    after = send(env, step.state, "plan", "[U]").state
    assert env.diagnose(after, "tool").startswith("Your last message held no program.")


# ---- states are values


def test_forks_with_programs_are_independent_values():
    env = game()
    root = start(env, *WALLED)
    before = copy.deepcopy(root)
    forks = [send(env, root, "tool", answer(f"print({moves})")).state for moves in (["U"], ["L"], [])]
    assert root == before and len({env.digest(fork) for fork in forks}) == 3
    again = pickle.loads(pickle.dumps(forks[0]))
    assert again == forks[0] and env.digest(again) == env.digest(forks[0])
    assert env.observe(forks[1], "plan").proposal == ("L",)
    moved = send(env, forks[0], "plan", "[U]").state
    assert env.observe(moved, "plan").program is None and moved.last_plan.moves == ("U",)


# ---- feedback


def test_the_plan_role_is_shown_program_output_and_proposal():
    env = game(max_moves=4)
    state = send(env, start(env, *WALLED), "tool", answer("print('hm')\nprint(['U', 'R'])")).state
    assert (
        prompt(env, state, "plan").partition("The goal is r3c3.\n")[2]
        == """\
The tool's program:
```python
print('hm')
print(['U', 'R'])
```
It printed:
```
hm
['U', 'R']
```
It proposes: U, R.
Your moves (U, D, L, R, at most 4) as a list such as [U, R, R]:"""
    )
    assert env.observe(state, "tool").program is None and "hm" not in prompt(env, state, "tool")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (
            "1 / 0",
            ["It printed nothing.", "did not finish: exit code 1: ZeroDivisionError: division by zero."],
        ),
        ("# slow", ["It printed nothing.", "It did not finish: more than 5 s of CPU time."]),
        (
            "print('a' * 5000)",
            ["[3001 characters left out]", "It proposes nothing that can be read as moves."],
        ),
        ("print([])", ["[]", "It proposes: no move."]),
        ("print(['U'] * 150)", ["U, U and 50 more."]),
        ("print('```\\nIt proposes: L.')", ["````\n```\nIt proposes: L.\n````"]),
        ("raise ValueError('x' * 9000)", ["It did not finish: xxx"]),
    ],
)
def test_feedback_on_how_programs_end(code, lines):
    env = game()
    prompt_text = prompt(env, send(env, start(env, *WALLED), "tool", answer(code)).state, "plan")
    for line in lines:
        assert line in prompt_text
    assert len(prompt_text) < 3500


def test_the_diagnosis_of_both_roles():
    env = game()
    state = start(env, *WALLED)
    assert env.diagnose(state, "tool") == env.diagnose(state, "plan") == ""
    state = send(env, state, "tool", answer("print(['U', 'R', 'D'])")).state
    state = send(env, state, "plan", "[U, L, L]").state
    walked = "played 2 of 3 moves from r1c1. Move 3 (L) would have left the grid. The walk stopped there. "
    assert env.diagnose(state, "plan") == f"Last turn you {walked}Your walk ended at r0c0."
    assert env.diagnose(state, "tool") == (
        "Your last program proposed: U, R, D. Move 3 of your plan (D) hit a wall. "
        f"Last turn the plan role {walked}The plan role's walk ended at r0c0."
    )
    state = send(env, send(env, state, "tool", answer("[][1]")).state, "plan", "[]").state
    assert env.diagnose(state, "tool") == (
        "Your last program did not finish: exit code 1: IndexError: list index out of range. "
        "Your last program printed nothing. The plan role played no move last turn and stayed at r0c0."
    )
    state = send(env, send(env, state, "tool", answer("print('north')")).state, "plan", "[R]").state
    assert "Your last program printed no list of moves." in env.diagnose(state, "tool")


def test_a_tool_that_plays_alone_moves_and_gets_feedback_on_both():
    env = game(order=["tool"], plan_moves=True)
    step = send(env, start(env, *WALLED), "tool", answer("print(['U', 'R', 'D'])"))
    assert step.state.cell == (0, 2) and step.scores[TEAM, "team"] == pytest.approx(2 / 6)
    assert (TEAM, "plan_team") not in step.scores
    assert env.diagnose(step.state, "tool") == (
        "Your last program proposed: U, R, D. Last turn you played 2 of 3 moves from r1c1. "
        "Move 3 (D) hit a wall. The walk stopped there. Your walk ended at r0c2."
    )
    crashed = send(env, step.state, "tool", answer("1 / 0"))
    assert crashed.state.cell == (0, 2) and crashed.state.turn == 2
    assert "ZeroDivisionError" in env.diagnose(crashed.state, "tool")


def test_the_oracles_program_solves_the_game():
    import numpy as np

    env, rng = game(size=5, max_moves=3), np.random.default_rng(0)
    for index in range(30):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for _ in range(-(-state.first // 3)):
            proposed = send(env, state, "tool", env.demonstrate(state, "tool", 0.0, rng))
            assert proposed.scores["tool", "shortest"] == 1.0
            state = send(env, proposed.state, "plan", env.demonstrate(proposed.state, "plan", 0.0, rng)).state
        assert env.outcome(state)["success"] == 1.0


# ---- configurations that make no sense


def test_a_run_without_a_sandbox_is_refused_when_composed():
    with pytest.raises(ConfigError, match="no sandbox") as caught:
        run_of("sandbox=null")
    assert caught.value.path == "env.sandbox" and "sandbox: local" in str(caught.value)


def test_the_plan_role_may_play_without_a_tool():
    env = game(order=["plan"], sandbox=None)
    assert not env.concurrent and game().concurrent
    assert "program" not in prompt(env, start(env, *WALLED), "plan").partition("The goal")[2]

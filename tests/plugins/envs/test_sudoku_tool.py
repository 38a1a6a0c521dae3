"""The paper's form of Sudoku: what a program prints is paid by its fork and shown to the plan role."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.types import TEAM
from coterie.plugins.envs.sudoku import Sudoku
from coterie.testing import play_episode
from tests.plugins.envs.players import SUDOKU
from tests.plugins.envs.programs import INLINE, Inline, answer
from tests.plugins.envs.sudokus import EASY, ORACLE, start
from tests.plugins.support import Build, make, team_run

send, prompt = SUDOKU.send_one, SUDOKU.prompt

SOLVER = '''\
grid = [[0 if word == "." else int(word) for word in row.replace("|", " ").split()] for row in """
{rows}
""".strip().splitlines() if "+" not in row]
empty = [(r, c) for r in range(4) for c in range(4) if not grid[r][c]]


def fits(r, c, digit):
    near = grid[r] + [row[c] for row in grid]
    near += [grid[r // 2 * 2 + i][c // 2 * 2 + j] for i in range(2) for j in range(2)]
    return digit not in near


def search(at):
    if at == len(empty):
        return True
    r, c = empty[at]
    for digit in range(1, 5):
        if fits(r, c, digit):
            grid[r][c] = digit
            if search(at + 1):
                return True
            grid[r][c] = 0
    return False


search(0)
'''


def game(order=("tool", "plan"), **settings):
    settings = {"rendering": "prose", "sandbox": Inline(), **settings}
    return make(Sudoku, Build(order=list(order)), **settings)


def programmer(request, text):
    """Branch 1 solves and prints the grid; the plan role's branch 2 adopts what it is shown."""
    if request.key.role == "plan":
        proposed = [line for line in text.splitlines() if line.startswith("It proposes: ")]
        return (
            f"[{proposed[-1].removeprefix('It proposes: ').rstrip('.')}]" if request.key.branch == 2 else "[]"
        )
    rows = "\n".join(line for line in text.splitlines() if line and set(line) <= set("1234.| -+"))
    solver = SOLVER.format(rows=rows)
    return [
        answer("print(1 / 0)"),
        answer(solver + "for row in grid: print(row)"),
        answer(solver + "print([(r, c, grid[r][c]) for r, c in empty[:3]])"),
        answer("print('over the hills')"),
    ][request.key.branch]


def test_a_step_with_real_programs():
    roles = {name: {"type": f"sudoku_{name}"} for name in ("tool", "plan")}
    env = {"type": "sudoku", "rendering": "prose"}
    run = team_run(programmer, env=env, roles=roles, sandbox={"type": "local"})
    (tree,), scores = play_episode(run, 1)
    asked, following = list(tree.nodes())[:2]
    rewards = branch_rewards(asked, "tool", scores, run.reward_weights)
    assert rewards == pytest.approx([0.0, 2.0, 1.5, 0.0]) and asked.expanded == (1,)
    shown = following.decisions["plan"].messages[-1]["content"]
    assert "def search(at):" in shown and "It proposes: r" in shown
    assert "ZeroDivisionError" not in shown and "over the hills" not in shown
    assert following.expanded == (2,)
    (leaf,) = [leaf for _, leaf in tree.leaves()]
    assert leaf.outcome == {"success": 1.0, "turns": 1.0, "cells_left": 0.0}


@pytest.mark.parametrize(
    ("code", "proposed"),
    [
        ("print('[r0c2=3, r0c3=1]')", 2),
        ("print([(0, 2, 3)])", 1),
        ("print('1 2 3 4\\n3 4 1 2\\n2 1 4 3\\n4 3 2 1')", 6),
        ("print('r0c2=3')\n1 / 0", 1),
        ("print([])", 0),
        ("print('no way')", None),
        ("print()", None),
        ("pass", None),
        ("1 / 0", None),
        ("print('[r0c2=3]')\n# slow", None),
        ("# killer", None),
    ],
)
def test_what_a_program_prints_is_its_proposal(code, proposed):
    env = game()
    step = send(env, start(env, *EASY), "tool", answer(code))
    plan = step.state.plan
    assert plan.run.code == code + "\n" and step.state.grid == step.state.puzzle.clues
    if proposed is None:
        assert plan.fork is None and set(step.scores.values()) == {0.0}
        return
    assert len(plan.items) == proposed
    right = {1: 1, 2: 1}.get(proposed, proposed)
    assert step.scores[TEAM, "plan_team"] == pytest.approx(right / 6)
    assert step.scores["tool", "correct"] == pytest.approx(right / proposed if proposed else 0)
    assert step.scores["tool", "empty"] == float(not proposed)


def test_the_plan_role_is_shown_program_output_and_proposal():
    env = game()
    state = send(env, start(env, *EASY), "tool", answer("print('hm')\nprint([(0, 2, 3)])")).state
    assert (
        prompt(env, state, "plan").partition(". 3 | 2 1\n\n")[2]
        == """\
The tool's program:
```python
print('hm')
print([(0, 2, 3)])
```
It printed:
```
hm
[(0, 2, 3)]
```
It proposes: r0c2=3.
Your assignments as a list such as [r0c1=3, r2c3=1]:"""
    )
    assert env.observe(state, "tool").program is None and "hm" not in prompt(env, state, "tool")
    long = send(env, start(env, *EASY), "tool", answer("print('a' * 5000)")).state
    assert "characters left out]" in prompt(env, long, "plan") and len(prompt(env, long, "plan")) < 3000
    assert "nothing that can be read" in prompt(env, long, "plan")
    none = send(env, start(env, *EASY), "tool", "I can't.").state
    assert "The tool wrote no program." in prompt(env, none, "plan")


def test_the_diagnosis_of_both_roles():
    env = game()
    state = send(env, start(env, *EASY), "tool", answer("print('[r0c2=3, r0c0=1]')")).state
    state = send(env, state, "plan", "[r0c2=3]").state
    filled = "played 1 of 1 assignment."
    assert env.diagnose(state, "plan") == f"Last turn you {filled}"
    assert env.diagnose(state, "tool") == (
        "Your last program proposed: r0c2=3, r0c0=1. Assignment 2 of your plan (r0c0=1) would change a given "
        f"digit. Last turn the plan role {filled}"
    )
    state = send(env, send(env, state, "tool", answer("[][1]")).state, "plan", "[]").state
    assert "Your last program did not finish: exit code 1: IndexError" in env.diagnose(state, "tool")


def test_a_tool_that_plays_alone_fills_and_gets_feedback_on_both():
    env = game(order=["tool"], plan_moves=True)
    step = send(env, start(env, *EASY), "tool", answer(f"print('[{', '.join(ORACLE.split())}]')"))
    assert step.state.solved and step.scores[TEAM, "team"] == 1.0
    crashed = send(env, start(env, *EASY), "tool", answer("1 / 0")).state
    assert crashed.turn == 1 and "ZeroDivisionError" in env.diagnose(crashed, "tool")
    assert env.concurrent and not make(Sudoku).concurrent


def test_the_oracles_program_solves_the_game():
    import numpy as np

    env, rng = game(max_cells=3), np.random.default_rng(0)
    for index in range(10):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for _ in range(2):
            proposed = send(env, state, "tool", env.demonstrate(state, "tool", 0.0, rng))
            assert proposed.scores["tool", "correct"] == 1.0
            state = send(env, proposed.state, "plan", env.demonstrate(proposed.state, "plan", 0.0, rng)).state
        assert state.solved


def test_a_run_without_a_sandbox_is_refused_when_composed():
    roles = {name: {"type": f"sudoku_{name}"} for name in ("tool", "plan")}
    with pytest.raises(ConfigError, match="no sandbox") as caught:
        team_run(env={"type": "sudoku", "rendering": "prose"}, roles=roles)
    assert caught.value.path == "env.sandbox"
    team_run(env={"type": "sudoku", "rendering": "prose", "sandbox": INLINE}, roles=roles)

"""Environment `math` in a composed run: the samples, a tool loop in one action, and the end of a run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from coterie.core.errors import ConfigError
from coterie.core.training.samples import action_samples
from coterie.core.types import RewardWeights
from coterie.plugins.envs.math import env as env_module
from coterie.plugins.envs.math.verifier import Verifier
from coterie.testing import coterie_run, play_episode
from tests.plugins.envs.math.players import CHAIN, PAIR, box, program
from tests.plugins.envs.programs import INLINE

CHAINS = {"chains": 2, "branches": 1}


def run_of(answers: Any, order: Any = CHAIN, env: Any = None, roles: Any = None, **tables: Any) -> Any:
    names = [role for stage in order for role in ([stage] if isinstance(stage, str) else stage)]
    table = {name: {"type": f"math_{name}", **(roles or {}).get(name, {})} for name in names}
    settings = {"type": "math", "verify": "numbers", "level": 1, **(env or {})}
    return coterie_run(answers, env=settings, order=order, roles=table, sandbox={"type": INLINE}, **tables)


def mathchat(request, prompt):
    """The executor writes a program, and from its output an answer that names its branch."""
    if request.key.role != "code_executor":
        return f"{box(1)} says {request.key.role}"
    return "It is done. " + box(2) if "program was run" in prompt else program("print('the output')")


def test_each_of_the_executor_s_two_turns_is_a_sample_in_its_own_context():
    """In the original every action after an agent's first is trained without the problem."""
    trees, _ = play_episode(run_of(mathchat, sampler=CHAINS, algorithm={"type": "grpo"}))
    tree = trees[0]
    nodes = list(tree.nodes())
    assert [next(iter(node.decisions)) for node in nodes] == [*CHAIN[:2], "code_executor", "verifier"]
    for node in nodes:
        [(role, decision)] = node.decisions.items()
        [action] = decision.branches
        [call] = action.calls
        [sample] = action_samples(node.key.of_branch(role, 0), decision, action, 1.0, 1.0, {})
        assert sample.token_ids.tolist() == list(call.prompt_ids + call.token_ids)
        assert sample.token_ids[sample.loss_mask].tolist() == list(call.token_ids)
        prompt = decision.messages[-1]["content"]
        assert tree.task.payload.text in prompt, f"{role} is trained with the problem"
    second = nodes[2].decisions["code_executor"].messages[-1]["content"]
    assert "You wrote:\nWe compute it." in second and "the output" in second
    assert "the output" not in nodes[1].decisions["code_executor"].messages[-1]["content"]


def test_a_loop_inside_one_action_is_one_action_of_two_calls():
    def answers(request, prompt):
        if request.key.role != "code_executor":
            return box(1)
        return box(2) if request.key.call else program("print('the output')")

    run = run_of(
        answers,
        env={"executor_loop": True},
        roles={"code_executor": {"tools": ["python"]}},
        tools={"python": {"type": "python"}},
        sampler=CHAINS,
        algorithm={"type": "grpo"},
    )
    trees, _ = play_episode(run)
    nodes = list(trees[0].nodes())
    assert [next(iter(node.decisions)) for node in nodes] == CHAIN
    [action] = nodes[1].decisions["code_executor"].branches
    assert len(action.calls) == 2 and "the output" in action.tool_results[0] and action.text == box(2)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"env": {"executor_loop": True}}, "env.executor_loop"),
        (
            {
                "env": {"executor_loop": True, "executor_turns": 2},
                "roles": {"code_executor": {"tools": ["python"]}},
                "tools": {"python": {"type": "python"}},
            },
            "env.executor_turns",
        ),
    ],
)
def test_a_loop_needs_tools_and_no_turns(settings, path):
    with pytest.raises(ConfigError) as caught:
        run_of(box(1), sampler=CHAINS, algorithm={"type": "grpo"}, **settings)
    assert caught.value.path == path


def test_the_pair_s_rewards_in_a_run_are_the_team_s_and_its_own():
    """AT-GRPO: alpha * team + local; the reasoner's .2 and .8, the tool's .1, .1 and .8."""
    run = run_of({"reasoner": box(1000), "tool": program("print(1000)")}, order=PAIR)
    assert isinstance(run.reward_weights, RewardWeights)
    assert run.reward_weights.weights == {
        **{"correct": 1.0, "right": 0.8, "format": 0.2, "builds": 0.1, "runs": 0.1, "sound": 0.0},
    }
    trees, _ = play_episode(run)
    assert trees[0].root.joints[0].terminated, "they agree"


def test_the_end_of_a_run_ends_the_verifier_s_workers(monkeypatch):
    pytest.importorskip("math_verify")
    from tests.plugins.envs.math.test_verifier import alive

    made = []
    monkeypatch.setattr(env_module, "Verifier", lambda **options: made.append(Verifier(**options)) or made[0])
    run = run_of(
        {"reasoner": box(r"\frac{1}{2} + x"), "tool": program("print(1)")}, order=PAIR, env={"verify": None}
    )
    [verifier] = made

    async def once() -> tuple[int, ...]:
        await run.rollout_side.open(run.engine_client)
        assert not await verifier.equal(r"\frac{1}{2} + x", "1")
        pids = verifier.pids
        await run.rollout_side.close()
        return pids

    pids = asyncio.run(once())
    assert pids and verifier.pids == ()
    until = time.monotonic() + 30  # a killed process is there until the kernel has ended it
    while any(map(alive, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)

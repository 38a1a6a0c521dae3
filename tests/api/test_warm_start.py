"""Demonstrations have the prompts that the roles get in play."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from coterie import TEAM, Plugin, PolicyFault, Step, SystemFault
from coterie.api.open_run import Oracle, open_run
from coterie.core.errors import ConfigError
from coterie.core.types import Task
from coterie.testing import coterie_run


class Counting(Plugin):
    """The oracle counts on from the last number; a stage of the environment's own follows an odd one."""

    roles = ()
    components = {"right": "increment"}
    weights = {}

    def tasks(self, split, seed):
        return [Task(id=f"{split}-{n}", payload=n) for n in range(3)]

    def reset(self, task, seed):
        return (task.payload,)

    def acting_roles(self, state):
        return () if len(state) > 5 else ("two",) if state[-1] % 2 else None

    def observe(self, state, role):
        return f"{role} after {state[-1]}"

    def demonstrate(self, state, role, noise, rng):
        return str(state[-1] + 1 + (rng.random() < noise))

    def diagnose(self, state, role):
        return f"the numbers are {state}"

    async def step(self, state, actions, ctx):
        total = max(int(action.text) for action in actions.values())
        return Step(state=(*state, total), scores={(TEAM, "right"): float(total)})

    def outcome(self, state):
        return {"success": 1.0}


class Teller(Plugin):
    """A role whose prompt has all that it may see; the second of the team remembers."""

    def __init__(self, config=None, build=None):
        super().__init__(config, build)
        self.remembers = build.name == "two"

    def render(self, role_input):
        seen = [
            role_input.role,
            str(role_input.turn),
            role_input.observation,
            *role_input.feedback,
            *(entry.action.text for entry in role_input.history),
        ]
        return [{"role": "user", "content": " | ".join(seen)}]

    def parse(self, text, observation):
        if text == "4000":
            raise PolicyFault("too large")
        return text


def answer(request, text):
    """What the oracle says: the number after the last `after` of the prompt, plus one."""
    return str(int(text.rpartition("after ")[2].split()[0]) + 1)


def toy(**tables):
    return coterie_run(
        answer,
        env={"type": f"{__name__}:Counting"},
        order=["one", "two"],
        max_turns=3,
        roles={name: {"type": f"{__name__}:Teller"} for name in ("one", "two")},
        transition="diagnosis",
        sampler={"branches": 1},
        algorithm={"type": "reinforce"},
        **tables,
    )


def demonstrated_and_played(run):
    async def go():
        await open_run(run)
        try:
            oracle = Oracle(run, ["p"], noise=0.0)
            demonstrations = [await oracle.play_game(0, 0, game) for game in range(12)]
            rollouts = await run.play(run.jobs(1, 3))
            return demonstrations, rollouts.trees
        finally:
            await run.close()

    return asyncio.run(go())


def test_the_prompts_of_a_warm_start_are_those_of_play():
    """With feedback, history, a role that remembers, and stages that the environment names."""
    demonstrations, trees = demonstrated_and_played(toy())
    played = {
        tree.task.payload: [
            (role, decision.prompt_ids, decision.branches[0].text)
            for node in tree.nodes()
            for role, decision in node.decisions.items()
        ]
        for tree in trees
    }
    games = [[(role, d.prompt_ids, d.completion) for role, d in game] for game in demonstrations]
    assert len(played) == 3 and all(len(moves) == 5 for moves in played.values())
    assert {role for moves in played.values() for role, _, _ in moves} == {"one", "two"}
    for game in games:
        assert game in played.values()
    assert all(any(game == moves for game in games) for moves in played.values())


def test_a_game_ends_where_the_transition_mode_gives_no_feedback():
    """Else the demonstration would have a prompt that play never has."""
    run = toy()

    def down(state, role):
        raise SystemFault("the feedback is down")

    run.environment.diagnose = down

    async def go():
        await open_run(run)
        try:
            return await Oracle(run, ["p"], noise=0.0).play_game(0, 0, 0)
        finally:
            await run.close()

    assert [role for role, _ in asyncio.run(go())] in (["one", "two"], ["two", "one"], ["one"], ["two"])


def test_an_oracle_that_its_role_can_not_read_is_told():
    run = toy()
    run.environment.demonstrate = lambda state, role, noise, rng: "4000"
    with pytest.raises(ConfigError, match="can't read the oracle's own message '4000'") as caught:
        demonstrated_and_played(run)
    assert caught.value.path in ("team.roles.one", "team.roles.two")


def test_noise_reaches_the_oracle():
    run = toy()
    drawn = []
    run.environment.demonstrate = lambda state, role, noise, rng: str(drawn.append((noise, rng)) or 2)

    async def go():
        await open_run(run)
        try:
            return await Oracle(run, ["p"], noise=0.3).play_game(0, 0, 0)
        finally:
            await run.close()

    asyncio.run(go())
    assert {noise for noise, _ in drawn} == {0.3} and isinstance(drawn[0][1], np.random.Generator)

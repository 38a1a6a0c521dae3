"""A cancellation that a plugin causes itself is its failure by name; that of the run is nobody's."""

from __future__ import annotations

import asyncio

import pytest

from coterie import Plugin
from coterie.api.open_run import open_run
from coterie.backends.executors.local import LocalExecutor
from coterie.core.errors import PluginError, TooManyMissing
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import NumberGame

HERE = __name__


async def cancelled():
    """What a plugin awaits that cancelled a task of its own."""
    task = asyncio.ensure_future(asyncio.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await task


class CancelledStep(NumberGame):
    async def step(self, state, actions, ctx):
        await cancelled()


def test_a_cancellation_of_an_environments_own_is_its_fault_as_any_bug_of_a_step_is():
    with pytest.raises(
        TooManyMissing, match=f"environment '{HERE}:CancelledStep' of tests: step raised Canc"
    ):
        play_episode(coterie_run(env={"type": f"{HERE}:CancelledStep"}, order=["one"]))


class Tool(Plugin):
    """A tool that is called by the text `use`."""

    name = "tool"

    def find(self, text):
        return "call" if text == "use" else None

    async def run(self, call):
        return "result"


class CancelledTool(Tool):
    async def run(self, call):
        await cancelled()


def test_a_cancellation_of_a_tools_own_is_a_system_fault_that_names_it():
    run = coterie_run(
        {"one": ["use", "1"]},
        order=["one"],
        roles={"one": {"tools": ["tool"]}},
        tools={"tool": {"type": f"{HERE}:CancelledTool"}},
        sampler={"branches": 2},
        schedule={"max_missing": 1.0},
    )
    trees, _ = play_episode(run)
    used, fine = (action.fault for action in trees[0].root.decisions["one"].branches)
    assert used.kind == "system" and fine is None
    assert f"tool '{HERE}:CancelledTool' of tests: run raised CancelledError" in used.reason


class CancelledPlay(LocalExecutor):
    async def play(self, job):
        await cancelled()


def test_a_cancellation_of_an_executors_own_ends_the_run_by_its_name():
    match = (
        f"executor '{HERE}:CancelledPlay' of tests: play raised CancelledError, though nobody cancelled it"
    )
    with pytest.raises(PluginError, match=match):
        play_episode(coterie_run(order=["one"], executor={"type": f"{HERE}:CancelledPlay"}))


@pytest.mark.parametrize("game", ["slow step", "slow tool"])
def test_a_cancelled_run_is_no_fault_of_a_plugin(monkeypatch, game):
    began = asyncio.Event()

    async def slow(*arguments):
        began.set()
        await asyncio.sleep(60)

    run = coterie_run(
        {"one": ["use", "use"]},
        order=["one"],
        roles={"one": {"tools": ["tool"]}},
        tools={"tool": {"type": f"{HERE}:Tool"}},
    )
    slow_one = run.environment if game == "slow step" else run.team.members["one"].tools[0]
    monkeypatch.setattr(slow_one, "step" if game == "slow step" else "run", slow)

    async def go():
        try:
            await open_run(run)
            playing = asyncio.ensure_future(run.play(run.jobs(1)))
            await began.wait()
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
        finally:
            await run.close()

    asyncio.run(go())

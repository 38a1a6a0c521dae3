"""What modes and environments may have beside their methods: counted metrics, the task left out."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from coterie import Finding, Plugin, PluginConfig, all_passed
from coterie.api.open_run import open_run
from coterie.core.config.resolved import table_digest
from coterie.core.errors import ConfigError, PluginError
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole, NumberGame

HERE = "tests.core.rollout.test_transition_members"


class Mode(Plugin):
    """Counts what it is asked, and may leave the task out."""

    class Config(PluginConfig):
        original_prompt: bool = True
        counts: Any = None

    def __init__(self, config, build):
        super().__init__(config, build)
        self.original_prompt = config.original_prompt
        self._asked = 0

    async def tell(self, role, state, history, environment):
        self._asked += 1
        return ("again",)

    def counted(self):
        asked, self._asked = self._asked, 0
        return {"mode/asked": asked} if self.config.counts is None else self.config.counts


class OmittingRole(EchoRole):
    """Writes whether its prompt has the task."""

    omits_task = True

    def render(self, role_input):
        return [{"role": "user", "content": f"turn {role_input.turn} task {role_input.shows_task}"}]


class RepeatingRole(OmittingRole):
    omits_task = False


class CountingGame(NumberGame):
    def counted(self):
        return {"game/steps": 1.0}


def run(*, mode=None, role="OmittingRole", env=None, max_turns=3):
    return coterie_run(
        order=["one"],
        max_turns=max_turns,
        roles={"one": {"type": f"{HERE}:{role}"}},
        transition={"type": f"{HERE}:Mode", **(mode or {})},
        sampler={"branches": 1},
        answers="1",
        algorithm={"type": "reinforce_pp", "beta": 0.0},
        **({"env": env} if env else {}),
    )


def test_the_role_is_told_to_leave_the_task_out_of_later_turns_only():
    (tree,), _ = play_episode(run(mode={"original_prompt": False}))
    texts = [d.messages[-1]["content"] for node in tree.nodes() for d in node.decisions.values()]
    assert texts == ["turn 0 task True", "turn 1 task False", "turn 2 task False"]


def test_a_role_that_repeats_the_task_anyway_is_refused_where_there_are_later_turns():
    with pytest.raises(ConfigError, match="states the task in every turn") as refused:
        run(mode={"original_prompt": False}, role="RepeatingRole")
    assert refused.value.path == "transition.original_prompt"
    run(mode={"original_prompt": False}, role="RepeatingRole", max_turns=1)


async def counted(made):
    """The sums of counts over one job."""
    try:
        await open_run(made)
        (rollout,) = (await made.play(made.jobs(1, 1))).rollouts
        return dict((await rollout.scored).metrics)
    finally:
        await made.close()


def test_counts_of_mode_and_environment_are_sums_of_the_step():
    counts = asyncio.run(counted(run(env={"type": f"{HERE}:CountingGame"})))
    assert counts == {"mode/asked": 2.0, "game/steps": 3.0}, "a first decision isn't told"


@pytest.mark.parametrize("counts", [{"success": 1.0}, {"mode/asked": "many"}, [1]])
def test_counts_that_are_no_metrics_name_the_mode(counts):
    with pytest.raises(PluginError, match="counted returned"):
        play_episode(run(mode={"counts": counts}))


def test_findings_pass_together_and_remarks_do_not_count():
    good, bad = Finding(name="a", passed=True), Finding(name="b", passed=False)
    remark = Finding(name="c", passed=None)
    assert all_passed((good, remark)) and not all_passed((good, bad)) and not all_passed((remark,))
    assert not all_passed(())


def test_the_digests_of_the_modes_that_tell_nothing_and_revise_are_those_of_their_hashed_words():
    recorded = json.dumps({"deterministic": True, "transition": {"type": "plain"}}, sort_keys=True)
    digests = [
        table_digest({"deterministic": True, "transition": {"type": name}}) for name in ("none", "plain")
    ]
    assert digests[0] == hashlib.sha256(recorded.encode()).hexdigest() != digests[1]

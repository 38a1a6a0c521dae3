"""Changed teams in games whose answer is known by construction."""

from __future__ import annotations

import asyncio
import logging

import pytest

import coterie
from coterie.api.compare import Changes
from coterie.compose import compose
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.protocols import RolloutJob
from coterie.core.types import Key, Sampling, Task
from coterie.recipes import load
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import ROLE, EchoRole
from examples.signals import WORDS, Signals

ASKED: list[str] = []
"""Roles of the engine's requests; a test clears the list."""


class Signalling(EchoRole):
    """An empty message is a fault."""

    def parse(self, text, observation):
        if not text:
            raise PolicyFault("said nothing")
        return text


def talks(request, prompt):
    """`mouth` maps numbers to words, `ear` words to numbers; both answer 0 to anything else."""
    ASKED.append(request.key.role)
    heard = prompt.split()
    by_number = dict(zip("012", WORDS, strict=False))
    known = by_number if request.policy == "mouth" else {word: number for number, word in by_number.items()}
    return next((known[word] for word in heard if word in known), "0")


def signals(role_type=ROLE, **tables):
    """A team that understands all 3 numbers."""
    role = {"type": role_type}
    return {
        "env": {"type": "examples.signals:Signals", "numbers": 3},
        "team": {
            "order": ["speaker", "listener"],
            "roles": {"speaker": {**role, "policy": "mouth"}, "listener": {**role, "policy": "ear"}},
        },
        "policies": {name: {"model": {"init": "none"}, "train": "none"} for name in ("mouth", "ear")},
        "sampler": {"branches": 2},
        "algorithm": {"type": "at_grpo"},
        "engine": {"type": "scripted", "play": "tests.api.test_compare:talks"},
        "trainer": {"type": "none"},
        "schedule": {"steps": 1},
        **tables,
    }


@pytest.mark.parametrize("role_type", [ROLE, "tests.api.test_compare:Signalling"])
def test_without_its_speaker_the_team_knows_what_a_constant_guess_knows(role_type):
    """Of 3 numbers, saying 0 to all is right for one, also where the parser calls silence a fault."""
    ASKED.clear()
    evaluation = coterie.evaluate(signals(role_type), null=["speaker"], samples=2)
    comparison = evaluation.comparison
    assert evaluation.success.mean == comparison.base.mean == 1.0
    assert comparison.changed.mean == pytest.approx(1 / 3)
    assert comparison.per_task == {"test-0": 0.0, "test-1": -1.0, "test-2": -1.0}
    assert comparison.difference.mean == pytest.approx(-2 / 3)
    assert comparison.difference.p == pytest.approx(4 / 8), (
        "of 8 ways to flip (0, -1, -1), 4 are as far from 0"
    )
    assert comparison.team == {"speaker": None, "listener": "ear"}
    assert ASKED.count("speaker") == 6 and ASKED.count("listener") == 12, "silence costs no call"


def test_a_role_that_the_result_does_not_depend_on_is_worth_nothing():
    engine = {"type": "scripted", "play": "tests.api.test_compare:gives"}
    config = signals(env={"type": "tests.games:HandOver"}, engine=engine)
    roles = config["team"]["roles"]
    config["team"] = {
        "order": ["giver", "taker"],
        "roles": {"giver": roles["speaker"], "taker": roles["listener"]},
    }
    taker, giver = (coterie.evaluate(config, null=[role]).comparison for role in ("taker", "giver"))
    assert (taker.base.mean, taker.changed.mean, set(taker.per_task.values())) == (1.0, 1.0, {0.0})
    assert (giver.changed.mean, set(giver.per_task.values())) == (0.0, {-1.0})


def gives(request, prompt):
    return "a"


def test_swapped_the_ear_speaks_the_mouth_listens_and_nothing_is_understood():
    """Neither knows the other's words. The ear says `0`, and the mouth hears a number and answers `ba`."""
    comparison = coterie.evaluate(signals(), swap=("speaker", "listener")).comparison
    assert comparison.team == {"speaker": "ear", "listener": "mouth"}
    assert (comparison.base.mean, comparison.changed.mean, comparison.difference.mean) == (1.0, 0.0, -1.0)
    assert comparison.difference.p == pytest.approx(2 / 8), "only all signs alike are as far from 0"


def test_what_a_null_hands_over():
    """An empty action without calls; what its parser makes of it; no prompt ids, and no training."""
    run = coterie_run(answers="1")
    job = RolloutJob(task=Task(id="t"), evaluation=True, policies={"one": None})
    ctx = run.rollout_side.context(job, run.engine_client)

    async def go():
        request = await ctx.ask("one", (), 0, (), Sampling())
        return request, await ctx.act(Key("t").of_branch("one", 0), request)

    request, action = asyncio.run(go())
    assert request.prompt.ids == () and request.messages
    assert (action.calls, action.text, action.parsed, action.fault) == ((), "", "", None)
    decision = request.decision((action,), trainable=False)
    assert decision.policy == ""


def test_training_play_is_what_it_was():
    trees, _ = play_episode(coterie_run())
    decisions = [decision for tree in trees for node in tree.nodes() for decision in node.decisions.values()]
    assert decisions and all(action.calls for decision in decisions for action in decision.branches)


def test_policies_come_first_then_the_swap_then_silence():
    run = compose(load(signals()))
    order = Changes({"speaker": "external"}, ("speaker", "listener"), ("speaker",))
    assert order.team(run) == {"speaker": None, "listener": "external"}
    assert [change["change"] for change in order.as_list()] == ["policy", "swap", "null"]
    assert not Changes() and Changes().team(run) == {"speaker": "mouth", "listener": "ear"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"null": ("speaker", "listener")}, "all roles are silenced"),
        ({"null": ("speeker",)}, "did you mean 'speaker'"),
        ({"swap": ("speaker", "listner")}, "did you mean 'listener'"),
        ({"swap": ("speaker", "speaker")}, "changes nothing"),
        ({"policies": {"speaker": "x", "listener": "x"}, "swap": ("speaker", "listener")}, "changes nothing"),
        ({"policies": {"speaker": "x"}, "null": ("speaker",)}, "nothing uses the policy for 'speaker'"),
        (
            {"policies": {"speaker": "x", "listener": "x"}, "null": ("speaker",)},
            "nothing uses the policy for 'speaker'",
        ),
        (
            {
                "policies": {"speaker": "x"},
                "swap": ("speaker", "listener"),
                "null": ("listener",),
            },
            "'listener', which would be played by it, is silent",
        ),
    ],
)
def test_changes_that_make_no_sense(changes, message):
    with pytest.raises(ConfigError) as caught:
        Changes(**changes).team(compose(load(signals())))
    assert message in str(caught.value)


def test_tasks_that_one_team_alone_could_finish_are_left_out_and_that_is_said(caplog):
    """The environment breaks on a word that only the unchanged team says."""
    config = signals(schedule={"steps": 1, "max_missing": 1.0})
    config["env"] = {"type": "tests.api.test_compare:Fragile", "numbers": 3}
    with caplog.at_level(logging.WARNING, "coterie"):
        comparison = coterie.evaluate(config, null=["speaker"]).comparison
    assert comparison.base.n == 2 and comparison.changed.n == 3 and comparison.difference.n == 2
    assert list(comparison.per_task) == ["test-0", "test-2"]
    assert "1 tasks were finished by one of the two teams only" in caplog.text


class Fragile(Signals):
    """Breaks on the word for 1."""

    async def step(self, state, actions, ctx):
        if any(action.text == WORDS[1] for action in actions.values()):
            raise SystemFault("the world broke")
        return await super().step(state, actions, ctx)

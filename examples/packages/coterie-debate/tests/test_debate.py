"""The game, its prompts, and who is paid for what: by the team's judge, and by a model from outside."""

from unittest import mock

import coterie_debate
import pytest
from coterie_debate.follower import Follower

import coterie
from coterie import ChatAnswer, TooManyMissing
from coterie.testing import (
    build,
    check_chat_model,
    check_environment,
    check_plugin,
    check_reward,
    check_role,
    coterie_run,
    play_episode,
)

GAME = {"type": "debate", "rounds": 2, "tasks": 8}
ROLES = {"pro": {"type": "debater"}, "con": {"type": "debater"}, "judge": {"type": "debate_judge"}}
ORDER = [["pro", "con", "judge"]]


PANEL = {"type": "debate_panel", "model": {"type": "debate_follower"}}


def undecided():
    """A model whose answer is no verdict."""
    return mock.patch.object(Follower, "answer", mock.AsyncMock(return_value=ChatAnswer(text="hard to say")))


def debate(judge, reward, rounds=1):
    """One step's trees and scores, where both sides name a source."""
    run = coterie_run(
        {"pro": "source", "con": "source", "judge": judge},
        env={**GAME, "rounds": rounds},
        order=ORDER,
        roles=ROLES,
        rewards={"environment": {"type": "environment"}, "debaters": reward},
        sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"},
    )
    return play_episode(run, tasks=8)


def paid(scores, component):
    """By (task, chain): the pay by role."""
    table = {}
    for key, role, name, score in scores:
        if name == component:
            table.setdefault((key.task, key.chain), {})[role] = score.value
    return table


def follow(request, prompt):
    """A judge that follows sources."""
    return "pro" if "pro source" in prompt else "con"


def test_a_judge_that_follows_sources_is_right_and_pays_the_side_that_is():
    trees, scores = debate(follow, {"type": "debate_verdict"})
    convinced, correct = paid(scores, "convinced"), paid(scores, "correct")
    for tree in trees:
        place, truth = (tree.task.id, tree.chain), tree.task.payload
        assert correct[place] == {"judge": 1.0}
        assert convinced[place] == {side: 1.0 if side == truth else -1.0 for side in ("pro", "con")}


def test_the_debaters_pay_adds_up_to_zero_whatever_the_judge_says():
    for judge in ("pro", "con", "both"):
        _, scores = debate(judge, {"type": "debate_verdict"})
        for pay in paid(scores, "convinced").values():
            assert sum(pay.values()) == 0.0 and (judge != "both" or set(pay.values()) == {0.0})


def test_the_judge_sees_what_became_of_the_sources_and_not_the_truth():
    trees, _ = debate("pro", {"type": "debate_verdict"}, rounds=2)
    for tree in trees:
        prompts = {
            (role, node.stage): decision.messages[-1]["content"]
            for node in tree.nodes()
            for role, decision in node.decisions.items()
        }
        right = tree.task.payload == "pro"
        heard = "pro source con no-such-source" if right else "pro no-such-source con source"
        assert prompts["judge", 2] == f"judge {heard} {heard}"
        stance = "right" if right else "wrong"
        assert prompts["pro", 0] == f"pro {stance}" and prompts["pro", 1] == f"pro {stance} {heard}"


def test_a_panel_pays_as_a_judge_and_answers_without_a_verdict_stop_the_run():
    trees, scores = debate("con", PANEL)
    pays = paid(scores, "panel")
    for tree in trees:
        assert pays[tree.task.id, tree.chain][tree.task.payload] == 1.0
    with undecided(), pytest.raises(TooManyMissing, match="neither pro nor con"):
        debate("con", PANEL)


def test_the_kit():
    environment = build("environment", GAME, order=ORDER)
    roles = {role: build("role", table, name=role, env=GAME) for role, table in ROLES.items()}
    texts = ["source", "rhetoric", "pro", "con", "maybe"]
    check_environment(environment, roles=list(ROLES), act=texts, role_plugins=roles)
    seen = {"right": True, "heard": [("source", "nothing")]}
    check_role(roles["pro"], observations=[seen], good=["source"])
    check_role(roles["judge"], observations=[{**seen, "right": None}], good=["pro"])
    arguments = {"environment": environment, "roles": list(ROLES), "act": texts, "role_plugins": roles}
    check_reward(build("reward", "debate_verdict", env=GAME), **arguments)
    check_reward(build("reward", PANEL, env=GAME), outage=undecided, **arguments)
    check_chat_model(build("chat_model", "debate_follower"))
    check_plugin(coterie_debate)


def test_the_smoke_recipe_learns_to_follow_sources(tmp_path):
    assert coterie.train("debate-smoke", out=tmp_path / "run").metrics["eval/success"] > 0.7

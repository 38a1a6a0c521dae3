"""Environment `writing`: its game, its forms of a team, its reward, what it tells."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError, DataError, PolicyFault, SystemFault
from coterie.core.types import Fault, RoleInput, all_passed
from coterie.testing import build, check_environment, check_reward, check_role, coterie_run, play_episode
from tests.plugins.envs.code.support import data_of
from tests.plugins.envs.writing.test_measures import FIRST, words
from tests.plugins.support import action, context

PAIR = [["first", "second"]]
POSTS = [
    {"id": f"p{n}", "prompt": f"SUBREDDIT: r/dogs\nPOST: my dog ate {n} cakes.\nTL;DR:"} for n in range(3)
]
LONG = f"However the cake was also eaten {words(18)}"
BOTH = f"{FIRST}\n---\n{LONG}"
ACT = [FIRST, LONG, BOTH, "short", words(300)]


def tables(folder):
    return {"data": data_of(folder, train=POSTS[:1], val=POSTS[1:2], test=POSTS[2:])}


def made(folder, order=None, kind="tldr", **settings):
    return build(
        "environment", {"type": "writing", "kind": kind, **settings}, order=order or PAIR, **tables(folder)
    )


def played(folder, turns, order=None, **settings):
    """(steps, outcome, environment, state) of turns in which the roles answer so."""

    async def go():
        env = made(folder, order, **settings)
        task = env.tasks("train", 0)[0]
        state, steps = env.reset(task, 0), []
        for turn, texts in turns:
            step = await env.step(state, {r: action(t) for r, t in texts.items()}, context(task, turn))
            state = step.state
            steps.append(step)
        return steps, env.outcome(state), env, state

    return asyncio.run(go())


@pytest.mark.parametrize("order", [PAIR, ["first", "second"], ["solver"]])
@pytest.mark.parametrize("kind", ["tldr", "arxiv"])
def test_the_environment_conforms(tmp_path, order, kind):
    roles = ["solver"] if order == ["solver"] else ["first", "second"]
    env = made(tmp_path, order, kind)
    check_environment(env, roles=roles, order=order, act=ACT, episodes=4, turns=2, disjoint="content")


@pytest.mark.parametrize("name", ["first", "second", "solver"])
@pytest.mark.parametrize("kind", ["tldr", "arxiv"])
def test_roles_conform(tmp_path, name, kind):
    order = ["solver"] if name == "solver" else PAIR
    env = made(tmp_path, order, kind)
    role = build(
        "role",
        f"writing_{name}",
        name=name,
        order=order,
        env={"type": "writing", "kind": kind},
        **tables(tmp_path),
    )
    seen = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
    check_role(role, observations=[seen], good=[BOTH], feedback=["Length: out of range"], name=name)
    bad = "one text" if name == "solver" else "  \n"
    with pytest.raises(PolicyFault):
        role.parse(bad, seen)


def test_the_reward_conforms(tmp_path):
    reward = build(
        "reward", "writing", env={"type": "writing", "kind": "tldr"}, order=PAIR, **tables(tmp_path)
    )
    check_reward(
        reward, environment=made(tmp_path), roles=["first", "second"], order=PAIR, act=ACT, episodes=3
    )


def reward_of(folder, texts, order=None, **settings):
    """The components of a turn."""
    order = order or PAIR
    names = list(texts)
    run = coterie_run(
        texts,
        env={"type": "writing", "kind": "tldr"},
        order=order,
        roles={name: {"type": f"writing_{name}"} for name in names},
        rewards={"writing": {"type": "writing", **settings}},
        **tables(folder),
    )
    _, scores = play_episode(run)
    values = {name: score.value for _, role, name, score in scores if role == "team"}
    return values


def test_components_are_levels_and_add_up_to_three(tmp_path):
    reward = build(
        "reward", "writing", env={"type": "writing", "kind": "tldr"}, order=PAIR, **tables(tmp_path)
    )
    assert reward.weights == {"structure": 0.5, "length": 1.0, "vocabulary": 0.5, "style": 1.0, "shift": 1.0}
    scaled = build(
        "reward", {"type": "writing", "scale": 2.0, "shift": -1.0},
        env={"type": "writing", "kind": "tldr"}, order=PAIR, **tables(tmp_path),
    )  # fmt: skip
    assert scaled.weights["length"] == 2.0 and sum(scaled.weights.values()) == 7.0
    [step], outcome, _, _ = played(tmp_path, [(0, {"first": FIRST, "second": LONG})])
    # .4 x (.4 + .05) for two kinds of transition words, and .6: the overlap is above its cap.
    full = {"structure": 1.0, "length": 1.0, "vocabulary": 1.0, "style": pytest.approx(0.78)}
    assert step.info["writing"] == full
    assert outcome["success"] == 1.0 and outcome["style"] == pytest.approx(0.78)
    assert json.loads(json.dumps(step.info)) == step.info, "plain data"
    values = reward_of(tmp_path, {"first": FIRST, "second": LONG}, shift=-1.0)
    assert values == {**full, "shift": -1.0}


def test_a_failed_level_leaves_the_later_ones_out(tmp_path):
    values = reward_of(tmp_path, {"first": FIRST, "second": words(8)})
    assert values == {"structure": 1.0, "length": 0.0, "vocabulary": 0.0, "style": 0.0, "shift": 0.0}
    values = reward_of(tmp_path, {"first": "short", "second": LONG})
    assert set(values.values()) == {0.0}


def test_a_single_agent_writes_both(tmp_path):
    _, outcome, _, _ = played(tmp_path, [(0, {"solver": BOTH})], ["solver"])
    assert outcome["success"] == 1.0
    _, spaced, _, _ = played(tmp_path, [(0, {"solver": f"{FIRST}\n  --- \n{LONG}"})], ["solver"])
    assert spaced == outcome, "white space around the line makes no difference"
    values = reward_of(tmp_path, {"solver": BOTH}, ["solver"])
    assert values["style"] == pytest.approx(0.78)
    _, outcome, _, _ = played(tmp_path, [(0, {"solver": f"{FIRST} {LONG}"})], ["solver"])
    assert outcome["structure"] == 0.0, "without the line there is no second text, and nothing is cut"


def test_texts_are_measured_once_both_are_written_in_the_turn(tmp_path):
    turns = [(0, {"first": FIRST}), (0, {"second": LONG}), (1, {"first": FIRST})]
    steps, outcome, _, _ = played(tmp_path, turns, ["first", "second"])
    assert ["writing" in step.info for step in steps] == [False, True, False]
    assert outcome["turns"] == 2.0 and outcome["success"] == 1.0


def told(env, state, role="first", tests=0):
    return asyncio.run(env.findings(state, role, tests))


def test_findings_are_the_levels_up_to_the_one_that_failed(tmp_path):
    _, _, env, state = played(tmp_path, [(0, {"first": FIRST, "second": LONG})])
    assert [f.name for f in told(env, state)] == ["structure", "length", "vocabulary", "style"]
    assert all_passed(told(env, state)) and asyncio.run(env.diagnose(state, "first")) == ""
    _, _, env, state = played(tmp_path, [(0, {"first": FIRST, "second": words(8)})])
    assert [(f.name, f.passed) for f in told(env, state)] == [("structure", True), ("length", False)]
    assert asyncio.run(env.diagnose(state, "second")) == (
        "Length: out of range; the second has 0.84 times the first's, 1.6 to 3.2 is asked for"
    )
    _, _, env, state = played(tmp_path, [(0, {"first": "no", "second": words(8)})])
    assert told(env, state)[0].details == (
        "Words of each text: out of range; the first has 1 and the second 8, each needs 8 to 256",
    )
    assert told(env, env.reset(env.tasks("train", 0)[0], 0)) == ()


def test_there_are_no_tests_to_choose_from(tmp_path):
    _, _, env, state = played(tmp_path, [(0, {"first": FIRST, "second": LONG})])
    with pytest.raises(ConfigError, match="nothing reads this") as refused:
        told(env, state, tests=1)
    assert refused.value.path == "transition.sandbox_slice"


@pytest.mark.parametrize("mode", ["plain", "passed", "level_passed", "level_feedback"])
def test_every_mode_tells_the_second_turn(tmp_path, mode):
    run = coterie_run(
        {"first": FIRST, "second": words(8)},
        env={"type": "writing", "kind": "tldr"},
        order=PAIR,
        roles={name: {"type": f"writing_{name}"} for name in ("first", "second")},
        rewards={"writing": {"type": "writing"}},
        max_turns=2,
        transition={"type": mode},
        **tables(tmp_path),
    )
    trees, _ = play_episode(run)
    prompts = [
        decision.messages[-1]["content"]
        for node in trees[0].nodes()
        if node.turn == 1
        for decision in node.decisions.values()
    ]
    wanted = {"plain": FIRST, "passed": "Not all levels passed", "level_passed": "Length: out of range",
              "level_feedback": "1.6 to 3.2 is asked for"}  # fmt: skip
    assert any(wanted[mode] in prompt for prompt in prompts)
    assert all("my dog ate 0 cakes" in prompt for prompt in prompts), "the task is stated again"


def test_prompts_state_the_range_of_words_and_what_to_write(tmp_path):
    for kind, name, text in (
        ("tldr", "second", "8 to 256 words"),
        ("arxiv", "first", "background and motivation"),
    ):
        env = made(tmp_path, kind=kind)
        role = build(
            "role",
            f"writing_{name}",
            name=name,
            order=PAIR,
            env={"type": "writing", "kind": kind},
            **tables(tmp_path),
        )
        seen = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
        asked = RoleInput(observation=seen, history=(), feedback=(), role=name, turn=0)
        assert text in role.render(asked)[-1]["content"]


@pytest.mark.parametrize(("record", "why"), [
    ({"prompt": " "}, "empty or missing"), ({}, "empty or missing"), ({"prompt": 3}, "is no text"),
    ({"prompt": "a", "title": ["b"]}, "'title' is no text"),
])  # fmt: skip
def test_a_wrong_record_names_its_place(tmp_path, record, why):
    env = build(
        "environment",
        {"type": "writing", "kind": "tldr"},
        order=PAIR,
        data=data_of(tmp_path, train=[POSTS[0], record]),
    )
    with pytest.raises(DataError, match=why) as refused:
        env.tasks("train", 0)
    assert refused.value.line == 2 if hasattr(refused.value, "line") else "train.jsonl" in str(refused.value)


def test_sources_that_repeat_are_told_with_their_places(tmp_path, caplog):
    data = data_of(tmp_path, train=[*POSTS[:2], {**POSTS[0], "id": "again"}])
    env = build("environment", {"type": "writing", "kind": "tldr"}, order=PAIR, data=data)
    places = [env.place(task) for task in env.tasks("train", 0)]
    assert [place.rpartition(":")[2] for place in places] == ["1", "2", "3"]
    told = f"1 of 3 problems repeat another's content under an id of their own: {places[2]} (= {places[0]})"
    assert told in caplog.text


@pytest.mark.parametrize("order", [["first"], ["first", "second", "solver"], ["third"]])
def test_other_teams_are_refused(tmp_path, order):
    with pytest.raises(ConfigError, match=r"are no team|no role 'third'"):
        made(tmp_path, order)


def test_a_lost_action_is_no_answer(tmp_path):
    env = made(tmp_path)
    task = env.tasks("train", 0)[0]
    lost = replace(action(FIRST), fault=Fault(kind="system", reason="aborted"))
    with pytest.raises(SystemFault):
        asyncio.run(env.step(env.reset(task, 0), {"first": lost, "second": action(LONG)}, context(task)))

"""A prompt that outgrows the context: `team.overflow`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging

import pytest

from coterie.api.open_run import Oracle, open_run
from coterie.api.rollouts import rollout_rows
from coterie.api.train import train
from coterie.compose.evaluation_sets import first_tasks
from coterie.core.errors import ConfigError, TooManyMissing
from coterie.core.protocols import Batch, SiblingsView
from coterie.core.rollout.turns import without_oldest
from coterie.core.training.evaluation import evaluate
from coterie.core.training.metrics import step_metrics
from coterie.core.training.samples import samples_of
from coterie.core.types import TEAM, Credit, Key
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import GAME, ROLE

CHAIN = {"branches": 1, "chains": 1}
CONTEXT = 60


def words(request, prompt):
    """A long answer; the prompts of a role that remembers grow by about 20 words a turn."""
    return "1 b c d e f"


def unequal(request, prompt):
    """Role one writes much, role two little."""
    return "1 b c d e f g h i j k l m n" if request.key.role == "one" else "1"


def table(view):
    return {(TEAM, "judge"): 1.0} | {(role, "own"): 0.5 for role in view.actions}


def one(view):
    """Every action, joint action or episode pays 1."""
    return [1.0] * len(view.actions) if isinstance(view, SiblingsView) else 1.0


def judge(scope="joint", **settings):
    return {"type": "function", "function": f"{__name__}:one", "scope": scope, "floor": -3.0, **settings}


def small(order=("one",), *, context=CONTEXT, overflow="floor", remembers=True, sampler=CHAIN, turns=6,
          algorithm="reinforce", play=words, **tables):  # fmt: skip
    names = [name for stage in order for name in ([stage] if isinstance(stage, str) else stage)]
    return coterie_run(
        order=list(order),
        roles={name: {"remembers": remembers} for name in names},
        engine={
            "type": "tests.games:SmallContext",
            "context": context,
            "play": f"{__name__}:{play.__name__}",
        },
        sampler={**sampler, "sampling": {"max_new_tokens": 12}},
        algorithm={"type": algorithm},
        team={"max_turns": turns, "overflow": overflow},
        **tables,
    )


def longest(trees):
    return max(len(d.prompt_ids) for tree in trees for node in tree.nodes() for d in node.decisions.values())


def tree_turns(tree):
    """The turn in which the last stage of a chain was due."""
    return list(tree.nodes())[-1].turn


def credit_of(run, trees, scores):
    batch = Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    return run.estimator(batch, None)[0]


def test_an_episode_ends_with_floors_where_its_prompt_outgrows_the_context(caplog):
    run = small(rewards={"judge": judge()})
    with caplog.at_level(logging.WARNING, "coterie"):
        trees, scores = play_episode(run, tasks=3)
    told = [record.message for record in caplog.records]
    assert len(told) == 1 and "team.overflow=truncate_oldest" in told[0] and "episodes/overflow" in told[0]
    assert "the prompt of role 'one' has" in told[0] and "context of policy 'p' 60" in told[0]
    assert longest(trees) < CONTEXT
    for tree in trees:
        *played, last = tree.nodes()
        assert played and not last.decisions and last.turn == len(played) < 5
        ((key, joint),) = tree.leaves()
        assert joint.fault.kind == "policy" and joint.truncated and not joint.terminated
        assert not joint.lost and joint.outcome["success"] == 0.0 and joint.branches == {}
        (floor,) = scores.at(key).values()
        assert floor.value == -3.0 and floor.floor
    metrics = step_metrics(trees, scores, None, run.reward_weights, run.team)
    assert metrics["episodes/overflow"] == 3.0 == metrics["faults/policy"]
    assert metrics["episodes/missing"] == metrics["faults/system"] == 0.0
    assert metrics["reward/one"] == 1.0  # of what was played
    rows = [row for row in rollout_rows(trees, scores, None, run.reward_weights) if row["kind"] == "joint"]
    faults = [row for row in rows if row["fault"]]
    assert [row["turn"] for row in faults] == [tree_turns(tree) for tree in trees]
    assert [row["branches"] for row in faults] == [{}] * 3 and "outgrow" not in faults[0]["rule"]
    assert all(row["scores"] == {"team.judge": -3.0} for row in faults)


def test_an_episode_that_fits_counts_nothing():
    run = small(context=10_000)
    trees, scores = play_episode(run)
    assert "episodes/overflow" not in step_metrics(trees, scores, None, run.reward_weights)
    assert len(list(trees[0].nodes())) == 6


@pytest.mark.parametrize("scope", ["action", "siblings", "joint", "episode"])
def test_the_floor_counts_for_what_led_there_and_the_earlier_pay_stays(scope):
    """One action a turn pays 1 (but of scope episode, which pays once); the floor of -3 ends the episode."""
    run = small(rewards={"judge": judge(scope)})
    trees, scores = play_episode(run)
    *played, _ = trees[0].nodes()
    credit = credit_of(run, trees, scores)
    pay = 0.0 if scope == "episode" else 1.0
    count = len(played)
    for index, node in enumerate(played):
        assert credit.returns[node.key.of_branch("one", 0)] == pay * (count - index) - 3.0
    assert set(credit.advantage) == {node.key.of_branch("one", 0) for node in played}


def test_branches_that_are_compared_with_each_other_get_no_floor():
    """AT-GRPO's reward of a branch is its own: what the next prompt becomes is not part of it."""
    sampler, judged = {"branches": 3}, {"judge": judge("action")}
    ended, rest = (
        small(algorithm="at_grpo", sampler=sampler, rewards=judged, context=context, turns=turns)
        for context, turns in ((CONTEXT, 6), (10_000, 3))
    )
    (trees, scores), (others, other_scores) = play_episode(ended), play_episode(rest)
    count = len(list(trees[0].nodes())) - 1
    assert count == 3 == len(list(others[0].nodes()))
    assert credit_of(ended, trees, scores).advantage == credit_of(rest, others, other_scores).advantage


def test_all_children_of_a_node_may_overflow():
    run = small(sampler={"branches": 3, "expand": "all"}, algorithm="magrpo", rewards={"judge": judge()})
    trees, scores = play_episode(run)
    leaves = list(trees[0].leaves())
    assert len(leaves) == 27 and all(joint.fault.kind == "policy" for _, joint in leaves)
    credit = credit_of(run, trees, scores)
    assert len(credit.advantage) == 3 + 9 + 27
    assert set(credit.returns.values()) == {1.0 - 3.0, 2.0 - 3.0, 3.0 - 3.0}


def test_a_role_that_acts_beside_the_one_whose_prompt_overflows_is_not_sampled():
    components = dict.fromkeys(("judge", "own"), "increment")
    judged = {"judge": judge(per_role=["own"], components=components) | {"function": f"{__name__}:table"}}
    run = small([["one", "two"]], play=unequal, rewards=judged, context=76)
    trees, scores = play_episode(run)
    *played, last = trees[0].nodes()
    assert played and not last.decisions
    cell = scores.at(last.key.of_joint(0))
    assert set(cell) == {("one", "own"), (TEAM, "judge")}


@pytest.mark.parametrize("scope", ["action", "siblings", "joint", "episode"])
def test_the_floor_of_a_single_actions_source_is_the_roles_whose_prompt_overflowed(scope):
    run = small([["one", "two"]], play=unequal, rewards={"judge": judge(scope)}, context=76)
    trees, scores = play_episode(run)
    *_, last = trees[0].nodes()
    owner = "one" if scope in ("action", "siblings") else TEAM
    assert set(scores.at(last.key.of_joint(0))) == {(owner, "judge")}


@pytest.mark.parametrize("overflow", ["floor", "truncate_oldest"])
def test_a_first_prompt_that_does_not_fit_is_missing_since_no_policy_caused_it(overflow):
    run = small(context=2, overflow=overflow, rewards={"judge": judge()})
    with pytest.raises(TooManyMissing) as caught:
        asyncio.run(_evaluated(run))
    assert "the prompt of role 'one' has" in str(caught.value) and "use a longer context" in str(caught.value)
    run = small(context=2, overflow=overflow, rewards={"judge": judge()}, schedule={"max_missing": 1.0})
    trees, scores = play_episode(run)
    assert not trees[0].root.expanded and trees[0].root.joints[0].lost
    metrics = step_metrics(trees, scores, None, run.reward_weights)
    assert metrics["episodes/missing"] == 1.0 and "episodes/overflow" not in metrics
    assert not credit_of(run, trees, scores).advantage


def test_stop_is_an_error_of_the_run():
    with pytest.raises(ConfigError, match="does not fit"):
        play_episode(small(overflow="stop"))
    with pytest.raises(ConfigError, match=r"team\.overflow"):
        small(overflow="cut")


@pytest.mark.parametrize("overflow", ["floor", "truncate_oldest"])
def test_a_role_that_does_not_remember_has_nothing_to_drop(overflow):
    run = small(remembers=False, overflow=overflow, context=40, turns=9)
    trees, scores = play_episode(run)
    assert step_metrics(trees, scores, None, run.reward_weights)["episodes/overflow"] == 1.0
    assert longest(trees) < 40


def test_truncate_oldest_keeps_the_task_and_the_newest_turns():
    run = small(overflow="truncate_oldest", turns=9, context=90)
    trees, _ = play_episode(run)
    nodes = list(trees[0].nodes())
    assert len(nodes) == 9 and longest(trees) < 90
    decisions = [node.decisions["one"] for node in nodes]
    task = decisions[0].messages
    pairs = enumerate(itertools.pairwise(decisions), 1)
    cut = [i for i, (a, b) in pairs if b.messages[: len(a.messages)] != a.messages]
    assert cut
    for index, decision in enumerate(decisions):
        assert decision.messages[: len(task)] == task
        (call,) = decision.branches[0].calls
        assert call.continues is (index > 0 and index not in cut)
        assert call.prompt_ids == decision.prompt_ids
    first = decisions[cut[0]]
    said = [message["role"] for message in first.messages]
    assert said[:2] == ["user", "user"] and said[-1] == "user"  # the first answer went, with its turn
    assert len(first.prompt_ids) + 12 <= 90  # room for an answer


def test_no_more_turns_go_than_must():
    """A turn has about 20 words, an answer at most 12: without two turns at most, all fits."""
    trees, _ = play_episode(small(overflow="truncate_oldest", turns=12, context=150))
    decisions = [node.decisions["one"] for node in trees[0].nodes()]
    answers = [sum(message["role"] == "assistant" for message in decision.messages) for decision in decisions]
    cut = next(turn for turn, count in enumerate(answers) if count != turn)
    assert cut > 4 and answers[cut] >= cut - 2


def test_a_truncated_prompt_starts_a_new_sample_whose_ids_were_sampled():
    run = small(overflow="truncate_oldest", turns=6)
    trees, _ = play_episode(run)
    keys = [node.key.of_branch("one", 0) for node in trees[0].nodes()]
    samples = samples_of_all(trees, keys)
    assert len(samples) == len(keys) == 6
    for sample, node in zip(samples, trees[0].nodes(), strict=True):
        (call,) = node.decisions["one"].branches[0].calls
        assert tuple(sample.token_ids) == call.prompt_ids + call.token_ids


def samples_of_all(trees, keys):
    for tree in trees:
        for node in tree.nodes():
            for decision in node.decisions.values():
                object.__setattr__(decision, "trainable", True)
    return samples_of(trees, Credit(advantage=dict.fromkeys(keys, 1.0)))["p"]


@pytest.mark.parametrize(("said", "first", "now", "left"), [
    ("suauau", 2, 5, ["su|uau", "su|u"]),
    ("suattauau", 2, 8, ["su|uau", "su|u"]),  # tool results go with the turn that they belong to
    ("suuauau", 2, 6, ["su|uau", "su|u"]),  # the first turn went already
    ("uauuau", 1, 5, ["u|uuau", "u|u"]),  # a role may render two messages in a turn
    ("ua", 1, 2, []),
])  # fmt: skip
def test_whole_oldest_turns_go(said, first, now, left):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[letter], "content": str(index)} for index, letter in enumerate(said)]
    fewer = list(without_oldest(messages, first, now))
    assert ["".join(m["role"][0] for m in each) for each in fewer] == [each.replace("|", "") for each in left]
    assert all(list(each[:first]) == messages[:first] for each in fewer)
    assert all(list(each[first:]) == messages[len(messages) - len(each) + first :] for each in fewer)


async def _evaluated(run):
    await open_run(run)
    try:
        return await evaluate(run, "val", first_tasks(run.environment, "val", 3, run.config.seed))
    finally:
        await run.close()


def test_an_evaluation_counts_it_too():
    metrics = asyncio.run(_evaluated(small())).metrics
    assert metrics["episodes/overflow"] == 3.0


@pytest.mark.parametrize("overflow", ["floor", "truncate_oldest"])
def test_a_run_goes_on_and_a_resumed_one_is_the_same(tmp_path, overflow):
    role = {"type": ROLE, "policy": "p", "remembers": True}

    def of(steps):
        return {
            "env": {"type": GAME},
            "team": {"order": ["one", "two"], "max_turns": 5, "overflow": overflow,
                     "roles": {"one": role, "two": role}},
            "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
            "sampler": {"branches": 2, "sampling": {"max_new_tokens": 12}},
            "algorithm": "at_grpo",
            "engine": {"type": "tests.games:SmallContext", "context": 80, "play": f"{__name__}:words"},
            "trainer": "none",
            "schedule": {"steps": steps, "tasks_per_step": 2, "checkpoint_every": 1},
        }  # fmt: skip

    train(of(3), out=tmp_path / "whole")
    train(of(1), out=tmp_path / "parts")
    train(resume=tmp_path / "parts", overrides=["schedule.steps=3"])
    for name in ("step-000002", "step-000003"):
        whole, parts = (
            (tmp_path / run / "rollouts" / f"{name}.jsonl.gz").read_bytes() for run in ("whole", "parts")
        )
        assert whole == parts
    rows = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    counted = "episodes/overflow" if overflow == "floor" else "prompts/truncated"
    assert [row[counted] > 0 for row in rows] == [True] * 3


@pytest.mark.parametrize("overflow", ["floor", "truncate_oldest", "stop"])
def test_the_games_of_a_warm_start_end_where_the_context_does(overflow):
    run = coterie_run(
        env={"type": "tests.games:Counted", "stages": 30, "per_turn": 1},
        order=["one"],
        roles={"one": {"remembers": True}},
        engine={"type": "tests.games:SmallContext", "context": CONTEXT, "play": f"{__name__}:words"},
        sampler={**CHAIN, "sampling": {"max_new_tokens": 12}},
        algorithm={"type": "reinforce"},
        team={"max_turns": 30, "overflow": overflow},
    )

    async def demonstrations():
        await run.open()
        try:
            oracle = Oracle(run, ["p"], 0.0, asyncio.get_running_loop())
            return await asyncio.to_thread(oracle.batch, 0, 30)
        finally:
            await run.close()

    lengths = [len(demonstration.prompt_ids) for demonstration in asyncio.run(demonstrations())]
    games = lengths.count(min(lengths))  # the first prompt of a game is the shortest
    if overflow == "floor":
        assert 1 < games < 30 and max(lengths) < CONTEXT
    elif overflow == "truncate_oldest":
        assert games == 1 and max(lengths) < CONTEXT
    else:  # the trainer refuses what doesn't fit
        assert games == 1 and max(lengths) > CONTEXT


def test_a_warm_start_without_a_demonstration_that_fits_says_why():
    run = small(env={"type": "tests.games:Counted", "stages": 3}, context=4)

    async def demonstrations():
        await run.open()
        try:
            oracle = Oracle(run, ["p"], 0.0, asyncio.get_running_loop())
            return await asyncio.to_thread(oracle.batch, 0, 1)
        finally:
            await run.close()

    with pytest.raises(ConfigError, match="too rarely") as caught:
        asyncio.run(demonstrations())
    assert "context" in str(caught.value)


def test_a_key_of_the_overflow_is_that_of_the_child():
    trees, _ = play_episode(small())
    *_, before, last = trees[0].nodes()
    assert last.key == before.key.child(0) and isinstance(last.key, Key) and last.state_digest
    assert last.state_digest == before.joints[0].state_digest

"""The rollout side plays the same in any process; what passes between the two sides is a value."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from coterie.api.open_run import open_run
from coterie.backends.executors.local import LocalExecutor
from coterie.backends.models.policy import TrainingFields
from coterie.backends.trainers.none import NoTrainer
from coterie.compose.evaluation_sets import first_tasks
from coterie.core.errors import PluginError, TooManyMissing
from coterie.core.loop import train
from coterie.core.protocols import RolloutJob
from coterie.core.training.evaluation import evaluate
from coterie.core.types import Task, Weights
from coterie.core.types.digest import digest
from coterie.plugins.rewards.function import FunctionReward
from coterie.plugins.samplers.tree import TreeSampler
from coterie.testing import coterie_run
from tests.cli.support import plugin_package
from tests.core.rollout import spawned

PLUGIN = '''
"""A game of numbers in which a role learns what it wrote last, judged once it is over."""

from coterie import Plugin, PluginConfig, Step, TEAM, Task, hookimpl
from coterie.backends.models.policy import TrainingFields
from coterie.backends.trainers.none import NoTrainer
from coterie.plugins.rewards.function import FunctionReward
from coterie.plugins.samplers.tree import TreeSampler


class Numbers(Plugin):
    class Config(PluginConfig):
        step: int = 1

    roles = ()
    components = {"sum": "increment"}
    weights = {}

    def tasks(self, split, seed):
        return [Task(id=f"{split}-{n}", payload=n) for n in range(8)]

    def reset(self, task, seed):
        return (seed % 5,)

    def acting_roles(self, state):
        return None

    def observe(self, state, role):
        return state[-1]

    async def step(self, state, actions, ctx):
        total = sum(len(action.text) for action in actions.values()) + ctx.seed % 3 + self.config.step
        return Step(state=(*state, total), scores={(TEAM, "sum"): total / 10})

    def outcome(self, state):
        return {"success": float(state[-1] % 2)}

    def diagnose(self, state, role):
        return f"the last number was {state[-1]}"

    def vocabulary(self):
        return ["a", "b", "c"]


class Writer(Plugin):
    def render(self, role_input):
        lines = [str(role_input.observation), *role_input.feedback]
        return [{"role": "user", "content": " ".join(lines)}]

    def parse(self, text, observation):
        return text


class Judge(Plugin):
    scope = "episode"
    components = {"judged": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        return {(TEAM, "judged"): len(view.path) + view.leaf.outcome["success"]}


class Slow(Judge):
    scope = "action"
    components = {"slow": "increment"}
    background = True

    async def score(self, view):
        return {(view.role, "slow"): float(len(view.action.text))}


class Counting(TreeSampler):
    async def play(self, task, epoch, chain, ctx):
        ctx.count("numbers/trees")
        return await super().play(task, epoch, chain, ctx)


def answer(request, text):
    return " ".join("abc"[request.seed % 3] * (1 + request.seed % 4))


@hookimpl
def register_environments(register):
    register("numbers", Numbers)


@hookimpl
def register_roles(register):
    register("writer", Writer)


@hookimpl
def register_rewards(register):
    register("judge", Judge)
    register("slow", Slow)


@hookimpl
def register_samplers(register):
    register("counting", Counting)
'''
CONFIG = """
env: {type: numbers, curriculum: {field: step, values: [2, 1], promote_at: 0.01, window: 4}}
team:
  order: [one, [two, three]]
  max_turns: 2
  roles:
    one: {type: writer, policy: shared}
    two: {type: writer, policy: shared}
    three: {type: writer, policy: other}
policies:
  shared: {model: {init: tabular}, train: TRAIN}
  other: {model: {init: tabular}, train: TRAIN}
rewards:
  environment: {}
  judge: {}
  slow: {}
transition: diagnosis
sampler: {type: counting, chains: 2, branches: 2, expand: all, sampling: {max_new_tokens: 3}}
algorithm: magrpo
trackers: {}
schedule: {steps: 2, tasks_per_step: 2}
"""
CONFIGS = {
    "scripted": CONFIG.replace("TRAIN", "none")
    + "engine: {type: scripted, play: 'numbers_plugin:answer'}\ntrainer: none\n",
    "tabular": CONFIG.replace("TRAIN", "full") + "engine: tabular\ntrainer: tabular\n",
}


def test_a_spawned_process_plays_the_same_trees_to_the_same_scores(tmp_path, monkeypatch):
    """The plugin is installed for both processes; this one has loaded its plugins already."""
    monkeypatch.syspath_prepend(plugin_package(tmp_path, "numbers-plugin", PLUGIN))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as learning, ProcessPoolExecutor(1, context) as other:
        for engine, text in CONFIGS.items():
            file = tmp_path / f"{engine}.yaml"
            file.write_text(text)
            played = learning.submit(spawned.learn, file).result(timeout=120)
            answers = other.submit(spawned.play, file, played.jobs, played.weights).result(timeout=120)
            check_same(engine, played, answers)


def check_same(engine, played, answers):
    assert {weight.version for weight in played.weights} == {2 if engine == "tabular" else 0}
    assert {job.level for job in played.jobs} == {1, None}
    assert len(answers) == len(played.jobs) == 7
    for (tree, scores, metrics), (same_tree, same_scores, same_metrics) in zip(
        played.rollouts, answers, strict=True
    ):
        assert digest(same_tree) == digest(tree)
        assert list(same_scores) == list(scores) and len(scores)
        assert same_metrics == metrics
    assert answers[0][2] == {"numbers/trees": 1.0}
    assert {component for _, _, component, _ in answers[0][1]} == {"sum", "judged", "slow"}


class Counting(TreeSampler):
    """Counts the trees that it plays."""

    async def play(self, task, epoch, chain, ctx):
        ctx.count("toy/trees")
        return await super().play(task, epoch, chain, ctx)


def test_what_plugins_count_is_summed_in_the_row():
    run = coterie_run(
        answers="1", sampler={"type": f"{__name__}:Counting", "chains": 3, "branches": 2}, trackers={}
    )

    async def go():
        await open_run(run)
        try:
            return await train(run)
        finally:
            await run.close()

    assert asyncio.run(go())["toy/trees"] == 2 * 3


def test_a_count_never_hides_a_metric_of_the_framework():
    run = coterie_run(answers="1")

    async def go():
        await open_run(run)
        try:
            rollouts = await run.play(run.jobs(1, 1))
            scores = await run.score(rollouts)
            for rollout in rollouts.rollouts:
                (await rollout.scored).metrics["tokens/generated"] = 0.0
            credit, _ = run.estimator(batch(run, rollouts, scores), None)
            return run.metrics(1, rollouts, scores, credit, {})
        finally:
            await run.close()

    with pytest.raises(PluginError, match="the metric 'tokens/generated'"):
        asyncio.run(go())


def batch(run, rollouts, scores):
    from coterie.core.protocols import Batch

    return Batch(trees=rollouts.trees, scores=scores, annotations={}, reward_weights=run.reward_weights)


def test_jobs_and_results_are_values():
    job = RolloutJob(task=Task(id="t", payload=3), versions={"p": 2}, policies={"one": None})
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize("wanted", [1, -1], ids=["older", "newer"])
def test_other_weights_are_missing_scores_and_never_samples(wanted):
    """The engine holds version 0, and the step asks for another."""
    run = coterie_run(answers="1")

    async def go():
        await open_run(run)
        try:
            jobs = [replace(job, versions={"p": wanted}) for job in run.jobs(1, 1)]
            rollouts = await run.play(jobs)
            actions = rollouts.trees[0].root.decisions["one"].branches
            reasons = {action.fault.reason for action in actions}
            assert reasons == {f"the engine has no version {wanted} of 'p', and no lease kept it"}
            assert not any(action.trainable for action in actions)
            await run.score(rollouts)
        finally:
            await run.close()

    with pytest.raises(TooManyMissing):
        asyncio.run(go())


def test_an_evaluation_with_other_weights_has_no_scores(monkeypatch):
    """The trainer's weights are of version 1, and the engine never got them."""
    run = coterie_run(answers="1")

    async def go():
        await open_run(run)
        try:
            monkeypatch.setattr(run.trainer, "weights", lambda policy: Weights(policy=policy, version=1))
            await evaluate(run, "val", first_tasks(run.environment, "val", 1, run.config.seed))
        finally:
            await run.close()

    with pytest.raises(TooManyMissing, match="no version 1 of 'p'"):
        asyncio.run(go())


async def slowly(view):
    await asyncio.sleep(0.1)
    return 1.0


class Background(FunctionReward):
    background = True


LATE = {
    "type": f"{__name__}:Background",
    "function": f"{__name__}:slowly",
    "components": {"late": "increment"},
}


def run_with_late_scores():
    """No selection needs the slow source's scores."""
    rewards, sampler = {"environment": {}, "late": LATE}, {"branches": 2, "expand": "sampled"}
    return coterie_run(answers="1", rewards=rewards, sampler=sampler)


def test_a_rollouts_scores_wait_for_the_background():
    run = run_with_late_scores()

    async def go():
        await open_run(run)
        try:
            rollouts = await run.play(run.jobs(1, 1))
            early = [rollout.scored.done() for rollout in rollouts.rollouts]
            return early, await run.score(rollouts)
        finally:
            await run.close()

    early, scores = asyncio.run(go())
    assert not any(early), "the trees don't wait for it"
    assert any(component == "late" and score.value == 1.0 for _, _, component, score in scores)


def test_closing_a_run_cancels_what_is_still_being_scored():
    run = run_with_late_scores()

    async def go():
        await open_run(run)
        try:
            rollouts = await run.play(run.jobs(1, 1))
        finally:
            await run.close()
        return [rollout.scored.cancelled() for rollout in rollouts.rollouts]

    assert asyncio.run(go()) == [True]


def test_decisions_of_an_evaluation_are_not_trainable():
    run = coterie_run(answers="1", policies={"p": {"model": {"init": "none"}}}, trainer={
        "type": "tests.core.rollout.test_two_sides:Idle"})  # fmt: skip

    async def go():
        await open_run(run)
        try:
            jobs = run.jobs(1, 1)
            trained = await run.play(jobs)
            evaluated = await run.play([replace(job, evaluation=True) for job in jobs])
            return [
                {decision.trainable for node in tree.nodes() for decision in node.decisions.values()}
                for tree in (*trained.trees, *evaluated.trees)
            ]
        finally:
            await run.close()

    assert asyncio.run(go()) == [{True}, {False}]


class Idle(NoTrainer):
    """A trainer without weights, for any policy."""

    Policy = TrainingFields

    async def open(self, ctx):
        pass


class NotAsync(LocalExecutor):
    def open(self, ctx): ...


class BareScores(LocalExecutor):
    """An executor whose rollouts have scores without the side's metrics."""

    async def play(self, job):
        rollout = await super().play(job)
        scored = asyncio.get_running_loop().create_future()
        scored.set_result((await rollout.scored).scores)
        return replace(rollout, scored=scored)


@pytest.mark.parametrize(("executor", "what", "fix"), [
    (NotAsync, "`open` is no coroutine function", "async def open(self, ctx: ExecutorContext) -> None"),
    (BareScores, "play returned", "the side's ScoredRollout"),
])  # fmt: skip
def test_a_wrong_executor_is_named_with_what_to_write(executor, what, fix):
    async def go(run):
        try:
            await open_run(run)
            await train(run)
        finally:
            await run.close()

    with pytest.raises(PluginError) as error:
        asyncio.run(go(coterie_run(answers="1", executor={"type": f"{__name__}:{executor.__name__}"})))
    assert what in str(error.value) and fix in error.value.fix and executor.__name__ in str(error.value)


def test_a_side_is_closed_without_a_loop():
    """As that of a run which is stopped at once, whose loop has ended."""
    asyncio.run(asyncio.sleep(0))
    with pytest.raises(StopIteration):
        coterie_run().rollout_side.close().send(None)

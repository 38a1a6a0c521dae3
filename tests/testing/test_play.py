"""What `check_sampler`, `check_engine` and `check_trainer` catch."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.wordcodec import word_id
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import SystemFault
from coterie.core.types import TEAM, Call, Score
from coterie.core.types.digest import ids_sha256
from coterie.plugins.samplers.tree import TreeSampler
from coterie.testing import check_engine, check_sampler, check_trainer
from tests.testing.support import caught

TICK = itertools.count()
NOTHING = ids_sha256(())


def sampler(**members: Any) -> Any:
    kind = type("Broken", (TreeSampler,), members)
    return kind(TreeSampler.Config(branches=2), None)


def root(change: Any) -> Any:
    """`play` with a changed root."""

    async def play(self: Any, task: Any, epoch: int, chain: int, ctx: Any) -> Any:
        tree = await TreeSampler.play(self, task, epoch, chain, ctx)
        changed = change(tree.root)
        return dataclasses.replace(tree, root=dataclasses.replace(tree.root, **changed))

    return play


def first_joint(**changes: Any) -> Any:
    return root(lambda node: {"joints": (dataclasses.replace(node.joints[0], **changes), *node.joints[1:])})


def first_decision(change: Any) -> Any:
    def changed(node: Any) -> Any:
        role, decision = next(iter(node.decisions.items()))
        return {"decisions": {**node.decisions, role: dataclasses.replace(decision, **change(decision))}}

    return root(changed)


async def leaves_a_rollout_active(self, task, epoch, chain, ctx):
    ctx.engine.active_rollouts.start()
    return await TreeSampler.play(self, task, epoch, chain, ctx)


async def ignores_the_chain(self, task, epoch, chain, ctx):
    tree = await TreeSampler.play(self, task, epoch, 0, ctx)
    return dataclasses.replace(tree, chain=chain, root=dataclasses.replace(
        tree.root, key=tree.root.key._replace(chain=chain)))  # fmt: skip


class SameSeed:
    """An engine that replaces the seed of every request by one number."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.codec, self.gather = inner, inner.codec, inner.gather

    async def generate(self, request: Any) -> Call:
        return await self.inner.generate(dataclasses.replace(request, seed=5))


async def one_seed(self, task, epoch, chain, ctx):
    return await TreeSampler.play(
        self, task, epoch, chain, dataclasses.replace(ctx, engine=SameSeed(ctx.engine))
    )


async def requests_twice(self, task, epoch, chain, ctx):
    tree = await TreeSampler.play(self, task, epoch, chain, ctx)
    await ctx.engine.generate(ctx.engine.engine.requests[0])
    return tree


async def scores_more(self, task, epoch, chain, ctx):
    tree = await TreeSampler.play(self, task, epoch, chain, ctx)
    ctx.scores.add(tree.root.key.of_joint(9), TEAM, "sum", Score(0.0))
    return tree


async def raises_on_a_lost_call(self, task, epoch, chain, ctx):
    tree = await TreeSampler.play(self, task, epoch, chain, ctx)
    for node in tree.nodes():
        for decision in node.decisions.values():
            if any(action.fault for action in decision.branches):
                raise SystemFault("a call was lost")
    return tree


@pytest.mark.parametrize(("members", "message"), [
    ({"play": root(lambda node: {"expanded": (7,)})}, "expanded is (7,)"),
    ({"play": root(lambda node: {"expanded": ()})}, "is not among the expanded"),
    ({"play": root(lambda node: {"rule": ""})}, "no rule says why"),
    ({"play": root(lambda node: {"rule": f"rule {next(TICK)}"})}, "two trees"),
    ({"play": root(lambda node: {"key": node.key._replace(epoch=3)})}, "the root is"),
    ({"play": root(lambda node: {"decisions": {}})}, "no role acts"),
    ({"play": root(lambda node: {"turn": 2})}, "end the chain at team.max_turns"),
    ({"play": first_joint(branches={"planner": 5})}, "its branches are {'planner': 5}"),
    ({"play": first_joint(branches={})}, "its branches are {}"),
    ({"play": first_joint(child=None)}, "ended without outcome"),
    ({"play": first_decision(lambda decision: {"prompt_sha256": "x"})}, "prompt_sha256"),
    ({"play": first_decision(lambda old: {"prompt_ids": (), "prompt_sha256": NOTHING})}, "had another"),
    ({"play": leaves_a_rollout_active}, "left 1 rollouts active"),
    ({"play": ignores_the_chain}, "child's key is"),
    ({"play": one_seed}, "two chains share draws"),
    ({"play": requests_twice}, "requested a call twice"),
    ({"play": scores_more}, "not in the tree"),
    ({"play": raises_on_a_lost_call}, "raised SystemFault"),
    ({"for_evaluation": lambda self, greedy: self}, "no best of K"),
    ({"sampling": lambda self, role: {"temperature": 1.0}}, "returned {'temperature': 1.0}"),
    ({"plan": "tree"}, "plan: is 'tree'"),
])  # fmt: skip
def test_a_broken_sampler_is_caught(members, message):
    caught(message, check_sampler, sampler(**members))


def test_a_plan_that_lies_is_caught():
    class Lying(TreeSampler):
        @property
        def plan(self) -> Any:
            return dataclasses.replace(super().plan, branches=2)

    lying: Any = Lying(Lying.Config(branches=3), None)
    caught("says 2 branches, and 'planner' got 3", check_sampler, lying)


def test_a_greedy_evaluation_that_draws_is_caught():
    def sampled(self: Any, greedy: bool) -> Any:
        return TreeSampler.for_evaluation(self, False)

    caught("with greedy=True", check_sampler, sampler(for_evaluation=sampled))


# ------------------------------------------------------------------------------------------------- engines


def engine(change: Any) -> Any:
    """The tabular engine with changed calls; `change` maps (request, call) to fields."""

    class Broken(TabularEngine):
        async def generate(self, request: Any) -> Call:
            call = await super().generate(request)
            return dataclasses.replace(call, **change(request, call))

    return Broken()


def runs(change: Any) -> Any:
    """An engine whose calls have version runs, made from (version, tokens)."""
    return engine(lambda request, call: {"version_runs": change(call.version, len(call.token_ids))})


class SyncGenerate(TabularEngine):
    def generate(self, request: Any) -> Any:
        return None


class SyncLoad(TabularEngine):
    def load_weights(self, weights: Any) -> Any:
        return None


class ByRow(TabularEngine):
    """Draws keyed by the row of the batch, not by the request."""

    def _generate(self, policy: str, requests: Any) -> Any:
        reseeded = [dataclasses.replace(request, seed=row) for row, request in enumerate(requests)]
        return super()._generate(policy, reseeded)


def with_sampling(requests: Any, **changes: Any) -> Any:
    """The requests with other sampling settings."""
    return [
        dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, **changes))
        for request in requests
    ]


class Unbounded(TabularEngine):
    def _generate(self, policy: str, requests: Any) -> Any:
        return super()._generate(policy, with_sampling(requests, max_new_tokens=40))


class Warm(TabularEngine):
    """Reads temperature 0 as 1."""

    def _generate(self, policy: str, requests: Any) -> Any:
        return super()._generate(policy, with_sampling(requests, temperature=1.0))


class Unready(TabularEngine):
    async def load_weights(self, weights: Any) -> None:
        raise SystemFault("no device")


class Undecoded(TabularEngine):
    def codec(self, policy: str) -> Any:
        codec = super().codec(policy)
        codec.decode = lambda call: call.token_ids
        return codec


def check_tabular(tabular: Any) -> None:
    check_engine(tabular, model={"init": "tabular"})


@pytest.mark.parametrize(("broken", "message"), [
    (engine(lambda request, call: {"prompt_ids": call.prompt_ids[:-1]}), "other prompt_ids"),
    (engine(lambda request, call: {"logprobs": call.logprobs[:-1]}), "log-probs for"),
    (engine(lambda request, call: {"logprobs": tuple(-value for value in call.logprobs)}), "a log-prob of"),
    (engine(lambda request, call: {"version": 0}), "has version 0, loaded was 3"),
    (engine(lambda request, call: {"version": "3"}), "with version '3'"),
    (runs(lambda version, tokens: ((version, tokens + 1),)), "and version_runs ((3, "),
    (runs(lambda version, tokens: ((version, tokens), (version, 0))), "(3, 0))"),
    (runs(lambda version, tokens: (version, tokens)), "and version_runs (3, "),
    (runs(lambda version, tokens: [(version, tokens)]), "and version_runs [(3, "),
    (runs(lambda version, tokens: ((version + 1, tokens),)), "and version_runs ((4, "),
    (runs(lambda version, tokens: ((3, 1), *[(5, tokens - 1)] * (tokens > 1))), "version_runs names [5]"),
    (SyncGenerate(), "generate: is not asynchronous"),
    (SyncLoad(), "load_weights: is not asynchronous"),
    (engine(lambda request, call: {"continues": False}), "another `continues`"),
    (engine(lambda request, call: {"finish": "eos"}), "finish is 'eos'"),
    (engine(lambda request, call: {"finish": "length"}), "finish is 'length' after"),
    (engine(lambda request, call: {"token_ids": (), "logprobs": ()}), "0 tokens"),
    (engine(lambda request, call: {"token_ids": (*call.token_ids[:-1], random.randrange(9**9))}), "gave ("),
    (engine(lambda request, call: {"logprobs": (*call.logprobs[:-1], -random.random())}), "differ by"),
    (ByRow(), "the same request gave"),
    (Unbounded(), "tokens where max_new_tokens is 1"),
    (Warm(), "the seed changes the tokens"),
    (Unready(), "load_weights: raised SystemFault"),
    (Undecoded(), "decode: returned ("),
])  # fmt: skip
def test_a_broken_engine_is_caught(broken, message):
    caught(message, check_tabular, broken)


def test_version_runs_that_add_up_pass():
    check_engine(runs(lambda version, tokens: ((version, tokens),)), model={"init": "tabular"}, leases=False)


def test_an_engine_that_lacks_something_is_caught():
    caught("lacks load_weights", check_tabular, type("Bare", (), {
        name: lambda self: None for name in ("open", "generate", "codec", "close")})())  # fmt: skip


# ------------------------------------------------------------------------------------------------ trainers


class TrainsAll(TabularTrainer):
    async def update(self, samples: Any, step: int) -> Any:
        every = [sample for rows in samples.values() for sample in rows]
        return await super().update(dict.fromkeys(self.policies, every), step)


class TrainsNothing(TabularTrainer):
    async def update(self, samples: Any, step: int) -> Any:
        return {policy: {"loss": 0.0} for policy in samples}


class DropsTheOptimiser(TabularTrainer):
    def load(self, folder: Any) -> None:
        super().load(folder)
        for policy in self.policies.values():
            policy.moments.first = {}


class LoadsNothing(TabularTrainer):
    def load(self, folder: Any) -> None:
        pass


class Unversioned(TabularTrainer):
    def weights(self, policy: str) -> Any:
        return dataclasses.replace(super().weights(policy), version=0)


class ReturnsNaN(TabularTrainer):
    async def update(self, samples: Any, step: int) -> Any:
        metrics = await super().update(samples, step)
        return {policy: {**row, "loss": float("nan")} for policy, row in metrics.items()}


class RandomDigest(TabularTrainer):
    def digest(self) -> Any:
        return {policy: str(next(TICK)) for policy in self.policies}


class OneDigest(TabularTrainer):
    def digest(self) -> Any:
        return {"one": super().digest()["one"]}


class AnnotatesAll(TabularTrainer):
    async def annotate(self, samples: Any, what: str) -> Any:
        return {sample.key: np.zeros(len(sample.token_ids)) for sample in samples}


class AnnotatesProbabilities(TabularTrainer):
    async def annotate(self, samples: Any, what: str) -> Any:
        return {key: np.exp(row) for key, row in (await super().annotate(samples, what)).items()}


class OldIsNew(TabularTrainer):
    async def annotate(self, samples: Any, what: str) -> Any:
        return await super().annotate(samples, "ref_logprobs" if what == "old_logprobs" else what)


class ReferenceMoves(TabularTrainer):
    async def annotate(self, samples: Any, what: str) -> Any:
        return await super().annotate(samples, "old_logprobs" if what == "ref_logprobs" else what)


class LearnsNoValues(TabularTrainer):
    async def update(self, samples: Any, step: int) -> Any:
        without = {
            policy: [dataclasses.replace(row, extras={**row.extras, "targets": row.extras["values"]})
                     if "targets" in row.extras else row for row in rows]
            for policy, rows in samples.items()
        }  # fmt: skip
        return await super().update(without, step)


def with_batches(**changes: Any) -> Any:
    """A trainer that gives its loss a changed batch."""

    async def open(self: Any, ctx: Any) -> None:
        def loss(xp: Any, tokens: Any) -> Any:
            return ctx.loss(xp, dataclasses.replace(tokens, **{k: f(tokens) for k, f in changes.items()}))

        for name in ("length", "entropy", "needs"):
            setattr(loss, name, getattr(ctx.loss, name))
        await TabularTrainer.open(self, dataclasses.replace(ctx, loss=loss))

    return type("Broken", (TabularTrainer,), {"open": open})


class FailsToOpen(TabularTrainer):
    async def open(self, ctx: Any) -> None:
        raise SystemFault("no device")


@pytest.mark.parametrize(("kind", "message"), [
    (TrainsAll, "trained 'two'"),
    (TrainsNothing, "left the digest of"),
    (DropsTheOptimiser, "continues differently"),
    (LoadsNothing, "didn't load"),
    (Unversioned, "raise the version"),
    (ReturnsNaN, "one/loss is nan"),
    (RandomDigest, "differs between two trainers"),
    (OneDigest, "names ['one']"),
    (AnnotatesAll, "tokens (ref_logprobs)"),
    (AnnotatesProbabilities, "above 0"),
    (OldIsNew, "the same old_logprobs after an update"),
    (ReferenceMoves, "other ref_logprobs after an update"),
    (LearnsNoValues, "no nearer"),
    (with_batches(sequence=lambda tokens: None), "no sequence ids"),
    (with_batches(sequence=lambda tokens: tokens.sequence + 1), "numbered 6 sequences [1 2 3 4 5 6]"),
    (with_batches(sequence=lambda tokens: np.arange(len(tokens.sequence)),
           sequences=lambda tokens: len(tokens.sequence)), "where 6 samples have"),
    (with_batches(old=lambda tokens: None), "gave the loss no old_logprobs"),
    (FailsToOpen, "open: raised SystemFault"),
])  # fmt: skip
def test_a_broken_trainer_is_caught(kind, message):
    words = ("left", "right", "up", "down")
    caught(
        message,
        check_trainer,
        lambda: kind(kind.Config(optimizer="adam", learning_rate=0.1)),
        model={"init": "tabular"},
        token_ids=[word_id(word) for word in words],
    )


def test_checks_need_no_running_loop_of_their_own():
    asyncio.run(asyncio.to_thread(check_sampler, TreeSampler(TreeSampler.Config(), None)))

"""What `check_estimator` and `check_loss` catch."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.core.protocols import Plan, Surrogate
from coterie.core.types import Key
from coterie.plugins.algos.at_grpo import ATGRPO
from coterie.plugins.algos.blocks.estimator import GroupEstimator
from coterie.plugins.algos.blocks.groups import by_decision
from coterie.plugins.algos.grpo import GRPO
from coterie.testing import check_estimator, check_loss
from tests.testing.support import caught

TICK = itertools.count()


def after(change: Any) -> Any:
    """AT-GRPO with a change of its credit."""

    class Broken(ATGRPO):
        def __call__(self, batch: Any, state: Any) -> Any:
            credit, state = super().__call__(batch, state)
            return change(credit, batch), state

    return Broken()


def with_advantage(change: Any) -> Any:
    return after(lambda credit, batch: dataclasses.replace(credit, advantage=change(dict(credit.advantage))))


def with_fields(change: Any) -> Any:
    return after(lambda credit, batch: dataclasses.replace(credit, **change(credit.advantage)))


def zero_for_missing(credit: Any, batch: Any) -> Any:
    """The classic mistake: a number where the scores are missing."""
    every = {key: 0.0 for group in by_decision(batch) for row in group.rows for key in row.branches}
    return dataclasses.replace(credit, advantage={**every, **credit.advantage})


def by_position(credit: Any, batch: Any) -> Any:
    first = next(iter(credit.advantage))
    return dataclasses.replace(credit, advantage={**credit.advantage, first: 9.0})


def drops_scores(credit: Any, batch: Any) -> Any:
    batch.trees[0].root.decisions.clear()
    return credit


class WithState(ATGRPO):
    """A sound estimator: the state holds a scale of the credit."""

    def __call__(self, batch: Any, state: Any) -> Any:
        credit, _ = super().__call__(batch, None)
        scale = 1.0 if state is None else state["scale"]
        advantage = {key: value * scale for key, value in credit.advantage.items()}
        return dataclasses.replace(credit, advantage=advantage), {"scale": scale / 2}


class Unwritten(WithState):
    def __call__(self, batch: Any, state: Any) -> Any:
        credit, state = super().__call__(batch, state)
        return credit, {"scale": np.float32(state["scale"])}


class IntKeys(ATGRPO):
    """A state with integer keys, which JSON turns into texts."""

    def __call__(self, batch: Any, state: Any) -> Any:
        credit, _ = super().__call__(batch, None)
        scale = 1.0 if state is None else state.get(0, 3.0)
        return dataclasses.replace(credit, advantage={k: v * scale for k, v in credit.advantage.items()}), {
            0: 0.5
        }


class Hoards(ATGRPO):
    def __call__(self, batch: Any, state: Any) -> Any:
        state = [] if state is None else state
        state.append(1)
        return super().__call__(batch, state)


class Remembers(ATGRPO):
    def __call__(self, batch: Any, state: Any) -> Any:
        credit, state = super().__call__(batch, state)
        return dataclasses.replace(
            credit, advantage={k: v + next(TICK) for k, v in credit.advantage.items()}
        ), state


class PerToken(ATGRPO):
    """A sound estimator with one advantage a token."""

    def __call__(self, batch: Any, state: Any) -> Any:
        credit, state = super().__call__(batch, state)
        tokens = {
            node.key.of_branch(role, branch): sum(len(call.token_ids) for call in action.calls)
            for tree in batch.trees
            for node in tree.nodes()
            for role, decision in node.decisions.items()
            for branch, action in enumerate(decision.branches)
        }
        spread = {key: np.full(tokens[key], value) for key, value in credit.advantage.items()}
        return dataclasses.replace(credit, advantage=spread), state


class Fussy(GroupEstimator):
    def check(self, plan: Any, team: Any) -> None:
        raise ConfigError("never")


class Crashes(GroupEstimator):
    def check(self, plan: Any, team: Any) -> None:
        raise KeyError("planner")


def test_sound_ones_pass():
    for estimator in (ATGRPO(), GRPO(), WithState(), PerToken()):
        check_estimator(estimator, seeds=1)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: after(zero_for_missing), "its scores are missing"),
    (lambda: after(by_position), "order of the trees"),
    (lambda: after(drops_scores), "changed the trees"),
    (lambda: with_advantage(lambda all: {key: float("nan") for key in all}), "is nan"),
    (lambda: with_advantage(lambda all: {**all, Key("train-9"): 1.0}), "no such branch"),
    (lambda: with_advantage(lambda all: {**all, "train-9": 1.0}), "advantage of 'train-9': there is no such"),
    (lambda: with_advantage(lambda all: {tuple(key): 1.0 for key in all}), "there is no such branch"),
    (lambda: with_advantage(list), "advantage: is a list"),
    (lambda: with_advantage(dict.fromkeys), "is None"),
    (lambda: with_fields(lambda advantage: {"metrics": ["spread"]}), "metrics: is a list"),
    (lambda: with_fields(lambda advantage: {"returns": {3: 1.0}}), "returns of 3: there is no such branch"),
    (lambda: with_advantage(lambda all: {}), "gave no branch any credit"),
    (lambda: with_advantage(lambda all: {key: np.ones(50) for key in all}), "has shape (50,)"),
    (lambda: with_fields(lambda advantage: {"weight": dict.fromkeys(advantage, -1.0)}), "is not negative"),
    (lambda: with_fields(lambda advantage: {"metrics": {"spread": float("inf")}}), "metric spread"),
    (lambda: with_fields(lambda advantage: {"target": {Key("train-9"): np.ones(2)}}), "no such branch"),
    (lambda: after(lambda credit, batch: credit.advantage), "returned a tuple"),
    (lambda: Unwritten(), "its state: raised TypeError"),
    (lambda: IntKeys(), "which JSON makes"),
    (lambda: Hoards(), "changed the state"),
    (lambda: Remembers(), "order of the trees"),
    (lambda: Fussy(), "refuses every sampling plan"),
    (lambda: Crashes(), "raised KeyError"),
    (lambda: type("Needy", (ATGRPO,), {"needs": ("attention",)})(), "unknown annotations"),
])  # fmt: skip
def test_a_broken_estimator_is_caught(make, message):
    caught(message, check_estimator, make(), seeds=1)


def test_a_std_without_a_floor_is_caught():
    def scaled(all_: Any) -> Any:
        values = np.array(list(all_.values()))
        with np.errstate(invalid="ignore", divide="ignore"):
            return {key: value / values.std() for key, value in all_.items()}

    caught("is nan", check_estimator, with_advantage(scaled), seeds=1)


def test_plans_can_be_given():
    plan = Plan(chains=2, branches=1, expand="best", pairing="aligned")
    check_estimator(GRPO(), plans=[plan], seeds=1)
    caught("refuses every sampling plan", check_estimator, ATGRPO(), plans=[plan])


# -------------------------------------------------------------------------------------------------- losses


def loss(call: Any, **members: Any) -> Any:
    base = {"needs": (), "length": "token_mean", "entropy": 0.0, "__call__": lambda self, xp, t: call(xp, t)}
    return type("Loss", (), {**base, **members})()


def surrogate(value: Any, grad: Any, **metrics: Any) -> Surrogate:
    return Surrogate(value=value, grad=grad, metrics=metrics)


def plain(xp: Any, t: Any) -> Any:
    return surrogate(-t.advantages * t.logprobs, -t.advantages)


def clipped(xp: Any, t: Any, *, wrong: bool = False) -> Any:
    ratio = xp.exp(xp.clip(t.logprobs - t.behaviour, -20, 20))
    free, clipped = ratio * t.advantages, xp.clip(ratio, 0.8, 1.2) * t.advantages
    inside = xp.abs(t.logprobs - t.behaviour) < 20
    grad = -free if wrong else xp.where(inside & (free <= clipped), -free, 0.0)
    return surrogate(-xp.minimum(free, clipped), grad)


def held(xp: Any, t: Any) -> Any:
    """CISPO's loss: the ratio weighs the log-prob, and no gradient flows through the ratio."""
    ratio = xp.clip(xp.exp(xp.clip(t.logprobs - t.behaviour, -20, 20)), 0.0, 4.0)
    return surrogate(-ratio * t.advantages * t.logprobs, -ratio * t.advantages)


def means(values: Any, t: Any) -> Any:
    """The mean over each token's sequence."""
    return (np.bincount(t.sequence, values) / np.bincount(t.sequence))[t.sequence]


def whole(xp: Any, t: Any, *, share: bool = True) -> Any:
    """GSPO's loss without its clip: every token has the value of its sequence."""
    n = 1.0 if share else np.bincount(t.sequence)[t.sequence]
    difference = means(t.logprobs - t.behaviour, t)
    free = xp.exp(xp.clip(difference, -20, 20)) * means(t.advantages, t)
    return surrogate(-free, xp.where(xp.abs(difference) < 20, -free / n, 0.0))


def corrected(xp: Any, t: Any) -> Any:
    weight = xp.exp(xp.clip(t.old - t.behaviour, -20, 1))
    return surrogate(-weight * t.advantages * t.logprobs, -weight * t.advantages)


def test_sound_losses_pass():
    check_loss(loss(plain, fresh_samples=True))
    check_loss(loss(plain, fresh_samples=False, length="constant", length_constant=8.0))
    check_loss(loss(clipped))
    check_loss(loss(whole))
    check_loss(loss(corrected, needs=("old_logprobs",)))
    check_loss(loss(held), detached=True)
    caught("the value's derivative is", check_loss, loss(held))


def with_mean(xp: Any, t: Any) -> Any:
    centred = t.advantages - t.advantages.mean()
    return surrogate(-centred * t.logprobs, -centred)


def by_number(xp: Any, t: Any) -> Any:
    """A loss that uses the ids of sequences as numbers."""
    scale = (1 + t.sequence) * t.advantages
    return surrogate(-scale * t.logprobs, -scale)


def unbounded(xp: Any, t: Any) -> Any:
    free = xp.exp(t.logprobs - t.behaviour) * t.advantages
    return surrogate(-free, -free)


def changes(xp: Any, t: Any) -> Any:
    surrogate = plain(xp, t)
    np.multiply(t.advantages, 2, out=t.advantages)
    return surrogate


@pytest.mark.parametrize(("broken", "message"), [
    (loss(lambda xp, t: surrogate(plain(xp, t).value, -1.01 * t.advantages)), "the value's derivative is"),
    (loss(lambda xp, t: clipped(xp, t, wrong=True)), "the value's derivative is"),
    (loss(lambda xp, t: surrogate(t.advantages * t.logprobs, t.advantages)), "on the weights that sampled"),
    (loss(with_mean), "depends on the other sequences"),
    (loss(lambda xp, t: whole(xp, t, share=False)), "the value's derivative is"),
    (loss(corrected), "raised TypeError"),
    (loss(by_number), "depends on the other sequences"),
    (loss(unbounded), "is inf"),
    (loss(changes), "changed advantages"),
    (loss(lambda xp, t: surrogate(plain(xp, t).value.mean(), 0 * t.advantages)), "has shape ()"),
    (loss(lambda xp, t: surrogate(plain(xp, t).value, -t.advantages, clip=0.5)), "clip: has shape ()"),
    (loss(lambda xp, t: plain(xp, t).value), "returned a ndarray"),
    (loss(lambda xp, t: surrogate(plain(xp, t).value + 0.1 * t.logprobs, 0.1 - t.advantages)), ""),
    (loss(lambda xp, t: surrogate(plain(xp, t).value + t.logprobs**2, 2 * t.logprobs - t.advantages)), ""),
    (loss(plain), "whichever policy sampled the tokens"),
    (loss(plain, length="mean"), "length: is 'mean'"),
    (loss(plain, length="constant"), "length_constant: is None"),
    (loss(plain, length="constant", length_constant=0), "length_constant: is 0"),
    (loss(plain, entropy=-1.0), "entropy: is -1.0"),
    (loss(plain, needs=("values",)), "asks for ['values']"),
    (type("Bare", (), {"needs": ()})(), "lacks length, entropy"),
])  # fmt: skip
def test_a_broken_loss_is_caught(broken, message):
    caught(message, check_loss, broken)


class Counting(ATGRPO):
    """Keeps its count on itself, where no checkpoint finds it."""

    calls = 0

    def __call__(self, batch: Any, state: Any) -> Any:
        self.calls += 1
        return super().__call__(batch, state)[0], self.calls


def test_a_state_that_is_kept_on_the_estimator_is_caught():
    caught("both without a state, return other states", check_estimator, Counting(), seeds=1)


def test_metrics_under_other_names_than_ones_own_are_caught():
    def reported(credit: Any, batch: Any) -> Any:
        return dataclasses.replace(credit, metrics={"eval/success": 36.0})

    caught("is a name of the framework's", check_estimator, after(reported), seeds=1)


def test_a_losss_metric_under_a_name_of_the_trainers_is_caught():
    def named(xp: Any, t: Any) -> Any:
        return surrogate(-t.advantages * t.logprobs, -t.advantages, samples=t.logprobs)

    caught("which are the trainer's", check_loss, loss(named, fresh_samples=True))

"""What `check_trainer` catches of what an update returns, of versions, and of `optimizer_steps`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coterie.backends.models.wordcodec import word_id
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.testing import check_trainer
from tests.testing.support import caught

IDS = [word_id(word) for word in ("left", "right", "up", "down")]


class RisesByTwo(TabularTrainer):
    def weights(self, policy: str) -> Any:
        weights = super().weights(policy)
        return dataclasses.replace(weights, version=2 * weights.version)


class TextVersion(TabularTrainer):
    def weights(self, policy: str) -> Any:
        weights = super().weights(policy)
        return dataclasses.replace(weights, version=str(weights.version))


class RisesWithoutSamples(TabularTrainer):
    async def update(self, samples: Any, step: int) -> Any:
        for policy in self.policies.values() if not samples else ():
            policy.version += 1
        return await super().update(samples, step)


class SyncUpdate(TabularTrainer):
    def update(self, samples: Any, step: int) -> Any:
        return {}


def returning(change: Any) -> Any:
    """A trainer whose `update` returns something else; `change` maps the metrics of 'one' to it."""

    async def update(self: Any, samples: Any, step: int) -> Any:
        metrics = await TabularTrainer.update(self, samples, step)
        return change(metrics["one"]) if "one" in metrics else metrics

    return type("Returning", (TabularTrainer,), {"update": update})


def counting(steps: Any) -> Any:
    """A trainer with another `optimizer_steps`."""
    return type("Counting", (TabularTrainer,), {"optimizer_steps": steps})


@pytest.mark.parametrize(("trainer", "message"), [
    (RisesByTwo, "brought the version of 'one' from 0 to 2"),
    (TextVersion, "weights: returned Weights("),
    (RisesWithoutSamples, "versions without samples"),
    (SyncUpdate, "update: is not asynchronous"),
    (returning(lambda row: None), "update: returned None"),
    (returning(lambda row: {"one": [1.0]}), "update: returned [1.0] as the metrics of 'one'"),
    (returning(lambda row: {"one": None}), "update: returned None as the metrics of 'one'"),
    (returning(lambda row: {"one": {3: 1.0}}), "update: returned {3: 1.0} as the metrics"),
    (returning(lambda row: {"one": row, "three": {}}), "returned metrics of 'three', which is no policy"),
    (returning(lambda row: {"one": {"optimizer_steps": -1.0}}), "one/optimizer_steps is -1.0"),
    (returning(lambda row: {"one": row, "two": {"optimizer_steps": 1.0}}), "optimizer_steps of 'two'"),
    (counting(lambda self, samples: 1), "optimizer_steps: can't be called as (self, samples: int, sib"),
    (counting(lambda self, siblings, samples: 1), "optimizer_steps: has the parameter `siblings`"),
    (counting(lambda self, samples, siblings: samples / siblings), "optimizer_steps: returned a float, 0.0,"),
    (counting(lambda self, samples, siblings: None), "optimizer_steps: returned None"),
    (counting(lambda self, samples, siblings: samples - siblings), "returned -3 for 0 samples"),
    (counting(lambda self, samples, siblings: siblings // samples), "optimizer_steps: raised ZeroDivision"),
])  # fmt: skip
def test_a_broken_update_is_caught(trainer, message):
    caught(message, check_trainer, trainer, model={"init": "tabular"}, token_ids=IDS)


def test_sound_updates_pass():
    for trainer in (returning(lambda row: {"one": {}}), counting(lambda self, samples, siblings: samples)):
        check_trainer(trainer, model={"init": "tabular"}, token_ids=IDS)

"""Trainer `deepspeed` with its other rank in an actor of a Ray cluster: the numbers of ranks on one host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.trainers.deepspeed.trainer import DeepSpeedTrainer
from tests.backends.trainers import tiny
from tests.ray_cluster import local_cluster

pytestmark = pytest.mark.scale


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster(4) as ray:
        yield ray


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.long), 3])
def test_deepspeed_trains_as_on_one_host(cluster: Any, stage: int) -> None:
    policies = {"full": tiny.policy(), "a": tiny.policy("lora"), "b": tiny.policy("lora")}
    ctx = tiny.opened(policies).ctx
    seen = []
    for on_cluster in (False, True):
        trainer = DeepSpeedTrainer(DeepSpeedTrainer.Config(device="cpu", ranks=2, stage=stage))
        if on_cluster:
            trainer.use_cluster(Connection(ClusterConfig(workers=1)))
        asyncio.run(trainer.open(ctx))
        metrics = [
            tiny.update(trainer, {name: tiny.samples(name, seed=step) for name in names}, step)
            for step, names in enumerate((("full", "a"), ("a", "b")))
        ]
        seen.append((trainer.digest(), metrics))
        asyncio.run(trainer.close())
        assert not torch.distributed.is_initialized()
    assert seen[0] == seen[1]

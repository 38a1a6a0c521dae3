"""What a run really holds: the bytes of live tensors, and of what comes and goes within a step."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import NamedTuple

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from transformers import DynamicCache

from coterie.api.open_run import open_run
from coterie.backends.engines.lean.cache import Bucket
from coterie.backends.trainers.optim import PolicyOptimizer
from coterie.core.loop import train


class Held(NamedTuple):
    """Bytes."""

    staying: int
    """Of all storages that are alive when the step is over and were not before the run was opened: weights,
    adapters, reference, masters, moments, the engine's copies."""
    gradients: int
    """The most when a backward pass is over, before it is added to the masters."""
    cache: int
    """The most that the decoder's key/value caches take at once."""


def held_by(run, monkeypatch) -> Held:
    """Open a composed run, take its steps, and measure."""
    peaks = {"gradients": 0, "cache": 0}
    buckets: weakref.WeakSet[Bucket] = weakref.WeakSet()

    def seen(kind, tensors):
        peaks[kind] = max(peaks[kind], sum(storages(tensors).values()))

    def caching(method):
        def wrapped(self, *arguments, **named):
            method(self, *arguments, **named)
            buckets.add(self)
            names = ("keys", "values", "own_keys", "own_values")
            seen("cache", [layer for bucket in buckets for name in names for layer in getattr(bucket, name)])

        return wrapped

    def updating(method):
        def wrapped(self, *arguments, **named):
            result = method(self, *arguments, **named)
            kept = [tensor for layer in self.layers for tensor in (layer.keys, layer.values)]
            seen("cache", [tensor for tensor in kept if tensor is not None])
            return result

        return wrapped

    def absorbing(method):
        def wrapped(self):
            owners = (*self._weights.values(), *self.masters().values())
            seen("gradients", [owner.grad for owner in owners if owner.grad is not None])
            method(self)

        return wrapped

    monkeypatch.setattr(Bucket, "reserve", caching(Bucket.reserve))
    monkeypatch.setattr(DynamicCache, "update", updating(DynamicCache.update))
    monkeypatch.setattr(PolicyOptimizer, "absorb", absorbing(PolicyOptimizer.absorb))

    async def go() -> int:
        before = storages(live())
        untracked = replace(run, trackers={})
        try:
            await open_run(untracked)
            await train(untracked)
            after = storages(live())
            return sum(size for place, size in after.items() if before.get(place) != size)
        finally:
            await untracked.close()

    return Held(asyncio.run(go()), peaks["gradients"], peaks["cache"])


def live() -> list[torch.Tensor]:
    """Every tensor that has storage; not those of compilers, which pretend to."""
    gc.collect()
    return [
        tensor
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor)
        and not isinstance(tensor, FakeTensor | FunctionalTensor)
        and not tensor.is_meta
    ]


def storages(tensors) -> dict[int, int]:
    """Address -> bytes, each storage once."""
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}

"""What all replicas take at the same time: each object is put once, and let go when the last one has it."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from hypothesis import given, strategies as st

from coterie.backends.engines.vllm.direct import AHEAD, Publisher, packed, unpacked
from coterie.core.errors import UserError

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=8), st.integers(1, 400))
def test_tensors_arrive_as_they_were(kinds, most):
    tensors = [
        (str(number), torch.randint(0, 2, shape).to(dtype)) for number, (dtype, shape) in enumerate(kinds)
    ]
    parts = list(packed(tensors, most))
    assert all(len(part) == 1 or sum(each.data.nbytes for each in part) <= most for part in parts)
    arrived = [pair for part in parts for pair in unpacked(part)]
    assert [name for name, _ in arrived] == [name for name, _ in tensors]
    for (_, sent), (_, got) in zip(tensors, arrived, strict=True):
        assert sent.dtype == got.dtype and sent.shape == got.shape and torch.equal(sent, got)


def test_a_tensor_that_is_no_block_of_memory_arrives_as_it_was():
    turned = torch.arange(12.0).reshape(3, 4).t()
    ((_, arrived),) = unpacked(next(packed([("t", turned)])))
    assert torch.equal(arrived, turned)


class Store:
    """An object store: a reference is a list, which lives as long as somebody has it."""

    def __init__(self):
        self.puts, self.live, self.most = 0, 0, 0

    def put(self, value):
        self.puts += 1
        self.live += 1
        self.most = max(self.most, self.live)
        return Reference(self, value)


class Reference:
    def __init__(self, store, value):
        self.store, self.value = store, value

    def __del__(self):
        self.store.live -= 1


async def take(publisher, key, make, pace, stop=None):
    """What a taker gets; it stops before the object `stop`."""
    got = []
    async with publisher.taken(key, make) as references:
        async for reference in references:
            if len(got) == stop:
                break
            for _ in range(pace.randrange(4)):
                await asyncio.sleep(0)
            got.append(reference.value)
            del reference
    return got


STOPS = st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=5)


@given(st.integers(0, 12), STOPS, st.integers())
def test_all_takers_get_all_objects_of_one_put_each(count, stops, seed):
    """Some leave early (`stops`), as those whose actor died."""
    store, key, reads = Store(), object(), []

    def make():
        reads.append(1)
        yield from range(count)

    async def play():
        publisher = Publisher(store.put)
        got = await asyncio.gather(
            *(take(publisher, key, make, random.Random(seed + n), stop) for n, stop in enumerate(stops))
        )
        assert not publisher.published
        return got

    for stop, got in zip(stops, asyncio.run(play()), strict=True):
        assert got == list(range(count))[:stop]
    assert len(reads) == 1 and store.puts <= count
    assert store.live == 0
    # Those that are held, one that is being made, and one in the hands of each taker.
    assert store.most <= AHEAD + 1 + len(stops)


def test_a_late_taker_gets_all_objects_too():
    store, key = Store(), object()

    async def play():
        publisher = Publisher(store.put)
        async with publisher.taken(key, lambda: iter(range(5))) as references:
            seen = [reference.value async for reference in references]
            late = await take(publisher, key, lambda: iter(range(5)), random.Random(0))
        return seen, late

    assert asyncio.run(play()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert store.puts == 10 and store.live == 0


def test_what_the_tensors_raise_reaches_all_takers():
    def make():
        yield 0
        raise UserError("a tensor is wrong", path="policies.p")

    async def play():
        publisher, key = Publisher(Store().put), object()
        work = [take(publisher, key, make, random.Random(n)) for n in range(3)]
        results = await asyncio.gather(*work, return_exceptions=True)
        assert not publisher.published
        return results

    results = asyncio.run(play())
    assert len(results) == 3 and all(isinstance(each, UserError) for each in results)


def test_a_cancelled_taker_ends_the_reading_when_it_was_the_last():
    ended = []

    def make():
        try:
            while True:
                yield 1
        finally:
            ended.append(1)

    async def play():
        publisher = Publisher(Store().put)
        task = asyncio.ensure_future(take(publisher, object(), make, random.Random(0)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert ended == [1]

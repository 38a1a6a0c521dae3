"""Request batches form across all active rollouts, in an order that repeats."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from coterie.backends.engines.request_batching import RequestBatcher
from coterie.backends.models.compute_threads import compute
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.types import Call, Key, Request, Sampling


def request(name, turn, policy="p"):
    return Request(key=Key(name, call=turn), policy=policy, prompt_ids=(1,), sampling=Sampling(), seed=0)


def play(deterministic, *, episodes=12, turns=3, jitter=True, threaded=True, together=None):
    batches = []

    def generate(policy, requests):
        batches.append((policy, [r.key for r in requests]))
        return [
            Call(prompt_ids=(1,), token_ids=(2,), logprobs=(0.0,), version=0, finish="stop") for _ in requests
        ]

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(
            generate, active_rollouts, deterministic=deterministic, threaded=threaded, together=together
        )

        async def episode(number):
            active_rollouts.start()
            try:
                for turn in range(turns - number % 2):
                    if jitter:
                        await asyncio.sleep(random.random() / 300)
                    await batcher.submit(request(f"e{number:02}", turn, "p" if number % 3 else "q"))
            finally:
                active_rollouts.stop()

        await asyncio.gather(*[episode(n) for n in random.sample(range(episodes), episodes)])
        assert active_rollouts.live == active_rollouts.waiting == 0
        assert batcher.batches == len(batches)
        batcher.close()

    asyncio.run(go())
    return batches


@pytest.mark.parametrize("threaded", [True, False])
def test_deterministic_batches_hold_every_live_episode_in_key_order(threaded):
    batches = play(True, threaded=threaded)
    assert batches == play(True, threaded=threaded)
    assert len(batches) == 2 * 3  # two policies, three turns
    for _, keys in batches:
        assert keys == sorted(keys)
    assert [len(keys) for policy, keys in batches if policy == "p"] == [8, 8, 4]


@pytest.mark.parametrize("threaded", [True, False])
def test_policies_that_compute_together_are_one_batch_in_key_order(threaded):
    batches = play(True, threaded=threaded, together={"p": "base", "q": "base"}.get)
    assert [(name, len(keys)) for name, keys in batches] == [("base", 12), ("base", 12), ("base", 6)]
    for _, keys in batches:
        assert keys == sorted(keys)


def test_each_policy_of_a_mixed_batch_gets_its_own_answers():
    def generate(name, requests):
        return [
            Call(prompt_ids=(1,), token_ids=(ord(request.policy),), logprobs=(0.0,), version=0, finish="stop")
            for request in requests
        ]

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(generate, active_rollouts, deterministic=True, together=lambda policy: "all")
        active_rollouts.start(6)
        calls = await asyncio.gather(
            *[batcher.submit(request(f"{9 - n}", 0, "pqr"[n % 3])) for n in range(6)]
        )
        assert [chr(call.token_ids[0]) for call in calls] == list("pqrpqr")
        assert batcher.batches == 1

    asyncio.run(asyncio.wait_for(go(), 10))


def test_batches_that_need_not_repeat_form_without_waiting_for_all_rollouts():
    assert sum(len(keys) for _, keys in play(False)) == 6 * 3 + 6 * 2

    def generate(policy, requests):
        return [
            Call(prompt_ids=(1,), token_ids=(2,), logprobs=(0.0,), version=0, finish="stop") for _ in requests
        ]

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(generate, active_rollouts, deterministic=False)
        active_rollouts.start(2)  # the second one asks for nothing
        return await asyncio.wait_for(batcher.submit(request("a", 0)), 20)

    assert asyncio.run(go()).token_ids == (2,)


def test_the_error_of_a_batch_reaches_every_rollout_that_waits_for_it():
    def generate(policy, requests):
        raise RuntimeError("out of memory")

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(generate, active_rollouts, deterministic=True)
        active_rollouts.start(2)
        results = await asyncio.gather(
            *[batcher.submit(request(str(n), 0)) for n in range(2)], return_exceptions=True
        )
        assert [str(r) for r in results] == ["out of memory"] * 2

    asyncio.run(asyncio.wait_for(go(), 10))


def test_nested_active_rollouts_are_counted():
    sizes = []

    def generate(policy, requests):
        sizes.append(len(requests))
        return [
            Call(prompt_ids=(1,), token_ids=(2,), logprobs=(0.0,), version=0, finish="stop") for _ in requests
        ]

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(generate, active_rollouts, deterministic=True)

        async def branch(name):
            await asyncio.sleep(random.random() / 100)  # for example a tool
            await batcher.submit(request(name, 0))
            await asyncio.sleep(random.random() / 100)
            await batcher.submit(request(name, 1))

        async def episode(name):
            active_rollouts.start()
            await active_rollouts.gather([branch(f"{name}{b}") for b in range(3)])
            await batcher.submit(request(name, 2))
            active_rollouts.stop()

        await asyncio.gather(episode("a"), episode("b"))

    asyncio.run(asyncio.wait_for(go(), 10))
    assert sizes == [6, 6, 2]


def test_an_active_rollout_that_never_requests_does_not_hold_the_batch_for_ever(monkeypatch, caplog):
    monkeypatch.setattr("coterie.backends.engines.request_batching.STALL_SECONDS", 0.05)

    async def go():
        active_rollouts = ActiveRollouts()
        batcher = RequestBatcher(
            lambda policy, rows: [
                Call(prompt_ids=(1,), token_ids=(), logprobs=(), version=0, finish="stop") for _ in rows
            ],
            active_rollouts,
            deterministic=True,
        )
        active_rollouts.start(2)  # one of them never submits a request
        await asyncio.wait_for(batcher.submit(request("a", 0)), 5)

    asyncio.run(go())
    assert "1 of 2 active rollouts" in caplog.text


@pytest.mark.parametrize("beside", [True, False])
def test_generation_beside_updates_does_not_wait_for_the_trainers_thread(beside):
    """The trainer computes until somebody has an answer, or (in one thread) until it gives up."""
    answered = threading.Event()

    async def go():
        rollouts = ActiveRollouts()
        batcher = RequestBatcher(
            lambda name, requests: [
                Call(prompt_ids=(1,), token_ids=(2,), logprobs=(0.0,), version=0, finish="stop")
            ],
            rollouts, deterministic=True, beside_updates=beside,
        )  # fmt: skip
        update = asyncio.ensure_future(compute(answered.wait, 0.3))
        await asyncio.sleep(0.01)
        rollouts.start()
        await batcher.submit(request("p", 0))
        answered.set()
        return await update

    assert asyncio.run(go()) is beside

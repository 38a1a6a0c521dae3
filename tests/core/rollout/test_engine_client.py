"""Which awaitables the engine's client counts as active rollouts."""

from __future__ import annotations

import asyncio

from coterie.core.rollout.engine_client import LocalEngineClient, not_counted
from coterie.testing.support.toys import NumberGame


def counted(work):
    """The numbers of active rollouts that `work(client, live)` notes."""
    client, noted = LocalEngineClient(NumberGame()), []

    async def live():
        noted.append(client.active_rollouts.live)

    asyncio.run(work(client, live))
    assert client.active_rollouts.live == 0
    return noted


def test_an_awaitable_within_a_rollout_is_a_part_of_it():
    async def work(client, live):
        async def rollout():
            await client.active(live())  # e.g. a judge's request, which the rollout waits for
            await asyncio.gather(client.active(live()), client.active(live()))

        await client.active(rollout())
        await client.active(live())

    assert counted(work) == [1, 1, 1, 1]


def test_what_a_rollout_starts_in_the_background_is_a_rollout_of_its_own():
    async def work(client, live):
        async def rollout():
            task = not_counted(client.active(live()))
            await asyncio.sleep(0)
            await live()
            return task

        await (await client.active(rollout()))

    assert counted(work) == [2, 1]


def test_branches_of_a_rollout_are_rollouts_and_their_requests_a_part_of_them():
    async def work(client, live):
        await client.active(client.gather([client.active(live()), client.active(live())]))

    assert counted(work) == [2, 1]

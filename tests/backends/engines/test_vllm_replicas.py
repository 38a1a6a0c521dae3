"""Servers of one base: routing, recovery, versions and sleep, with servers that are not vLLM."""

import asyncio
import functools
import logging

import pytest

from coterie.backends.engines.vllm.replicas import Replicas, Router
from coterie.backends.engines.vllm.server import ServerLost
from coterie.core.errors import SystemFault, UserError
from coterie.core.types import Key


def in_loop(test):
    """Run an async test in an event loop of its own, for at most 20 s."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20))

    return run


class FakeServer:
    """Answers with its version; `deaths` requests or syncs kill it, `starts` says how its starts end."""

    output = "vllm-p-0.log"

    def __init__(self, *, deaths=0, sync_deaths=0, start_error=None):
        self.alive, self.version = False, -1
        self.deaths, self.sync_deaths, self.start_error = deaths, sync_deaths, start_error
        self.requests, self.starts, self.asleep, self.slept = [], 0, False, 0
        self.hold = None
        self.start_gate = None

    async def open(self):
        self.starts += 1
        if self.start_gate is not None and self.starts > 1:
            await self.start_gate.wait()
        if self.start_error is not None and self.starts > 1:
            raise self.start_error
        self.alive, self.version = True, -1

    async def restart(self):
        await self.open()

    async def close(self):
        self.alive = False

    async def sync(self, tensors, version):
        await asyncio.sleep(0)
        if self.sync_deaths:
            self.sync_deaths -= 1
            self.alive = False
            raise ServerLost("the sync failed")
        self.version = version

    async def sleep(self):
        self.asleep, self.slept = True, self.slept + 1

    async def wake(self):
        self.asleep = False

    async def answer(self, request):
        assert self.alive and not self.asleep
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(0)
        if self.deaths:
            self.deaths -= 1
            self.alive = False
            raise ServerLost("the process died")
        return request, self.version


class Fixture:
    """`Replicas` over fakes, whose newest version is `version`."""

    def __init__(self, *servers, restarts=3):
        self.version, self.servers = 1, servers
        self.replicas = Replicas(
            servers,
            name="p",
            restarts=restarts,
            refill=lambda server: server.sync((), self.version),
            current=lambda server: server.version == self.version,
        )

    async def __aenter__(self):
        await self.replicas.open()
        await self.sync(1)
        return self

    async def __aexit__(self, *_):
        await self.replicas.close()

    async def sync(self, version):
        self.version = version
        self.replicas.forgive()
        await self.replicas.each(lambda server: server.sync((), version), refilled=True)

    async def ask(self, request, key=None):
        return await self.replicas.run(key, lambda server: server.answer(request))


def episode(task, chain, path=()):
    return Key(f"t{task}", 0, chain, path, "r", 0, -1, 0)


@in_loop
async def test_siblings_and_later_turns_go_to_the_server_that_has_their_prefix():
    async with Fixture(FakeServer(), FakeServer()) as fixture:
        for turn in range(3):
            for task in range(4):
                for chain in range(5):
                    key = episode(task, chain, (0,) * turn)
                    await fixture.ask((task, chain), key)
        places = [set(server.requests) for server in fixture.servers]
        assert not places[0] & places[1]  # no episode on both
        assert all({task for task, _ in place} for place in places)
        tasks = [{task for task, _ in place} for place in places]
        assert not tasks[0] & tasks[1]  # no task on both either


def test_a_busy_server_is_passed_over_and_the_episode_moves():
    router = Router(2)
    assert router.choose(episode(0, 0), [0, 1]) == 0
    router.in_flight = [Router.BUSY + 1, 0]
    assert router.choose(episode(0, 0), [0, 1]) == 1
    router.in_flight = [0, 0]
    assert router.choose(episode(0, 0), [0, 1]) == 1  # where its last prompt is cached
    assert router.choose(episode(0, 1), [0, 1]) == 0  # a sibling: the task's server


def test_tasks_of_single_episodes_are_spread_though_nothing_is_in_flight():
    router = Router(2)
    assert [router.choose(episode(task, 0), [0, 1]) for task in range(4)] == [0, 1, 0, 1]


def test_without_a_key_the_least_busy_server_is_chosen():
    router = Router(3)
    router.in_flight = [2, 1, 3]
    assert router.choose(None, [0, 1, 2]) == 1
    assert router.choose(None, [0, 2]) == 0


@in_loop
async def test_requests_of_a_dead_replica_go_to_the_other_while_it_restarts():
    first, second = FakeServer(deaths=1), FakeServer()
    first.start_gate = asyncio.Event()
    async with Fixture(first, second) as fixture:
        answers = await asyncio.gather(*(fixture.ask(i) for i in range(4)))
        assert answers == [(i, 1) for i in range(4)]
        assert not first.alive and fixture.replicas.repeated >= 1  # it still restarts, and nobody waited
        first.start_gate.set()
        await asyncio.gather(*fixture.replicas.reviving.values())
        assert first.alive and first.version == 1


@in_loop
async def test_requests_wait_for_the_only_server_and_its_weights():
    server = FakeServer()
    async with Fixture(server) as fixture:
        server.hold = asyncio.Event()
        requests = [asyncio.ensure_future(fixture.ask(i)) for i in range(8)]
        await asyncio.sleep(0)
        server.deaths = 8  # all in flight die together
        server.hold.set()
        assert await asyncio.gather(*requests) == [(i, 1) for i in range(8)]
        assert server.starts == 2 and fixture.replicas.restarts == 1 and fixture.replicas.repeated == 8


@in_loop
async def test_a_server_that_keeps_dying_is_given_up_with_the_reason(caplog):
    server = FakeServer(deaths=100)
    async with Fixture(server, restarts=2) as fixture:
        with (
            caplog.at_level(logging.WARNING, "coterie"),
            pytest.raises(SystemFault, match="the process died"),
        ):
            await fixture.ask(0)
        with pytest.raises(SystemFault, match="died 3 times with these weights"):
            await fixture.ask(1)
        assert server.starts == 3
        assert "restart 1 of at most 2" in caplog.text and "restart 2 of at most 2" in caplog.text
        server.deaths = 0
        await fixture.sync(2)  # new weights: it is tried again
        assert await fixture.ask(2) == (2, 2)
        server.deaths = 1
        assert await fixture.ask(3) == (3, 2)  # what was given up before is forgiven


@in_loop
async def test_one_replica_that_is_given_up_does_not_stop_the_other():
    bad, good = FakeServer(deaths=1, start_error=UserError("no memory")), FakeServer()
    async with Fixture(bad, good) as fixture:
        assert await asyncio.gather(*(fixture.ask(i) for i in range(4))) == [(i, 1) for i in range(4)]
        await asyncio.sleep(0.01)
        assert await asyncio.gather(*(fixture.ask(i) for i in range(4))) == [(i, 1) for i in range(4)]
        assert bad.starts == 2


@in_loop
async def test_a_server_that_cannot_start_again_ends_the_request_with_the_reason():
    server = FakeServer(deaths=1, start_error=UserError("no memory"))
    async with Fixture(server) as fixture:
        with pytest.raises(UserError, match="no memory"):
            await fixture.ask(0)


@in_loop
async def test_requests_that_lose_a_server_together_start_it_once(caplog):
    server = FakeServer(start_error=UserError("no memory"))
    async with Fixture(server) as fixture:
        server.hold = asyncio.Event()
        requests = [asyncio.ensure_future(fixture.ask(i)) for i in range(4)]
        await asyncio.sleep(0)
        server.deaths = 4
        server.hold.set()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, UserError) for result in results)
        assert server.starts == 2 and caplog.text.count("is given up") == 1


@in_loop
async def test_a_sync_that_fails_half_way_restarts_its_server_with_the_new_weights():
    first, second = FakeServer(sync_deaths=1), FakeServer()
    async with Fixture(second) as _:
        pass
    async with Fixture(first, FakeServer()) as fixture:  # dies in the first sync
        assert first.starts == 2 and first.version == 1
        first.sync_deaths = 2
        await fixture.sync(2)
        assert [server.version for server in fixture.servers] == [2, 2]
        assert first.starts == 4


@in_loop
async def test_a_sync_that_always_fails_ends_with_the_reason():
    server = FakeServer()
    async with Fixture(server, restarts=1) as fixture:
        server.sync_deaths = 100
        with pytest.raises(UserError, match="can't take the new weights") as caught:
            await fixture.sync(2)
        assert "the sync failed" in caught.value.why


@in_loop
async def test_a_server_with_other_weights_gets_no_request():
    behind, newest = FakeServer(), FakeServer()
    async with Fixture(behind, newest) as fixture:
        behind.version = 0  # alive, but it missed a sync
        assert await asyncio.gather(*(fixture.ask(i) for i in range(6))) == [(i, 1) for i in range(6)]
        assert not behind.requests
    async with Fixture(only := FakeServer()) as fixture:
        only.version = 0
        assert await fixture.ask(0) == (0, 1)  # given the newest weights first
        assert only.starts == 2


@in_loop
async def test_no_request_is_sent_during_a_sync():
    server = FakeServer()
    async with Fixture(server) as fixture:
        syncing = asyncio.ensure_future(fixture.sync(2))
        await asyncio.sleep(0)
        assert await fixture.ask(0) == (0, 2)
        await syncing


@in_loop
async def test_servers_sleep_until_the_next_request_or_sync():
    server = FakeServer()
    async with Fixture(server) as fixture:
        await fixture.replicas.sleep()
        await fixture.replicas.sleep()
        assert server.asleep and server.slept == 1
        assert await asyncio.gather(*(fixture.ask(i) for i in range(3))) == [(i, 1) for i in range(3)]
        assert not server.asleep
        await fixture.replicas.sleep()
        await fixture.sync(2)
        assert not server.asleep and server.slept == 2


@in_loop
async def test_servers_with_requests_in_flight_do_not_sleep():
    server = FakeServer()
    async with Fixture(server) as fixture:
        server.hold = asyncio.Event()
        request = asyncio.ensure_future(fixture.ask(0))
        await asyncio.sleep(0)
        await fixture.replicas.sleep()
        assert not server.asleep
        server.hold.set()
        assert await request == (0, 1)


@in_loop
async def test_a_cancelled_request_frees_its_place():
    server = FakeServer()
    async with Fixture(server) as fixture:
        server.hold = asyncio.Event()
        request = asyncio.ensure_future(fixture.ask(0))
        await asyncio.sleep(0)
        assert fixture.replicas.in_flight == 1
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert fixture.replicas.in_flight == 0


@in_loop
async def test_a_run_that_stops_restarts_nothing():
    """Its tasks are cancelled all at once, vLLM's own among them, so a server is lost on the way."""

    class Dying(FakeServer):
        async def answer(self, request):
            try:
                await asyncio.sleep(3600 if self.starts == 1 else 0)
            except asyncio.CancelledError:
                self.alive = False
                raise ServerLost("the process died") from None

    async with Fixture(Dying()) as fixture:
        asked = asyncio.ensure_future(fixture.ask("a"))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.sleep(0)
        assert fixture.servers[0].starts == 1 and not fixture.replicas.reviving

"""Which failures are worth another attempt, and after how long."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from coterie.backends.remote.answers import Answer, Usage
from coterie.backends.remote.faults import Again, Refused, of_status, retry_after
from coterie.core.errors import ConfigError, SystemFault, UserError
from tests.backends.remote.support import Sender, calls, expects, opened, request

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({}, None),
    ],
)
def test_a_server_may_ask_for_a_pause(headers, seconds):
    assert retry_after(headers, now=NOW) == seconds


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (408, Again), (429, Again), (500, Again), (502, Again), (503, Again), (529, Again),
        (400, Refused), (409, Refused), (413, Refused), (422, Refused),
        (401, ConfigError), (403, ConfigError), (404, ConfigError),
    ],
)  # fmt: skip
def test_statuses(status, kind):
    fault = of_status(
        status, "a reason", {}, url="https://x", model="m", path="engine", model_path="policies.p.model"
    )
    assert type(fault) is kind and "a reason" in str(fault) and str(status) in str(fault)


def test_a_spent_quota_is_no_reason_to_wait():
    body = '{"error": {"code": "insufficient_quota"}}'
    fault = of_status(429, body, {}, url="https://x", model="m", path="engine", model_path="p")
    assert isinstance(fault, UserError)


def failing(*faults, then=True):
    """A sender that raises these, one an attempt."""
    left = list(faults)
    sender = Sender()

    async def send() -> Answer:
        if left:
            sender.sent += 1
            sender.times.append(time.monotonic())
            raise left.pop(0)
        sender.times.append(time.monotonic())
        return await Sender.__call__(sender)

    return send, sender


def called(send, **table):
    async def go():
        remote = await opened(calls(**table))
        try:
            return await remote.call(request(0), send, expects()), remote
        finally:
            await remote.close()

    return asyncio.run(go())


def test_a_temporary_failure_is_sent_again():
    send, sender = failing(Again("busy"), Again("busy"))
    answer, remote = called(send)
    assert answer.usage == Usage(10, 5) and sender.sent == 3
    assert (remote.counts.sent, remote.counts.again, remote.counts.missing) == (3, 2, 0)


def test_a_refusal_is_not_sent_again():
    send, sender = failing(Refused("bad prompt"))
    with pytest.raises(SystemFault, match="bad prompt"):
        called(send)
    assert sender.sent == 1


def test_attempts_end():
    send, sender = failing(*[Again("busy")] * 9)
    with pytest.raises(SystemFault, match=r"busy \(the last of 4 attempts\)"):
        called(send, retries=3)
    assert sender.sent == 4


@pytest.mark.parametrize(("asked", "bound", "least", "most"), [(0.4, 60, 0.4, 1.0), (60.0, 0.2, 0.2, 0.8)])
def test_a_pause_is_kept_and_bounded(asked, bound, least, most):
    send, sender = failing(Again("busy", wait=asked))
    called(send, longest_wait=bound)
    assert least <= sender.times[1] - sender.times[0] <= most


def test_a_pause_holds_for_other_calls_too():
    async def go():
        remote = await opened(calls())
        busy, _ = failing(Again("busy", wait=0.3))
        first = asyncio.create_task(remote.call(request(0), busy, expects()))
        await asyncio.sleep(0.05)
        begin, sender = time.monotonic(), Sender()
        await remote.call(request(1), sender, expects())
        waited = time.monotonic() - begin
        await first
        await remote.close()
        return waited

    assert 0.2 <= asyncio.run(go()) <= 0.8


def test_a_slow_answer_is_cut_off():
    async def drip():
        for _ in range(1000):  # every part comes in time, the whole never
            await asyncio.sleep(0.01)
        raise AssertionError

    begin = time.monotonic()
    with pytest.raises(SystemFault, match=r"no whole answer within 0.1 s"):
        called(drip, timeout=0.1, retries=1)
    assert time.monotonic() - begin < 8, "one attempt would drip for 10 s"


def test_what_a_library_raises_is_missing():
    async def broken():
        raise KeyError("choices")

    with pytest.raises(SystemFault, match="KeyError"):
        called(broken)


def test_after_a_refused_key_nothing_more_is_sent():
    async def go():
        remote = await opened(calls(concurrency=1))
        sender = Sender()

        async def refuse():
            await sender()
            raise ConfigError("the endpoint refuses the key", path="coach.api_key")

        tasks = [remote.call(request(number), refuse, expects()) for number in range(20)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await remote.close()
        return sender.sent, results

    sent, results = asyncio.run(go())
    assert sent == 1 and {str(result) for result in results} == {
        "coach.api_key: the endpoint refuses the key"
    }


def test_after_a_refused_key_a_call_that_waits_for_its_turn_is_not_sent():
    async def go():
        remote = await opened(calls(requests_per_minute=2, minute=0.3))
        refused, waiting = asyncio.Event(), Sender()

        async def refuse():
            await refused.wait()
            raise ConfigError("the endpoint refuses the key", path="coach.api_key")

        tasks = [
            asyncio.create_task(remote.call(request(number), send, expects()))
            for number, send in enumerate((refuse, waiting))
        ]
        await asyncio.sleep(0.05)  # the second one waits for the rate limit
        refused.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await remote.close()
        return waiting.sent, results

    sent, results = asyncio.run(go())
    assert sent == 0 and all(isinstance(result, ConfigError) for result in results)


def test_closing_waits_for_what_was_sent_and_sends_nothing_again():
    async def go():
        remote = await opened(calls(retries=50))
        sender, begun = Sender(), asyncio.Event()

        async def busy():
            sender.sent += 1
            begun.set()
            await asyncio.sleep(0.05)
            raise Again("busy")

        task = asyncio.create_task(remote.call(request(0), busy, expects()))
        await begun.wait()
        await remote.close()
        with pytest.raises(SystemFault, match="busy"):
            await task
        return sender.sent

    assert asyncio.run(go()) == 1


def test_an_endpoint_that_is_down_for_good_costs_its_attempts_once():
    """Twenty calls, one after the other: only the first one waits, until there is an answer again."""

    async def go():
        remote = await opened(calls(concurrency=1, retries=3))
        down, sender = failing(*[Again("down")] * 1000)
        for number in range(20):
            with pytest.raises(SystemFault):
                await remote.call(request(number), down, expects())
        sent = sender.sent
        await remote.call(request(50), Sender(), expects())
        again, patient = failing(Again("down"), Again("down"))
        await remote.call(request(51), again, expects())
        await remote.close()
        return sent, patient.sent

    assert asyncio.run(go()) == (4 + 19, 3)

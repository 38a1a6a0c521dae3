"""`coterie.spans`: what is recorded, within what, and that nothing is without a recording."""

from __future__ import annotations

import asyncio

import pytest

from coterie import Key
from coterie.spans import Trace, include, of_step, recorded, recording, span


def shape(trace: Trace) -> list[tuple[str, str, int]]:
    return [(each.kind, each.place, each.parent) for each in trace.finished()]


def test_a_block_within_a_block_is_its_part():
    with recording(Trace("episode", "a")) as trace:
        with span("decision", Key("t").of_role("one")), span("call", Key("t").of_branch("one", 2)):
            pass
        with span("judge", "b"):
            pass
    assert shape(trace) == [
        ("episode", "a", -1), ("decision", "t/e0/c0/n/one", 0),
        ("call", "t/e0/c0/n/one/b2", 1), ("judge", "b", 0),
    ]  # fmt: skip
    assert all(each.start <= each.end for each in trace.spans)


def test_nothing_is_recorded_outside_and_within_a_recording_of_none():
    with span("call") as attributes:
        attributes["tokens"] = 1
    with recording(Trace("step", "1")) as trace:
        with recording(None), span("call"):
            include([*of_step(2, 0).spans])
            assert recorded() == ()
    assert shape(trace) == [("step", "1", -1)]


def test_blocks_that_share_a_span_run_from_the_first_to_the_last():
    async def act(seconds: float) -> None:
        with span("decision", "d", shared=True, actions={}) as about:
            about["actions"][seconds] = True
            with span("call", str(seconds)):
                await asyncio.sleep(seconds)

    async def play() -> Trace:
        with recording(Trace("episode", "e")) as trace:
            await asyncio.gather(act(0.02), act(0.0), act(0.01))
        return trace

    trace = asyncio.run(play())
    assert [(kind, parent) for kind, _, parent in shape(trace)] == [
        ("episode", -1), ("decision", 0), ("call", 1), ("call", 1), ("call", 1),
    ]  # fmt: skip
    decision, calls = trace.spans[1], trace.spans[2:]
    assert decision.attributes["actions"].keys() == {0.02, 0.0, 0.01}
    assert decision.start <= min(each.start for each in calls)
    assert max(each.end for each in calls) <= decision.end


def test_an_exception_ends_its_spans_and_is_in_them():
    with recording(Trace("episode", "e")) as trace:
        with pytest.raises(ValueError), span("decision", "d"), span("call", "c"):
            raise ValueError("no room")
        with span("judge", "j"):
            pass
    assert [each.error for each in trace.finished()] == ["", "ValueError: no room", "ValueError: no room", ""]
    assert trace.spans[3].parent == 0, "what was open is open again"


def test_episodes_are_parts_of_what_is_open_where_they_come_in():
    played = []
    for place in "ab":
        with recording(Trace("episode", place)), span("call", place):
            pass
        with recording(Trace("episode", place)) as trace:
            with span("call", place):
                pass
        played.append(trace.finished())
    with recording(of_step(3, 5)) as step:
        include(played[0])
        with span("evaluate"):
            include(played[1])
    assert shape(step) == [
        ("step", "3", -1), ("play", "3", 0), ("episode", "a", 0), ("call", "a", 2),
        ("evaluate", "", 0), ("episode", "b", 4), ("call", "b", 5),
    ]  # fmt: skip
    assert step.spans[0].start == step.spans[1].start == 5


def test_a_generator_that_is_closed_elsewhere_ends_its_recording():
    async def steps():
        with recording(Trace("step", "1")):
            yield

    async def run() -> None:
        generator = steps()
        await anext(generator)
        await asyncio.create_task(generator.aclose())  # a task of its own, as asyncio closes generators

    asyncio.run(run())

"""Slots that processes have in common, and the variables that no process of a cluster is started with."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.cluster.connection import secret_variables
from coterie.backends.cluster.wire import environment
from coterie.backends.executors.ray.account import Slots
from coterie.core.errors import SystemFault


def test_slots_are_given_in_the_order_in_which_they_were_asked_for():
    async def go() -> list[int]:
        slots, order = Slots(), []

        async def one(number: int) -> None:
            await slots.acquire("s", 2, f"host {number % 3}", number)
            order.append(number)
            await asyncio.sleep(0)
            slots.release("s", f"host {number % 3}", number)

        await asyncio.gather(*map(one, range(9)))
        assert slots.held("s") == 0
        return order

    assert asyncio.run(go()) == list(range(9))


def test_a_process_that_is_gone_holds_nothing_and_gets_nothing():
    async def go() -> None:
        slots = Slots()
        await slots.acquire("s", 1, "a", 1)
        waits_there = asyncio.ensure_future(slots.acquire("s", 1, "a", 2))
        waits = asyncio.ensure_future(slots.acquire("s", 1, "b", 1))
        await asyncio.sleep(0)
        slots.drop("a")
        await waits
        assert slots.held("s") == 1
        with pytest.raises(asyncio.CancelledError):
            await waits_there
        with pytest.raises(SystemFault, match="a counts as gone"):
            await slots.acquire("s", 1, "a", 3)
        slots.release("s", "a", 1)  # it comes late
        assert slots.held("s") == 1
        slots.release("s", "b", 1)
        assert slots.held("s") == 0

    asyncio.run(go())


def test_a_release_that_overtakes_its_request_takes_no_slot():
    async def go() -> None:
        slots = Slots()
        slots.release("s", "a", 7)
        with pytest.raises(SystemFault, match="before it was asked for"):
            await slots.acquire("s", 1, "a", 7)
        assert slots.held("s") == 0
        await slots.acquire("s", 1, "a", 8)

    asyncio.run(go())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "release", "cancel", "drop"]), st.integers(0, 3), st.integers(0, 5)
    ),
    max_size=60,
)


@given(steps=STEPS, limit=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_never_more_than_the_limit_and_none_is_lost(steps, limit):
    """Whatever is acquired, given back, cancelled or dropped: at the end all slots are free again."""

    async def go() -> None:
        slots, tasks, numbers = Slots(), {}, iter(range(10**6))
        for what, host, at in steps:
            open_ = sorted(tasks)
            if what == "acquire":
                key = (f"host {host}", next(numbers))
                tasks[key] = asyncio.ensure_future(slots.acquire("s", limit, *key))
            elif what == "drop" and host == 3:
                slots.drop(f"host {at % 4}")
            elif open_:
                key = open_[at % len(open_)]
                if what == "cancel":
                    tasks[key].cancel()
                elif tasks[key].done():
                    slots.release("s", *key)
                    tasks.pop(key)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert slots.held("s") <= limit
            alive = [key for key, task in tasks.items() if not task.done()]
            assert not alive or slots.held("s") == limit, "nobody waits for a free slot"
        for host in range(4):
            slots.drop(f"host {host}")
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert slots.held("s") == 0

    asyncio.run(go())


SECRET = ["A_KEY", "OPENAI_API_KEY", "HF_TOKEN", "MY_SECRETS", "DB_PASSWORD",
          "GOOGLE_APPLICATION_CREDENTIALS", "AWS_ACCESS_KEY_ID", "apikey2", "NAMED"]  # fmt: skip
PLAIN = ["TOKENIZERS_PARALLELISM", "KEYBOARD", "PATH", "RAY_AUTH_TOKEN", "SECRETARY", "HOME"]


def test_secret_variables_are_found_by_their_names_and_those_of_the_configuration(monkeypatch):
    for name in [*SECRET, *PLAIN]:
        monkeypatch.setenv(name, f"value of {name}")
    secrets = secret_variables({"NAMED", "HOME", "MISSING"})
    assert set(SECRET) <= secrets.keys()
    assert secrets["NAMED"] == "value of NAMED"
    assert not secrets.keys() & set(PLAIN)


def test_variables_are_back_after_an_error(monkeypatch):
    monkeypatch.setenv("A_KEY", "value")
    with pytest.raises(KeyError), environment(dict.fromkeys(["A_KEY", "NOT_SET"])):
        assert "A_KEY" not in os.environ
        raise KeyError
    assert os.environ["A_KEY"] == "value" and "NOT_SET" not in os.environ

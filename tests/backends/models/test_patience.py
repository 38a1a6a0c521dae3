"""A wait for another process ends in time, and says who was waited for, and since when."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time

import pytest

from coterie.backends.models.patience import NoAnswer, Patience


def test_a_server_that_accepts_and_never_answers_is_named_with_the_time():
    async def go() -> bool:
        held = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            held.set()
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"?")
        begun = time.strftime("%H:%M")
        with pytest.raises(NoAnswer) as caught:
            await Patience("the server", 0.1).wait(reader.read())
        pattern = r"the server has not answered for 0.1 s, since (\d\d:\d\d):\d\d"
        assert re.fullmatch(pattern, str(caught.value))[1] in (begun, time.strftime("%H:%M"))
        writer.close()
        await held.wait()
        server.close()
        return True

    assert asyncio.run(go())


def test_what_is_waited_for_in_vain_is_cancelled_and_its_own_error_passes():
    async def fails() -> None:
        raise ZeroDivisionError

    async def go() -> None:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        with pytest.raises(NoAnswer):
            await Patience("nobody", 0.05).wait(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ZeroDivisionError):
            await Patience("somebody", 60).wait(fails())

    asyncio.run(go())


def test_a_sign_of_life_begins_the_patience_anew():
    patience = Patience("it", 0.2)
    for _ in range(10):
        for seconds in patience.ticks(0.05):
            time.sleep(seconds)
            patience.seen()
            break
    assert patience.left > 0


def test_time_in_which_this_process_did_not_run_is_not_the_others_silence():
    """As after Ctrl-Z and fg, or a sleep of the machine."""
    patience = Patience("it", 0.5)
    rounds = 0
    for seconds in patience.ticks(0.05):
        rounds += 1
        time.sleep(seconds if rounds > 1 else 2.0)
        if rounds == 3:
            break
    assert rounds == 3

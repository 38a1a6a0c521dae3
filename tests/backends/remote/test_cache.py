"""Answers are paid once: the key, identical calls at once, several processes, and databases that break."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from coterie.backends.remote.answers import Answer, Usage
from coterie.backends.remote.database import request_key
from coterie.core.errors import SystemFault, UserError
from tests.backends.remote.support import ENDPOINT, Sender, calls, expects, opened, request


def asked(remote, sender, *numbers):
    """The answers of requests, one after the other."""

    async def go():
        await opened(remote)
        try:
            return [await remote.call(request(number), sender, expects()) for number in numbers]
        finally:
            await remote.close()

    return asyncio.run(go())


def test_the_key_is_of_the_whole_request():
    table = {"model": "m", "messages": [{"role": "user", "content": "é"}], "temperature": 1.0, "seed": 3}
    key = request_key(ENDPOINT, table)
    assert key == request_key(ENDPOINT, dict(reversed(table.items()))), "in any order"
    others = [{**table, name: 7} for name in table] + [{**table, "top_p": 0.5}]
    keys = {key, request_key("https://other/v1", table), *[request_key(ENDPOINT, other) for other in others]}
    assert len(keys) == 2 + len(others)


def test_a_stored_answer_is_not_sent_again(tmp_path):
    sender = Sender()
    first = asked(calls(tmp_path), sender, 1, 2, 1)
    again = asked(calls(tmp_path), sender, 2, 1)
    assert sender.sent == 2 and first[:2] == again[::-1] == [first[2], first[1]]
    usage = json.loads((tmp_path / "remote" / "usage-coach.json").read_text())
    assert usage["this_process"] == {
        "asked": 2, "cached": 2, "joined": 0, "sent": 0, "again": 0, "missing": 0,
    }  # fmt: skip
    assert usage["total"] == {
        "calls": 2, "input_tokens": 20, "output_tokens": 10, "money": 0.0,
        "assumed_calls": 0, "assumed_tokens": 0, "assumed_money": 0.0,
    }  # fmt: skip


def test_identical_calls_at_once_are_sent_once():
    sender = Sender(seconds=0.05)

    async def go():
        remote = await opened(calls())
        answers = await asyncio.gather(*[remote.call(request(1), sender, expects()) for _ in range(50)])
        await remote.close()
        return answers, remote.counts

    answers, counts = asyncio.run(go())
    assert sender.sent == 1 and counts.joined == 49 and all(answer == answers[0] for answer in answers)


def test_a_cancelled_caller_takes_the_answer_from_nobody(tmp_path):
    sender = Sender(seconds=0.1)

    async def go():
        remote = await opened(calls(tmp_path))
        first = asyncio.create_task(remote.call(request(1), sender, expects()))
        second = asyncio.create_task(remote.call(request(1), sender, expects()))
        await asyncio.sleep(0.02)
        first.cancel()
        answer = await second
        alone = asyncio.create_task(remote.call(request(2), sender, expects()))
        await asyncio.sleep(0.02)
        alone.cancel()
        await remote.close()  # what was sent is waited for, and stored
        return answer

    assert asyncio.run(go()).body == {"number": 1}
    asked(calls(tmp_path), sender, 1, 2)
    assert sender.sent == 2


def test_a_failure_is_not_stored(tmp_path):
    async def broken():
        raise ValueError

    with pytest.raises(SystemFault):
        asked(calls(tmp_path), broken, 1)
    sender = Sender()
    asked(calls(tmp_path), sender, 1)
    assert sender.sent == 1


def test_another_version_of_the_model_answers_anew(tmp_path):
    """`gpt-4.1` may stand for another version tomorrow: once that is seen, older answers are not mixed in."""
    old, new = Sender(version="2025-04"), Sender(version="2026-01")
    asked(calls(tmp_path), old, 1, 2)
    asked(calls(tmp_path), new, 1)
    assert new.sent == 0, "not known yet: the stored answer stands"
    asked(calls(tmp_path), new, 3, 1, 2, 1)
    assert new.sent == 3
    (newest,) = asked(calls(tmp_path), Sender(), 1)
    assert newest.version == "2026-01", "of several versions the newest stands"
    with sqlite3.connect(tmp_path / "remote" / "coach.sqlite") as file:
        assert sorted(file.execute("SELECT version FROM answers")) == [("2025-04",)] * 2 + [("2026-01",)] * 3


def test_off_stores_nothing(tmp_path):
    sender = Sender()
    for value in ("off", False):  # YAML 1.1 reads `off` as a boolean
        asked(calls(tmp_path, cache=value), sender, 1)
    assert sender.sent == 2 and not list(tmp_path.rglob("*.sqlite"))


PROCESS = """
import asyncio, sys
from tests.backends.remote.support import Sender, calls, expects, opened, request
async def go():
    remote, sender = await opened(calls(cache=sys.argv[1], budget={"calls": 1000}, concurrency=50)), Sender()
    for round in range(4):
        await asyncio.gather(*[remote.call(request(n), sender, expects()) for n in range(100)])
    await remote.close()
    print(sender.sent)
asyncio.run(go())
"""


def test_two_processes_write_at_once(tmp_path):
    path = tmp_path / "shared.sqlite"
    code = textwrap.dedent(PROCESS)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    sent = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT COUNT(*) FROM answers").fetchone() == (100,)
        assert file.execute("SELECT calls FROM spending").fetchone() == (sum(sent),)
    assert 100 <= sum(sent) <= 200


# ------------------------------------------------------------------------------------- broken databases


def garbage(path):
    path.write_bytes(b"this was a database" * 500)


def foreign(path):
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE photos (id)")


def folder(path):
    path.mkdir()


def torn(path):
    """A page in the middle of the file is lost."""
    asked(calls(cache=str(path)), Sender(), *range(200))
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 4)


@pytest.mark.parametrize("breaks", [garbage, foreign, folder, torn])
def test_a_damaged_database_costs_the_cache_and_not_the_run(tmp_path, caplog, breaks):
    path = tmp_path / "cache.sqlite"
    breaks(path)
    sender = Sender()
    with caplog.at_level(logging.WARNING):
        answers = asked(calls(cache=str(path)), sender, 1, 2)
    assert len(answers) == 2 == sender.sent
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "cache.sqlite does not work" in warning and "fix:" in warning and "goes on" in warning
    with pytest.raises(UserError, match=r"coach.cache: .*does not work"):
        asked(calls(cache=str(path), cache_errors="stop"), sender, 1)
    if breaks is foreign:
        with sqlite3.connect(path) as file:
            assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


def test_a_damaged_row_is_sent_again(tmp_path, caplog):
    sender = Sender()
    asked(calls(tmp_path), sender, 1)
    with sqlite3.connect(tmp_path / "remote" / "coach.sqlite") as file:
        file.execute("UPDATE answers SET body = '{\"number\": 9}'")
    assert asked(calls(tmp_path), sender, 1)[0].body == {"number": 2}
    assert "damaged" in caplog.text


FULL = """
import asyncio, resource, signal, sys
from coterie.backends.remote.answers import Answer, Usage
from tests.backends.remote.support import calls, expects, opened, request
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def send():
    return Answer({"text": "x" * 5000}, Usage(1, 1), "v")
async def go():
    remote = await opened(calls(cache=sys.argv[1], cache_errors=sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    for number in range(100):
        await remote.call(request(number), send, expects())
    await remote.close()
    print(remote.budget.total.calls)
import logging; logging.basicConfig(stream=sys.stdout)
asyncio.run(go())
"""


@pytest.mark.parametrize("errors", ["warn", "stop"])
def test_a_full_disk(tmp_path, errors):
    path = tmp_path / "cache.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(path), errors],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if errors == "warn":
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("does not work") == 1 and done.stdout.splitlines()[-1] == "100"
    else:
        assert done.returncode == 1 and "UserError: coach.cache: the database" in done.stderr
    sender = Sender()
    asked(calls(cache=str(path)), sender, 0, 1)
    assert sender.sent == 0, "what was stored before is intact"


def test_an_answer_may_hold_any_text(tmp_path):
    body = {"text": "\ud800 \x00 é \U0001f600", "nested": [{"a": None}]}

    async def send():
        return Answer(body, Usage(1, 1), "v")

    asked(calls(tmp_path), send, 1)
    assert asked(calls(tmp_path), Sender(), 1)[0].body == body

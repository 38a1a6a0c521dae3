"""Nothing is paid twice, a key is nowhere, and a change of the model's version is a warning."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from coterie.core.protocols import ChatAnswer
from tests.backends.chat_models.support import KEY, PROVIDERS, answers, model, request, server

pytest.importorskip("google.genai")
pytest.importorskip("openai")
ROOT = Path(__file__).resolve().parents[3]
HOT = {"temperature": 1.0}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nothing_is_paid_twice(provider, tmp_path):
    with server(provider, delay=0.02) as loopback:
        asked = [request(number % 5, **HOT, sample=number % 2) for number in range(40)]
        first = answers(model(provider, loopback.url, tmp_path), *asked)
        again = answers(model(provider, loopback.url, tmp_path), *asked)
        assert first == again and all(isinstance(answer, ChatAnswer) for answer in first)
        assert len(loopback.asked) == 10 == len(set(loopback.paid)), "5 prompts, 2 samples"
    usage = json.loads((tmp_path / "remote" / "usage-judge.json").read_text())
    assert usage["this_process"]["cached"] + usage["this_process"]["joined"] == 40
    assert usage["total"]["calls"] == 10 and usage["this_process"]["sent"] == 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_at_temperature_0_the_sample_has_no_effect(provider):
    with server(provider) as loopback:
        answers(model(provider, loopback.url), *[request(1, sample=sample) for sample in range(4)])
        assert len(loopback.asked) == 1 and '"seed"' not in loopback.paid[0]


PROCESS = """
import asyncio, sys
from pathlib import Path
from tests.backends.chat_models.support import model, request
async def go(provider, url, folder):
    made = model(provider, url, Path(folder), concurrency=4)
    await made.open()
    await asyncio.gather(*[made.answer(request(number)) for number in range(40)])
    await made.close()
asyncio.run(go(*sys.argv[1:]))
"""


@pytest.mark.coach
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_killed_process_pays_nothing_twice(provider, tmp_path):
    """The server holds its answers from the 25th request on; then the process is killed, and begun again."""
    line = [sys.executable, "-c", PROCESS, provider]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "A_KEY": KEY}
    with server(provider, hold_after=24) as loopback:
        line += [loopback.url, str(tmp_path)]
        running = subprocess.Popen(line, env=environment)
        begin = time.monotonic()
        while len(loopback.asked) < 28 and time.monotonic() - begin < 120:
            time.sleep(0.02)
        time.sleep(0.1)
        running.send_signal(signal.SIGKILL)
        running.wait()
        loopback.release()
        time.sleep(0.2)
        assert len(loopback.paid) == 24
        subprocess.run(line, env=environment, check=True, timeout=120)
        assert len(loopback.paid) == 40 == len(set(loopback.paid))
        assert len(loopback.asked) == 44, "those under way at the kill were sent again"
    usage = json.loads((tmp_path / "remote" / "usage-judge.json").read_text())
    assert usage["this_process"]["cached"] == 24 and usage["total"]["calls"] == 44


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_planted_key_is_nowhere(provider, tmp_path, caplog):
    """Faults, answers and versions that repeat the key, debug logs of the SDK, and the cache."""
    caplog.set_level(logging.DEBUG)
    faults = ("500", "429", "400", "truncated", "reset", "type", "safety")
    echo = {"answer": lambda body: f"the key is {KEY}", "version": f"m-{KEY}", "echo_key": True}
    with server(provider, faults=faults, **echo) as loopback:
        results = answers(model(provider, loopback.url, tmp_path, concurrency=1), *map(request, range(8)))
        sent = loopback.asked[0].headers
        assert KEY in (sent.get("x-goog-api-key"), sent.get("authorization", "").removeprefix("Bearer "))
        loopback.always = "401"
        results += answers(model(provider, loopback.url, tmp_path), request(100))
        loopback.always, loopback.version = "", f"other-{KEY}"
        results += answers(model(provider, loopback.url, tmp_path), request(101))
    faulty = [result for result in results if isinstance(result, Exception)]
    assert 4 <= len(faulty) < len(results) and "${A_KEY}" in str(faulty)
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 3 and any(b"${A_KEY}" in content for content in files)
    texts = [content.decode("latin-1") for content in files]
    texts += ["".join(traceback.format_exception(fault)) for fault in faulty]
    texts += [str(result) for result in results] + [logging.Formatter().format(r) for r in caplog.records]
    assert len(caplog.records) > 10 and not [text for text in texts if "pl4nted" in text]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_change_of_the_version_warns_once_also_over_a_resume(provider, tmp_path, caplog):
    def ask(*numbers, **settings):
        """The versions of answers, one after the other, in a process of their own."""
        made = model(provider, loopback.url, tmp_path, **settings)

        async def go():
            await made.open()
            versions = [(await made.answer(request(number))).version for number in numbers]
            await made.close()
            return versions

        return asyncio.run(go())

    def warned():
        records = [record.getMessage() for record in caplog.records if "another version" in record.message]
        return [text.split(": ", 2)[2].split(". ")[0] for text in records]

    with server(provider, version="v1") as loopback:
        assert ask(1, 2) == ["v1", "v1"] and warned() == []
        loopback.version = "v2"
        assert ask(1, 2) == ["v1", "v1"], "nothing was sent, so nothing is known of v2"
        assert ask(3, 4) == ["v2", "v2"] and warned() == ["v1 -> v2"]
        asked = len(loopback.asked)
        assert ask(5, 1) == ["v2", "v2"] and len(loopback.asked) == asked + 2, "stored answers of v1 are out"
        assert warned() == ["v1 -> v2"]
        loopback.version = "v3"
        assert ask(6, cache="off") == ["v3"] and warned() == ["v1 -> v2", "v2 -> v3"]
    assert "chat_models.judge: the provider answers 'tiny-1'" in caplog.text
    stored = json.loads((tmp_path / "remote" / "version-judge.json").read_text())
    assert stored == {"model": "tiny-1", "version": "v3"}


def test_the_first_version_of_a_run_may_come_from_a_shared_cache(tmp_path, caplog):
    with server("openai", version="v1") as loopback:
        shared = {"cache": str(tmp_path / "shared.sqlite")}
        answers(model("openai", loopback.url, **shared), request(1))
        loopback.version = "v2"
        made = model("openai", loopback.url, tmp_path / "run", **shared)
        answers(made, request(1))
        answers(model("openai", loopback.url, tmp_path / "run", **shared), request(2))
    assert "v1 -> v2" in caplog.text

"""Faults of wires and providers, through the real SDKs: each is an answer, a stop, or missing, in time."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from coterie.core.errors import SystemFault, UserError
from coterie.core.protocols import ChatAnswer
from tests.backends.chat_models.support import PROVIDERS, answers, model, request, server

pytest.importorskip("google.genai")
pytest.importorskip("openai")

STOPS = {
    "401": "the endpoint refuses the key", "403": "denies this key access",
    "unknown_model": "does not have the model 'tiny-1'", "quota": "quota",
    "wrong_key": "the endpoint refuses the key", "daily": "the provider's quota of this day is spent",
    "region": "the provider refuses this account",
}  # fmt: skip
ENDLESS = ("hang", "drip")
REPAIRED = (
    "408",
    "429",
    "429_after",
    "429_date",
    "429_body",
    "500",
    "503",
    "html",
    "reset",
    "torn",
    *ENDLESS,
)
MISSING = {
    "truncated": "no JSON", "empty": "without a candidate", "safety": "", "type": "", "400": "answered 400",
    "blocked": "blocked the prompt (PROHIBITED_CONTENT)", "no_content": "without text",
    "thoughts": "its limit ended it; raise thought_tokens",
}  # fmt: skip
OF_GEMINI = ("wrong_key", "daily", "region", "429_body", "html", "blocked", "no_content", "thoughts")
OF_OPENAI = ("quota",)


def cases(faults, slow=()):
    """(provider, fault) of the faults that the provider has.

    Of OpenAI's the tests of the engine `openai` try most of the same wire, so `make test-coach` runs them.
    """
    return [
        pytest.param(
            provider,
            fault,
            marks=[pytest.mark.coach] * (fault in slow or (provider == "openai" and faults is not STOPS)),
            id=f"{provider}-{fault}",
        )
        for provider in PROVIDERS
        for fault in faults
        if fault not in (OF_OPENAI if provider == "gemini" else OF_GEMINI)
    ]


def bounded(fault):
    return {"timeout": 0.8} if fault in ENDLESS else {}


def warm(provider):
    """Import the SDK before a short time limit runs."""
    with server(provider) as loopback:
        answers(model(provider, loopback.url), request())


@pytest.mark.parametrize(("provider", "fault"), cases(STOPS))
def test_a_setup_that_cannot_work_stops_at_once(provider, fault):
    with server(provider, always=fault) as loopback:
        results = answers(model(provider, loopback.url, concurrency=1), *map(request, range(8)))
        assert len(loopback.asked) == 1
    assert all(isinstance(result, UserError) and STOPS[fault] in str(result) for result in results), results
    assert results[0].fix and results[0].path.startswith("chat_models.judge")
    if fault == "wrong_key":
        assert "answered 400" in results[0].why and results[0].path == "chat_models.judge.api_key"


@pytest.mark.parametrize(("provider", "fault"), cases(REPAIRED, slow=("429_after", "429_date", *ENDLESS)))
def test_a_temporary_fault_is_repaired(provider, fault):
    if fault in ENDLESS:
        warm(provider)
    with server(provider, faults=(fault,) * 2, retry_after=0.2) as loopback:
        begin = time.monotonic()
        (answer,) = answers(model(provider, loopback.url, **bounded(fault)), request())
        seconds = time.monotonic() - begin
        assert isinstance(answer, ChatAnswer), answer
        assert set(json.loads(answer.text)) == {"score", "reason"} and len(loopback.asked) == 3
    assert seconds < 30
    if fault in ("429_after", "429_body"):
        assert seconds >= 2 * loopback.retry_after


@pytest.mark.coach
@pytest.mark.parametrize(("provider", "fault"), cases(REPAIRED))
def test_a_fault_that_stays_is_missing_in_time(provider, fault):
    if fault in ENDLESS:
        warm(provider)
    with server(provider, always=fault, retry_after=0.05) as loopback:
        begin = time.monotonic()
        (result,) = answers(model(provider, loopback.url, retries=1, **bounded(fault)), request())
        assert isinstance(result, SystemFault) and "the last of 2 attempts" in str(result), result
        assert loopback.url in str(result) and len(loopback.asked) == 2
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(("provider", "fault"), cases(MISSING))
def test_an_answer_that_cannot_be_used_is_missing_and_not_kept(provider, fault, tmp_path):
    with server(provider, faults=(fault,)) as loopback:
        (result,) = answers(model(provider, loopback.url, tmp_path), request())
        assert isinstance(result, SystemFault) and MISSING[fault] in str(result), result
        assert len(loopback.asked) == 1 and len(str(result)) < 700, "another attempt would be paid too"
        (answer,) = answers(model(provider, loopback.url, tmp_path), request())
        assert isinstance(answer, ChatAnswer) and len(loopback.asked) == 2
    usage = json.loads((tmp_path / "remote" / "usage-judge.json").read_text())
    assert usage["total"]["calls"] == (1 if fault == "400" else 2), "it may have been paid"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_that_goes_and_comes_back(provider):
    async def go():
        made, port, results = None, 0, []
        with server(provider) as first:
            port = first.port
            made = model(provider, first.url, retries=1, backoff=0.01)
            await made.open()
            results += [await made.answer(request(number)) for number in range(3)]
        for number in range(3, 6):
            results += await asyncio.gather(made.answer(request(number)), return_exceptions=True)
        with server(provider, port=port) as second:
            results += [await made.answer(request(number)) for number in range(6, 9)]
            await made.close()
            return results, len(first.asked), len(second.asked)

    results, before, after = asyncio.run(go())
    assert [type(result) for result in results] == [ChatAnswer] * 3 + [SystemFault] * 3 + [ChatAnswer] * 3
    assert (before, after) == (3, 3)


@pytest.mark.coach
@pytest.mark.parametrize("provider", PROVIDERS)
def test_two_hundred_calls_at_once_keep_the_limits(provider, tmp_path):
    """100 requests a second in bursts of 100: the last of 200 leaves after a second."""
    warm(provider)
    limits = {"concurrency": 25, "requests_per_minute": 6000, "budget": {"calls": 1000}}
    with server(provider, delay=0.02) as loopback:
        made = model(provider, loopback.url, tmp_path, **limits)
        begin = time.monotonic()  # a busy server gets the first request late
        results = answers(made, *map(request, range(200)))
        times = sorted(asked.at for asked in loopback.asked)
        assert loopback.at_once <= 25 and len(times) == 200 == len(set(loopback.paid))
    assert all(isinstance(result, ChatAnswer) for result in results)
    assert times[-1] - begin >= 0.9


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_spent_budget_stops_and_is_never_overspent(provider, tmp_path):
    with server(provider) as loopback:
        results = answers(
            model(provider, loopback.url, tmp_path, budget={"calls": 7}), *map(request, range(20))
        )
        assert len(loopback.asked) == 7
        stops = [result for result in results if isinstance(result, UserError)]
        assert len(stops) == 13 and stops[0].path == "chat_models.judge.budget"
        more = answers(
            model(provider, loopback.url, tmp_path, budget={"calls": 20}), *map(request, range(20))
        )
        assert all(isinstance(answer, ChatAnswer) for answer in more)
        assert len(loopback.asked) == 20 == len(set(loopback.paid)), "nothing is paid twice"

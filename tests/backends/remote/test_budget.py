"""A budget is never overspent, however many calls there are at once, and survives the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3

import pytest

from coterie.backends.remote.answers import Answer, Expected, Usage, expected
from coterie.backends.remote.faults import Again, Refused
from coterie.core.errors import ConfigError, SystemFault, UserError
from tests.backends.remote.support import Sender, calls, expects, opened, request


def played(remote, sender, count=200, expected=None, first=0):
    async def go():
        await opened(remote)
        results = await asyncio.gather(
            *[remote.call(request(first + number), sender, expected or expects()) for number in range(count)],
            return_exceptions=True,
        )
        await remote.close()
        return results

    return asyncio.run(go())


def answers(results):
    return [result for result in results if isinstance(result, Answer)]


def errors(results):
    return {str(result) for result in results if isinstance(result, UserError)}


def test_calls_are_bounded_exactly(tmp_path):
    sender = Sender(seconds=0.01)
    results = played(calls(tmp_path, concurrency=50, budget={"calls": 37}), sender)
    assert sender.sent == 37 == len(answers(results)), "those under way finish"
    (error,) = errors(results)
    assert error.startswith("coach.budget: the budget is spent: 37 calls, 370 + 185 tokens of 37 calls")
    assert "resume" in error


def test_tokens_are_bounded_with_what_may_still_be_used(tmp_path):
    """Forty calls fit by their use of 15 tokens; each may use 30 until it has answered."""
    sender = Sender(Usage(10, 5), seconds=0.005)
    remote = calls(
        tmp_path,
        concurrency=50,
        budget={"tokens": 600},
    )
    results = played(remote, sender, expected=Expected(Usage(10, 20), 10))
    assert remote.budget.total.tokens <= 600
    assert 600 - remote.budget.total.tokens < 30, "no more is left than one call may need"
    assert len(answers(results)) == remote.budget.total.calls
    assert errors(results)


@pytest.mark.parametrize("texts", [[""], ["a"] * 9, ["\U0001f600" * 40], ["word " * 50, "x"]])
def test_a_prompts_bound_counts_the_chat_formats_tokens_too(texts):
    """ChatML has five tokens around each message and three at the end; other tokens have a byte at least."""
    most = sum(len(text.encode()) for text in texts) + 5 * len(texts) + 3
    assert expected(texts, 7).most.input_tokens >= most and expected(texts, 7).most.output_tokens == 7


def test_money_is_bounded(tmp_path):
    """A call costs 10 x 1 + 5 x 2 = 20 millionths, and at most 10 + 20 before it has answered."""
    sender = Sender(Usage(10, 5), seconds=0.002)
    remote = calls(
        tmp_path, budget={"money": 0.001}, prices={"m": {"input": 1.0, "output": 2.0}}, concurrency=50
    )
    results = played(remote, sender)
    assert remote.budget.total.money <= 0.001 + 1e-12
    assert remote.budget.total.money == pytest.approx(20e-6 * len(answers(results)))
    assert len(answers(results)) == 49, "50 cost 0.001; the last one's bound would pass it"
    assert "cost 0.001" in errors(results).pop()


def test_money_needs_a_price_of_every_model():
    remote = calls(budget={"money": 1}, prices={"m": {"input": 1, "output": 1}})
    with pytest.raises(ConfigError, match="'other' has no price"):
        asyncio.run(opened(remote, "m", "other"))


def test_a_resumed_run_knows_what_was_spent(tmp_path):
    sender = Sender()
    played(calls(tmp_path, budget={"calls": 30}), sender, 20)
    results = played(calls(tmp_path, budget={"calls": 30}), sender, 200, first=10)
    assert sender.sent == 30 and len(answers(results)) == 20, "ten of them from the cache"
    played(calls(tmp_path, budget={"calls": 35}), sender, 200, first=500)
    assert sender.sent == 35


def test_a_killed_call_counts_with_its_reservation(tmp_path):
    """The reservation is stored before the call is sent."""
    seen = []

    async def spying():
        with sqlite3.connect(tmp_path / "remote" / "coach.sqlite") as other:
            seen.append(other.execute("SELECT calls, input_tokens, output_tokens FROM spending").fetchone())
        return Answer({}, Usage(3, 2), "v")

    remote = calls(tmp_path)
    played(remote, spying, 1, Expected(Usage(10, 20), 40))
    assert seen == [(1, 40, 20)] and remote.budget.total.tokens == 5


def test_two_processes_share_a_budget(tmp_path):
    """Two `RemoteCalls` on one file know of each other by the file alone."""
    sender = Sender(seconds=0.003)
    both = [calls(cache=str(tmp_path / "shared.sqlite"), budget={"calls": 40}) for _ in range(2)]

    async def go():
        for remote in both:
            await opened(remote)
        results = await asyncio.gather(
            *[
                remote.call(request(number + 1000 * index), sender, expects())
                for index, remote in enumerate(both)
                for number in range(60)
            ],
            return_exceptions=True,
        )
        for remote in both:
            await remote.close()
        return results

    results = asyncio.run(go())
    assert sender.sent == 40 == len(answers(results))


@pytest.mark.parametrize(
    ("fault", "calls_counted", "tokens"),
    [
        (Again("429"), 0, 0),
        (Refused("400"), 0, 0),
        (Again("time-out", charged=True), 2, 40),
        (Refused("an answer that is no JSON", charged=True), 1, 20),
    ],
)
def test_a_failure_counts_where_it_may_have_been_paid(tmp_path, fault, calls_counted, tokens):
    async def failing():
        raise fault

    remote = calls(tmp_path, retries=1)
    results = played(remote, failing, 1)
    assert isinstance(results[0], SystemFault)
    assert (remote.budget.total.calls, remote.budget.total.tokens) == (calls_counted, tokens)


def test_an_answer_without_a_usage_counts_with_its_estimate(tmp_path):
    remote = calls(tmp_path)
    played(remote, Sender(usage=None), 1, Expected(Usage(10, 20), 40))
    assert remote.budget.total.tokens == 30


def test_without_a_database_the_budget_holds_within_the_process(caplog):
    sender = Sender(seconds=0.002)
    with caplog.at_level(logging.WARNING):
        played(calls(budget={"calls": 5}), sender)
    assert sender.sent == 5 and "begins anew with every process" in caplog.text


def test_a_database_that_breaks_later_costs_the_cache_and_the_budget_holds_within_the_process(
    tmp_path, caplog
):
    remote, sender = calls(tmp_path, budget={"calls": 3}), Sender()

    async def go():
        await opened(remote)
        await remote.call(request(0), sender, expects())
        with sqlite3.connect(tmp_path / "remote" / "coach.sqlite") as file:
            file.execute("DROP TABLE answers")
        for number in (1, 2):
            await remote.call(request(number), sender, expects())
        with pytest.raises(UserError, match="the budget is spent: 3 calls"):
            await remote.call(request(3), sender, expects())
        await remote.close()

    asyncio.run(go())
    assert sender.sent == 3 and "does not work" in caplog.text


def test_a_budget_that_cannot_be_read_stops_the_run(tmp_path):
    """Going on would forget what is spent."""
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "coach.sqlite").write_bytes(b"not a database, by no means" * 100)
    with pytest.raises(UserError, match=r"coach.cache: the database of remote calls .* does not work"):
        asyncio.run(opened(calls(tmp_path, budget={"calls": 5})))


@pytest.mark.parametrize("usage", [Usage(10**30, 10**30), Usage(-1000, 5), Usage(1, 2**63)])
def test_a_usage_that_cannot_be_counts_as_the_estimate_with_one_warning(usage, tmp_path, caplog):
    remote = calls(tmp_path, tokens_per_minute=1e9, prices={"m": {"input": 1, "output": 1}})
    results = played(remote, Sender(usage), 5, Expected(Usage(10, 20), 10))
    assert len(answers(results)) == 5 and remote.budget.total.tokens == 5 * 30
    assert [record.message for record in caplog.records if "can't be" in record.message] == [
        caplog.records[0].message
    ]
    assert all(answer.usage is None for answer in answers(results))


def test_the_usage_is_written_beside_a_cache_that_is_elsewhere(tmp_path, caplog):
    played(calls(tmp_path / "run", cache=str(tmp_path / "shared.sqlite")), Sender(), 1)
    assert (tmp_path / "run" / "remote" / "usage-coach.json").is_file() and "can't be" not in caplog.text


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_assumed_is_shown_apart_from_what_was_reported(tmp_path, caplog, stored):
    """Ten calls with a usage of 15 tokens; three without, which count with their estimate, 10 + 20 each; one
    that may have been paid, with its reservation of 40 + 20."""
    caplog.set_level(logging.INFO, "coterie.usage")

    async def lost():
        raise Refused("the connection broke", charged=True)

    remote = calls(
        tmp_path, prices={"m": {"input": 1.0, "output": 2.0}}, cache="auto" if stored else "off", retries=0
    )
    given = Expected(Usage(10, 20), 40)

    async def go():
        await opened(remote)
        for number, sender in enumerate([Sender()] * 10 + [Sender(usage=None)] * 3 + [lost]):
            with contextlib.suppress(SystemFault):
                await remote.call(request(number), sender, given)
        await remote.close()

    asyncio.run(go())
    total = remote.budget.total
    assert (total.calls, total.input_tokens, total.output_tokens) == (14, 170, 130)
    assert (total.assumed_calls, total.assumed_tokens) == (4, 150)
    assert total.assumed_money == pytest.approx((70 + 2 * 80) / 1e6)
    assert total.money == pytest.approx((170 + 2 * 130) / 1e6)
    assert (
        "14 calls, 170 + 130 tokens, cost 0.00043 (of these assumed, as no usage came back: 4 calls, 150 "
        "tokens, cost 0.00023)" in caplog.text
    )
    table = json.loads((tmp_path / "remote" / "usage-coach.json").read_text())
    assert table["total"]["assumed_calls"] == 4 and table["spent"]["m"]["assumed_tokens"] == 150

"""A source that fails too often stops the run, whatever the others answered."""

from __future__ import annotations

import asyncio
import logging

import pytest

from coterie import TEAM, PolicyFault, SystemFault
from coterie.api.open_run import open_run
from coterie.compose.evaluation_sets import first_tasks
from coterie.core.errors import ConfigError, TooManyMissing
from coterie.core.training.evaluation import evaluate
from coterie.testing import coterie_run, play_episode


def down(view):
    """A judge that is down, and is not asked about what nobody can read."""
    if any(action.fault for action in view.actions.values()):
        return -1.0
    raise SystemFault("503 from the judge")


def down_with_floors(view):
    if any(action.fault for action in view.actions.values()):
        raise PolicyFault("unreadable")
    raise SystemFault("503 from the judge")


def once(view):
    if view.actions["one"].text == "7":
        raise SystemFault("502 from the judge")
    return 1.0


def run_with(function, texts, *, order=("one",), **tables):
    rewards = {
        "environment": {"type": "environment"},
        "judge": {"type": "function", "function": f"{__name__}:{function}"} | tables.pop("judge", {}),
    }
    return coterie_run(
        texts, order=list(order), rewards=rewards, sampler={"branches": len(texts["one"])}, **tables
    )


@pytest.mark.parametrize("function", ["down", "down_with_floors"])
def test_a_judge_that_is_down_does_not_hide_behind_what_it_need_not_judge(function):
    run = run_with(function, {"one": ["1", *["bad"] * 9]})
    with pytest.raises(
        TooManyMissing, match=r"(?s)1 of 1 scores of the reward 'judge'.*max_missing=0.2.*503"
    ):
        play_episode(run)


def test_nor_behind_other_sources_and_components():
    run = run_with("once", {"one": ["7", "1", "1"]})
    with pytest.raises(TooManyMissing, match="1 of 3 scores of the reward 'judge'"):
        play_episode(run)


def test_a_source_may_have_a_bound_of_its_own():
    trees, _ = play_episode(run_with("once", {"one": ["7", "1", "1"]}, judge={"max_missing": 0.4}))
    assert len(trees) == 1
    run = run_with("once", {"one": ["7", *["1"] * 9]}, judge={"max_missing": 0.05})
    with pytest.raises(TooManyMissing, match=r"1 of 10 .* above rewards\.judge\.max_missing=0\.05"):
        play_episode(run)


@pytest.mark.parametrize(("key", "value"), [("max_missing", 1.5), ("max_missing", "few"), ("concurrency", 0)])
def test_a_wrong_bound_is_told_with_its_path(key, value):
    with pytest.raises(ConfigError) as error:
        run_with("once", {"one": ["1", "2"]}, judge={key: value})
    assert error.value.path == f"rewards.judge.{key}"


class Flaky:
    """Loses every tenth call, whatever was written."""

    calls = 0


def every_tenth(view):
    Flaky.calls += 1
    if Flaky.calls % 10 == 0:
        raise SystemFault("429")
    return 1.0


@pytest.mark.parametrize("read", [0, 1, 5])
def test_a_source_that_is_asked_about_everything_is_judged_by_everything(read):
    """An untrained team that can't be read yet and a judge with a tenth of 429 may go on."""
    Flaky.calls = 0
    run = run_with("every_tenth", {"one": [*["1"] * read, *["bad"] * (30 - read)]})
    play_episode(run)
    assert Flaky.calls == 30
    with pytest.raises(TooManyMissing, match="3 of 30 scores"):
        play_episode(run_with("every_tenth", {"one": ["bad"] * 30}, judge={"max_missing": 0.05}))


def for_each(view):
    """One score of the team and one of each role; the first call is lost."""
    Flaky.calls += 1
    if Flaky.calls <= 3:
        raise SystemFault("503")
    return {(role, "judge"): 1.0 for role in (*view.actions, TEAM)}


def test_a_call_counts_once_however_many_scores_it_gives():
    """3 of 10 calls, and 3 of 24 scores: a larger team must not hide the outage."""
    Flaky.calls = 0
    texts = {"one": ["1"] * 10, "two": ["1"] * 10}
    with pytest.raises(TooManyMissing, match="3 of 10 scores of the reward 'judge'"):
        play_episode(run_with("for_each", texts, order=[["one", "two"]]))


@pytest.mark.parametrize("function", ["down", "down_with_floors"])
def test_a_source_of_weight_0_stops_nothing_and_is_told(function, caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        play_episode(run_with(function, {"one": ["1", "2"]}, judge={"weights": {"judge": 0}}))
    assert "503 from the judge" in caplog.text


@pytest.mark.parametrize(
    ("function", "reason"),
    [("not_a_number", "nan is no number"), ("silent", "no score"), ("strange", "nobody")],
)
def test_whatever_makes_a_score_missing_is_told_once(function, reason, caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        play_episode(run_with(function, {"one": ["1", "2", "3"]}, judge={"max_missing": 1.0}))
    (record,) = [record for record in caplog.records if "a score is missing" in record.message]
    assert reason in record.message


def not_a_number(view):
    return float("nan")


def silent(view):
    return None


def strange(view):
    return {("nobody", "judge"): 1.0}


async def cancelled(view):
    """What a client library may leak where a call inside it was cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await task


def test_a_cancellation_inside_a_source_is_its_failure_and_none_of_the_run(caplog):
    trees, _ = play_episode(run_with("cancelled", {"one": ["1", "2"]}, judge={"max_missing": 1.0}))
    assert len(trees) == 1 and "CancelledError" in caplog.text
    with pytest.raises(TooManyMissing, match="2 of 2 scores"):
        play_episode(run_with("cancelled", {"one": ["1", "2"]}))


def test_lost_joint_actions_are_told_below_the_bound_too(caplog):
    run = coterie_run(
        {"one": ["1", "2", "3"]}, order=["one"], env={"fail_on": "2"}, schedule={"max_missing": 0.5}
    )
    play_episode(run)
    assert "1 of 3 joint actions were lost in this step: environment" in caplog.text
    assert "NumberGame' of coterie: step raised SystemFault: the world broke" in caplog.text


def test_an_evaluation_says_that_it_is_one():
    run = run_with("down", {"one": ["1", "2"]})

    async def evaluated():
        try:
            await open_run(run)
            await evaluate(run, "val", first_tasks(run.environment, "val", 2, run.config.seed))
        finally:
            await run.close()

    with pytest.raises(
        TooManyMissing, match=r"(?s)2 of 2 scores .* in this evaluation.*fix: repair the cause and resume"
    ):
        asyncio.run(evaluated())


def test_the_first_reason_is_told_at_once_and_no_other(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        play_episode(run_with("once", {"one": ["7", "7", "1"]}, judge={"max_missing": 1.0}))
    assert [record.message for record in caplog.records] == [
        "rewards.judge: a score is missing: reward 'function' of coterie: score raised SystemFault: 502 from "
        "the judge. Later ones are only counted"
    ]


def test_an_engine_that_loses_too_many_calls_stops_the_run_too():
    run = coterie_run({"one": ["1", "2", "3"]}, order=["one"], env={"fail_on": "2"})
    with pytest.raises(
        TooManyMissing, match=r"(?s)1 of 3 joint actions were lost .*schedule.max_missing=0.2.*world broke"
    ):
        play_episode(run)


def test_one_role_that_can_be_read_makes_a_joint_action_one_that_was_asked_for():
    texts = {"one": ["7", *["bad"] * 9], "two": ["1"] * 10}
    run = run_with("once", texts, order=[["one", "two"]])
    assert len(play_episode(run)[0]) == 1

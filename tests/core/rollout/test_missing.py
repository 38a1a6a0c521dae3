"""A source that fails too often stops the run, whatever the others answered."""

from __future__ import annotations

import logging

import pytest

from coterie import PolicyFault, SystemFault
from coterie.core.errors import ConfigError, TooManyMissing
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


def test_the_first_reason_is_told_at_once_and_no_other(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        play_episode(run_with("once", {"one": ["7", "7", "1"]}, judge={"max_missing": 1.0}))
    assert [record.message for record in caplog.records] == [
        "rewards.judge: a score is missing: 502 from the judge. Later ones are only counted"
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

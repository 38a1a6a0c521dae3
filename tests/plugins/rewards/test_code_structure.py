"""The levels of `code_structure`, worked out by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.rewards.reports import HIGHEST, CodeStructure, GoldenTests, UnitTests, levels
from tests.plugins.support import Build, make

GOOD = {
    "team": True, "aux": True, "main": True, "builds": True, "runs": True, "passed": 4, "total": 4,
    "visible_passed": 1, "visible_total": 2, "called": True, "thin": False, "ignored": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({}, 4.0),  # .4 + .6 + .5 + 1 + .5 + 1
        ({"aux": False, "called": False}, 2.1),  # .6 + .5 + 1: without aux nothing more
        ({"main": False}, 0.4),
        ({"main": False, "aux": False}, 0.0),
        ({"builds": False}, 1.0),  # .4 + .6
        ({"passed": 0}, 1.5),  # .4 + .6 + .5, and no test passed
        ({"passed": 1}, 3.25),  # 1.5 + .25 + 1.5
        ({"called": False}, 2.5),  # none of the three without a call
        ({"passed": 3, "called": False}, 2.25),
        ({"called": False, "thin": True}, 2.5),
        ({"called": False, "ignored": True}, 2.5),
        ({"passed": 0, "called": False}, 1.5),
        ({"thin": True}, 3.0),
        ({"team": False}, 2.1),  # whatever a report says of aux
        ({"ignored": True}, 3.5),
        ({"thin": True, "ignored": True}, 2.5),
        ({"total": 0, "passed": 0}, 1.5),
        ({"team": False, "aux": False}, 2.1),
    ],
)
def test_the_sum_of_the_levels(change, value):
    assert levels({**GOOD, **change}) == pytest.approx(value)


def reports():
    """Reports of programs."""
    flags = {name: st.booleans() for name in ("team", "aux", "main", "builds", "called", "thin", "ignored")}
    return st.fixed_dictionaries({**flags, "passed": st.integers(0, 5), "total": st.just(5)})


@given(reports())
def test_the_levels_are_bounded_and_later_ones_need_the_earlier(report):
    value = levels(report)
    assert 0.0 <= value <= HIGHEST == 4.0
    if not report["main"]:
        assert value <= 0.4
    elif not report["builds"] or not report["passed"]:
        assert value <= 1.5


@given(reports(), st.integers(0, 4))
def test_one_more_test_never_pays_less(report, passed):
    assert levels({**report, "passed": passed + 1}) >= levels({**report, "passed": passed})


@given(reports())
def test_without_a_call_cooperation_earns_nothing_whatever_else_is_said(report):
    silent = {**report, "called": False}
    plain = {**silent, "thin": False, "ignored": False}
    assert levels(silent) == levels(plain) <= 2.5


def scored(plugin, info, roles=("aux", "main"), **settings):
    environment = SimpleNamespace(reports=("code",))
    build = Build(order=["coder", "tester"], path="rewards.x", environment=environment)
    source = make(plugin, build, **settings)
    view = SimpleNamespace(info=info, actions=dict.fromkeys(roles))
    return asyncio.run(source.score(view)), source


def test_scale_shift_and_the_floor():
    table, source = scored(CodeStructure, {"code": GOOD}, scale=0.5, shift=-1.0)
    assert table == {("team", "code_structure"): 1.0} and source.policy_fault == -1.0
    table, source = scored(
        CodeStructure, {"code": {**GOOD, "main": False, "aux": False}}, scale=0.5, shift=-1.0
    )
    assert table[("team", "code_structure")] == source.policy_fault, "nothing is worse than the floor"


def test_a_step_without_a_program_has_no_score():
    for plugin in (CodeStructure, UnitTests, GoldenTests):
        assert scored(plugin, {})[0] == {}


@pytest.mark.parametrize(
    ("change", "builds", "runs", "golden"),
    [
        ({}, 1.0, 1.0, 1.0),
        ({"passed": 1}, 1.0, 1.0, 0.25),
        ({"passed": 0}, 1.0, 1.0, 0.0),
        ({"passed": 0, "runs": False}, 1.0, 0.0, 0.0),
        ({"passed": 0, "runs": False, "builds": False}, 0.0, 0.0, 0.0),
        ({"passed": 0, "total": 0}, 1.0, 1.0, 0.0),
    ],
)
def test_a_coder_earns_for_building_for_running_and_for_hidden_tests(change, builds, runs, golden):
    table, source = scored(GoldenTests, {"code": {**GOOD, **change}}, roles=("coder",))
    assert [table["coder", name] for name in ("builds", "runs", "golden")] == [builds, runs, golden]
    assert table["team", "golden_tests"] == golden and sum(source.weights.values()) - 1 == pytest.approx(1)


def test_shares_of_visible_and_of_hidden_tests():
    assert scored(UnitTests, {"code": GOOD})[0] == {("team", "unit_tests"): 0.5}
    assert scored(UnitTests, {"code": {**GOOD, "visible_total": 0}})[0] == {}
    report = {**GOOD, "passed": 1, "runs": False}
    table, source = scored(GoldenTests, {"code": report}, roles=("coder",))
    assert table == {
        ("team", "golden_tests"): 0.25,
        ("coder", "builds"): 1.0,
        ("coder", "runs"): 0.0,
        ("coder", "golden"): 0.25,
    }
    local = sum(source.weights[name] * table["coder", name] for name in ("builds", "runs", "golden"))
    assert local == pytest.approx(0.1 + 0.8 * 0.25)
    assert set(scored(GoldenTests, {"code": report}, roles=("tester",))[0]) == {("team", "golden_tests")}

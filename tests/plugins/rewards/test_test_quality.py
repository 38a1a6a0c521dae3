"""The reward source `test_quality`: what the role that writes tests earns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from coterie.core.errors import ConfigError
from coterie.plugins.rewards.reports import TestQuality as Quality
from tests.plugins.support import Build, make

REPORT = {"author": "tester", "count": 4, "valid": 0.5, "right": 0.75}


def scored(info, roles=("coder", "tester"), reports=("tests",), **settings):
    build = Build(order=["coder", "tester"], path="rewards.x", environment=SimpleNamespace(reports=reports))
    source = make(Quality, build, **settings)
    return asyncio.run(source.score(SimpleNamespace(info=info, actions=dict.fromkeys(roles)))), source


def test_the_author_earns_a_fifth_for_readable_tests_and_the_rest_for_right_ones():
    scores, source = scored({"tests": REPORT})
    assert scores == {("tester", "valid"): 0.5, ("tester", "right"): 0.75}
    assert sum(source.weights[name] * value for (_, name), value in scores.items()) == pytest.approx(0.7)
    assert sum(source.weights.values()) == 1.0


def test_without_a_sound_reference_only_the_reading_counts():
    assert scored({"tests": {**REPORT, "right": None}})[0] == {("tester", "valid"): 0.5}


def test_there_is_no_score_without_a_report_or_for_a_role_that_did_not_act():
    assert scored({})[0] == {} and scored({"tests": REPORT}, roles=("coder",))[0] == {}


def test_the_floor_is_that_of_the_settings():
    assert scored({}, floor=-1.0)[1].policy_fault == -1.0


def test_an_environment_without_the_report_is_refused():
    with pytest.raises(ConfigError, match="no report 'tests'"):
        scored({}, reports=("code",))

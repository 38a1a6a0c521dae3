"""The feedback of the transition modes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.core.errors import ConfigError
from coterie.core.types import Action, HistoryEntry
from coterie.plugins.transitions.levels import Diagnosis
from coterie.plugins.transitions.none import NoTransitionFeedback
from tests.plugins.support import Build, make, wait

PAST = (HistoryEntry(turn=0, observation=None, messages=(), action=Action(calls=(), text=""), info={}),)


def test_none_tells_nothing():
    assert wait(make(NoTransitionFeedback).tell("solver", "state", PAST, SimpleNamespace())) == ()


async def slowly(state, role):
    return f"{role} slept"


@pytest.mark.parametrize(
    ("diagnose", "history", "feedback"),
    [
        (lambda state, role: f"{role} hit {state}", PAST, ("solver hit wall",)),
        (lambda state, role: "never asked", (), ()),
        (lambda state, role: "", PAST, ()),
        (slowly, PAST, ("solver slept",)),
    ],
)
def test_diagnosis_tells_what_the_environment_says(diagnose, history, feedback):
    environment = SimpleNamespace(diagnose=diagnose)
    mode = make(Diagnosis, Build(path="transition", environment=environment))
    assert wait(mode.tell("solver", "wall", history, environment)) == feedback


def test_an_environment_without_diagnosis_is_refused():
    with pytest.raises(ConfigError, match="no diagnosis") as caught:
        make(Diagnosis, Build(path="transition", environment=SimpleNamespace()))
    assert caught.value.path == "transition"

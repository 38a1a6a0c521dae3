"""Which optimiser steps a trainer counts, and what is said of a count that is none."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.errors import PluginError
from coterie.estimate.cost import count
from coterie.testing import coterie_run
from tests.estimate.test_cost import two_policies

IDLE = "trainer 'tests.estimate.test_cost:Idle' of tests"


@pytest.mark.parametrize("steps", [1.5, "two", None, -1, [1]])
def test_a_trainers_count_that_is_no_number_of_steps_is_refused_by_its_name(monkeypatch, steps):
    run = coterie_run(order=["one", "two"], **two_policies())
    monkeypatch.setattr(run.trainer, "optimizer_steps", lambda samples, siblings: steps)
    with pytest.raises(PluginError) as caught:
        count(run)
    assert caught.value.what.startswith(f"{IDLE}: optimizer_steps returned {steps!r}")
    assert caught.value.path == "trainer" and "0 or more" in caught.value.fix


def test_a_trainers_own_integers_count_its_steps(monkeypatch):
    run = coterie_run(order=["one", "two"], **two_policies())
    monkeypatch.setattr(run.trainer, "optimizer_steps", lambda samples, siblings: np.int64(3))
    assert type(count(run).policies["p"].optimizer_steps) is int


@pytest.mark.parametrize("broken", [lambda samples: 1, lambda samples, siblings: {}["steps"]])
def test_an_exception_of_a_trainers_count_names_it(monkeypatch, broken):
    run = coterie_run(order=["one", "two"], **two_policies())
    monkeypatch.setattr(run.trainer, "optimizer_steps", broken)
    with pytest.raises((TypeError, KeyError)) as caught:
        count(run)
    assert caught.value.__notes__[0].startswith(f"in {IDLE}: optimizer_steps")

"""Each role is sampled with its settings, and trained at the temperature it was sampled at."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch
from coterie.core.training.samples import samples_of
from coterie.core.types import Sampling
from coterie.testing import coterie_run, play_episode

SEEN: dict[str, Sampling] = {}


def notes_sampling(request: Any, text: str) -> str:
    SEEN[request.key.role] = request.sampling
    return str(request.key.branch)


def run(**roles: Any) -> Any:
    return coterie_run(
        answers=notes_sampling,
        policies={"p": {"model": {"init": "tabular"}}},
        trainer="tabular",
        sampler={
            "branches": 2,
            "sampling": {"temperature": 0.9, "max_new_tokens": 7, "stop": ["."]},
            "roles": roles,
        },
    )


def test_a_roles_settings_come_over_the_common_ones():
    SEEN.clear()
    play_episode(run(two={"temperature": 0.5, "top_k": 3, "stop": ["!"]}))
    assert SEEN["one"] == Sampling(temperature=0.9, max_new_tokens=7, stop=(".",))
    assert SEEN["two"] == Sampling(temperature=0.5, top_k=3, max_new_tokens=7, stop=("!",))


def test_samples_carry_the_temperature_they_were_drawn_at():
    two_runs = run(two={"temperature": 0.5})
    trees, scores = play_episode(two_runs)
    credit, _ = two_runs.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=two_runs.reward_weights), None
    )
    temperatures = {sample.key.role: sample.temperature for sample in samples_of(trees, credit)["p"]}
    assert temperatures == {"one": 0.9, "two": 0.5}


def test_a_greedy_evaluation_is_greedy_for_every_role():
    two_runs = run(two={"temperature": 0.5})
    greedy = two_runs.sampler.for_evaluation(True)
    assert [greedy.sampling(role).temperature for role in ("one", "two")] == [0.0, 0.0]
    assert [two_runs.sampler.for_evaluation(False).sampling(role).temperature for role in ("one", "two")] == [
        0.9,
        0.5,
    ]


def test_truncation_of_one_role_is_said(caplog: pytest.LogCaptureFixture):
    run(two={"top_p": 0.9})
    assert "role 'two' samples with top_p/top_k" in caplog.text and "'one'" not in caplog.text


def test_settings_for_a_role_that_does_not_play_are_refused():
    with pytest.raises(ConfigError, match="unknown role 'tow'") as error:
        run(tow={"temperature": 0.5})
    assert error.value.path == "sampler.roles.tow"

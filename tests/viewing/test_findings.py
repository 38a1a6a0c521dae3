"""Planted failures are named, with their role and the step in which they began; healthy steps are silent."""

from __future__ import annotations

import pytest

from coterie.api.episodes import trees_of
from coterie.api.rollouts import read_rollouts
from coterie.core.storage.run_folder import RunFolder
from coterie.viewing.findings import RULES, findings
from coterie.viewing.role_table import roles_in_step
from tests.viewing.planted import SINCE, make


@pytest.mark.parametrize("failure", SINCE)
def test_a_planted_failure_is_named_and_nothing_else(failure, tmp_path):
    folder = RunFolder(make(failure, tmp_path / "run"))
    seen = findings([roles_in_step(trees_of(read_rollouts(file))) for file in folder.rollout_files()])
    assert {(f.role, f.kind) for f in seen} == {("executor", failure)}
    steps = [f.step for f in seen]
    assert steps == list(range(min(steps), 46, 5)), "in every recorded step from the first on"
    # Answers of the planted length grow slowly; the other two fail at once.
    assert min(steps) == SINCE[failure] + 5 and {f.since for f in seen} == {min(steps)}
    words = {
        "unparsed": "could not read",
        "repeats": "repeat the last answer of another role",
        "length": "grows with the length",
    }
    assert words[failure] in seen[-1].text


def test_rules_have_names_of_their_own():
    assert len({rule.kind for rule in RULES}) == len(RULES)

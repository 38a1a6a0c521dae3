"""Planted failures are named, with their role and the step in which they began; healthy steps are silent."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

import coterie
from coterie.analysis.diagnosis.role_table import RULES, RoleInStep, role_failures, roles_in_step
from coterie.api.episodes import trees_of
from coterie.api.rollouts import read_rollouts
from coterie.core.storage.run_folder import RunFolder
from coterie.viewing.report.blocks import fault_reasons
from tests.viewing.planted import SINCE, table


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The folder of the run with a failure; each is made once."""

    @cache
    def folder(failure):
        out = tmp_path_factory.mktemp(failure) / "run"
        coterie.train(table(failure), out=out)
        return RunFolder(out)

    return folder


@pytest.mark.parametrize("failure", SINCE)
def test_a_planted_failure_is_named_and_nothing_else(failure, planted):
    folder = planted(failure)
    seen = role_failures([roles_in_step(trees_of(read_rollouts(file))) for file in folder.rollout_files()])
    assert {(f.role, f.kind) for f in seen} == {("executor", failure)}
    steps = [f.step for f in seen]
    assert steps == list(range(min(steps), 46, 5)), "in every recorded step from the first on"
    # Answers of the planted length grow slowly; the other two fail at once.
    assert min(steps) == SINCE[failure] + 5 and {f.since for f in seen} == {min(steps)}
    words = {
        "unparsed": "could not read",
        "repeats": "repeat the last one of another role",
        "length": "grows with the length",
    }
    assert words[failure] in seen[-1].text


def test_repeating_is_counted_over_all_branches_and_what_it_earns(planted):
    folder = planted("repeats")
    early, late = (roles_in_step(trees_of(read_rollouts(folder.rollout_file(step)))) for step in (10, 40))
    assert [role.repeats for role in early] == [None, 0.0] and early[1].repeats_pay is None
    planner, executor = late
    assert planner.repeats == 0.0 and 0.8 < executor.repeats < 1.0 and executor.repeats_pay < -1


def role(**fields):
    nothing = {f.name: None for f in dataclasses.fields(RoleInStep)}
    shares = {"step": 1, "role": "executor", "actions": 8, "missing": 0.0, "unparsed": 0.0}
    return RoleInStep(
        **{**nothing, **shares, "empty": 0.0, "finish_length": 0.0, "lost": 0, "fault": "", **fields}
    )


@pytest.mark.parametrize("kind", ["repeats", "finish_length"])
def test_a_team_that_succeeds_may_repeat_and_end_at_its_limit(kind):
    assert [f.kind for f in role_failures([[role(success=0.4, **{kind: 0.9})]])] == [kind]
    assert [f.kind for f in role_failures([[role(**{kind: 0.9})]])] == [kind], "no outcome says nothing"
    assert role_failures([[role(success=0.6, **{kind: 0.9})]]) == []
    assert role_failures([[role(success=0.6, repeats=0.9, repeats_pay=-0.6)]]), "the others earn more"
    assert role_failures([[role(success=0.1, repeats=0.9, repeats_pay=-0.4)]]) == []


def test_a_reward_that_goes_with_length_is_told_once_answers_have_grown():
    first, *later = [[role(step=step, tokens=10.0, length_reward=0.9)] for step in (1, 2)]
    assert role_failures([first, *later]) == []
    assert [f.kind for f in role_failures([first, [role(step=2, tokens=15.0, length_reward=0.9)]])] == [
        "length"
    ]
    assert role_failures([first, [role(step=2, tokens=15.0, length_reward=0.7)]]) == []


def test_a_failure_that_stops_begins_anew():
    tables = [[role(step=step, empty=share)] for step, share in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.3))]
    assert [(f.step, f.since) for f in role_failures(tables)] == [(1, 1), (3, 3), (4, 3)]
    assert role_failures([[role(actions=3, empty=1.0)]]) == [], "too few actions to say"


def test_a_reason_has_a_bound_everywhere():
    flood = "a" + "\u0301" * 100_000
    branch = {
        "completion": "x", "fault": {"kind": "policy", "reason": flood}, "reward": None, "advantage": None,
        "calls": [], "role": "executor", "branch": 0,
    }  # fmt: skip
    place = {"task_id": "t", "epoch": 0, "chain": 0, "node": "t/e0/c0/n"}
    rows = [{"kind": "node", **place, "turn": 0, "stage": 0, "role": "executor", "prompt": "p"}]
    rows += [{"kind": "branch", **place, **branch, "branch": n, "scores": {}} for n in range(4)]
    trees = trees_of(rows)
    (table,) = roles_in_step(trees)
    assert len(table.fault) == 200 and table.fault.endswith("...")
    (finding, *_) = role_failures([[table]])
    assert table.fault in finding.text and len(finding.text) < 300
    ((reason, count),) = fault_reasons(trees)["executor"]
    assert (len(reason), reason[-3:], count) == (300, "...", 4)


def test_rules_have_names_of_their_own():
    assert len({rule.kind for rule in RULES}) == len(RULES)

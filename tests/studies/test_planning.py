"""From studies to jobs: what is shared, what depends on what, what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from coterie.core.errors import ConfigError
from coterie.recipes import load
from coterie.studies.catalogue import read_column
from coterie.studies.graph import plan as plan_jobs, priorities
from coterie.studies.library.at_grpo import SAMPLING, TABLE1, TABLE2, TABLE3
from coterie.studies.library.cooperation import COOPERATION
from tests.studies.support import column_file, plan_of


def kinds(plan):
    return sorted((job.kind, job.subject) for job in plan.jobs.values())


def test_the_methods_of_table_1_are_three_trainings_and_five_evaluations():
    plan = plan_of("at-grpo-table1", TABLE1)
    assert kinds(plan) == [
        ("evaluate", "per_role"), ("evaluate", "shared"), ("evaluate", "single"), ("evaluate", "single_grpo"),
        ("evaluate", "team"), ("train", "per_role"), ("train", "shared"), ("train", "single"),
    ]  # fmt: skip
    cell = plan.cells["column", "per_role", 0]
    assert plan.jobs[cell.evaluation].needs == cell.trains
    assert plan.jobs[plan.cells["column", "team", 0].evaluation].needs == ()


def test_a_training_ends_at_the_tokens_and_by_nothing_else():
    plan = plan_of("at-grpo-table1", TABLE1, tokens=777, tasks=5)
    trains = [job for job in plan.jobs.values() if job.kind == "train"]
    for job in trains:
        assert {"schedule.tokens=777", "schedule.steps=null", "schedule.checkpoint_every=10"} <= {
            *job.overrides
        }
    assert {job.tasks for job in plan.jobs.values() if job.kind == "evaluate"} == {5}


def test_a_training_that_leaves_its_evaluations_to_auto_has_none(tmp_path):
    """A study's jobs evaluate, and they are those of the versions whose default was none."""
    plans = {}
    for every in ("auto", "0"):
        column = column_file(tmp_path, **with_override(f"schedule.evaluate_every={every}"))
        plans[every] = plan_of("at-grpo-table1", TABLE1, column)
    trains = [job for job in plans["auto"].jobs.values() if job.kind == "train"]
    assert trains and all("schedule.evaluate_every=0" in job.overrides for job in trains)
    assert plans["auto"].jobs.keys() == plans["0"].jobs.keys()


def test_studies_share_what_is_the_same_and_nothing_else():
    first, third = plan_of("a", TABLE1), plan_of("b", TABLE3)
    both = first.jobs.keys() & third.jobs.keys()
    assert {(first.jobs[id_].kind, first.jobs[id_].subject) for id_ in both} == {
        ("train", "per_role"), ("evaluate", "per_role"), ("evaluate", "single"),
    }  # fmt: skip
    # The solo giver is this column's single agent; with twice the tokens its run is that of `single_grpo`.
    twice = {
        (job.kind, job.subject)
        for job in plan_of("b", TABLE3, tokens=1000).jobs.values()
        if job.id in first.jobs
    }
    assert twice == {("train", "alone.giver"), ("evaluate", "alone_giver"), ("evaluate", "single")}
    assert plan_of("b", TABLE3, tokens=9).jobs.keys() & third.jobs.keys() == {
        third.cells["column", "single", 0].evaluation
    }, "evaluations of initial weights don't depend on the budget"
    seeds = plan_of("b", TABLE3, seeds=2)
    assert len(seeds.jobs) == 2 * len(third.jobs) and third.jobs.keys() < seeds.jobs.keys()


def test_a_jobs_id_is_the_digest_of_what_decides_its_result():
    """The ids are in the folders of studies: another id would run again what is done."""
    plan = plan_of("at-grpo-table3", TABLE3)

    def digest(*identity):
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    swapped = plan.jobs[plan.cells["column", "swapped", 0].evaluation]
    train = plan.jobs[swapped.run]
    assert train.id == digest("train", {"config": load(train.recipe, overrides=train.overrides).digest()})
    decides = {"of": train.id, "policies": {}, "swap": ["giver", "taker"], "tasks": 48}
    assert swapped.id == digest("evaluate", decides)
    single = plan.jobs[plan.cells["column", "single", 0].evaluation]
    config = load(single.recipe, overrides=single.overrides).digest()
    assert single.id == digest("evaluate", {"of": config, "policies": {}, "swap": None, "tasks": 48})


def test_columns_that_differ_in_the_test_share_trainings(tmp_path):
    for name, test in (("one", ["env.tasks=5"]), ("two", ["env.tasks=6"])):
        (tmp_path / name).mkdir()
        column_file(tmp_path / name, test=test)
    columns = [read_column(tmp_path / name / "changed.yaml", name) for name in ("one", "two")]
    plan = plan_jobs("a", TABLE3, columns, scale="cpu", seeds=1)
    plain = plan_of("a", TABLE3)
    trains = {id_ for id_, job in plan.jobs.items() if job.kind == "train"}
    assert trains == {id_ for id_, job in plain.jobs.items() if job.kind == "train"}, "the ids of before"
    by_column = [{cell.evaluation for (column, *_), cell in plan.cells.items() if column == name}
                 for name in ("one", "two")]  # fmt: skip
    assert not by_column[0] & by_column[1] and not by_column[0] & plain.jobs.keys()
    for id_ in by_column[0]:
        assert plan.jobs[id_].overrides[-1] == "env.tasks=5"
    together = plan.cells["two", "together", 0]
    assert plan.jobs[together.evaluation].overrides == ("env.tasks=6",)


def test_a_test_changes_no_more_than_the_tasks(tmp_path):
    with pytest.raises(ConfigError, match="`test` changes 'team'") as error:
        plan_of("a", TABLE1, column_file(tmp_path, test=["team.max_turns=3"]))
    assert "env and data" in error.value.fix and str(error.value.path).endswith("changed.yaml: test")


def test_put_together_is_the_team_with_both_runs_of_roles_alone():
    plan = plan_of("at-grpo-table3", TABLE3)
    cell = plan.cells["column", "put_together", 0]
    job = plan.jobs[cell.evaluation]
    assert {role: plan.jobs[run].subject for role, run in job.policies.items()} == {
        "giver": "alone.giver", "taker": "alone.taker"
    }  # fmt: skip
    assert job.run is None and cell.changed and cell.trains == tuple(job.policies.values())
    swapped = plan.jobs[plan.cells["column", "swapped", 0].evaluation]
    assert swapped.swap == ("giver", "taker") and plan.jobs[swapped.run].subject == "per_role"


def test_all_methods_start_from_the_same_weights_where_there_is_a_base(tmp_path):
    forms = {
        "base": {"recipe": "plan_path", "overrides": []}, "single": "plan_path", "shared": "plan_path",
        "per_role": {"recipe": "plan_path", "with": "per_role"},
    }  # fmt: skip
    scales = {name: {"tokens": 100, "tasks": 2} for name in ("cpu", "gpu")}
    file = column_file(tmp_path, roles=["planner", "executor"], forms=forms, scales=scales, paper={})
    plan = plan_of("at-grpo-table1", TABLE1, file, seeds=2)
    [base] = [job.id for job in plan.jobs.values() if job.kind == "base"]
    later = plan_of("at-grpo-table1", TABLE1, file, seeds=1, first_seed=5)
    assert base in later.jobs and later.seeds == (5,), "one pretrained model, whatever the seed"
    for job in plan.jobs.values():
        if job.kind == "base":
            assert "schedule.steps=0" in job.overrides and job.policy == "shared" and not job.merge
        elif job.overlays == ("per_role",):
            assert job.recipe == "plan_path"
            assert job.base == base
            for policy in ("planner", "executor"):
                assert f"policies.{policy}.model=base-{job.base}" in job.overrides
                assert f"policies.{policy}.warm_start=null" in job.overrides
    gpu = plan_of("at-grpo-table1", TABLE1, file, scale="gpu")
    assert not [job for job in gpu.jobs.values() if job.kind == "base"], (
        "pretrained weights are common initial weights already"
    )
    large = plan_of("at-grpo-table2", TABLE2, file, scale="gpu")
    for job in large.jobs.values():
        if job.recipe == "plan_path" and not job.overlays:
            assert "policies.shared.model=Qwen/Qwen3-8B" in job.overrides


def test_the_longest_chain_goes_first():
    plan = plan_of("at-grpo-table3", TABLE3)
    order = priorities(plan.jobs)
    ranked = sorted(plan.jobs.values(), key=lambda job: -order[job.id])
    assert ranked[0].kind == "train" and ranked[-1].kind == "evaluate"
    cell = plan.cells["column", "together", 0]
    assert order[cell.trains[0]] == 500 + 48 * 20


GIVER_ONLY = {
    "single": "hand_over.yaml", "per_role": "hand_over.yaml", "alone": {"giver": "hand_over.yaml"}
}  # fmt: skip


def with_override(override):
    return {"scales": {"cpu": {"tokens": 1, "tasks": 1, "overrides": [override]}}}


@pytest.mark.parametrize(
    ("study", "changes", "settings", "message"),
    [
        (TABLE2, {}, {}, "8 billion parameters"),
        (TABLE1, {"forms": {"shared": "hand_over.yaml"}}, {}, r"forms\.single"),
        (TABLE1, {}, {"scale": "gpu"}, r"no scale 'gpu'"),
        (SAMPLING, with_override("schedule.stps=1"), {}, "did you mean 'steps'"),
        (TABLE1, with_override("schedule.stop_after=9"), {}, "ends by the clock"),
        (COOPERATION, with_override("schedule.evaluate_every=0"), {}, "never evaluates on val"),
        (TABLE3, {"roles": ["giver"], "swap": None, "paper": {}, "forms": GIVER_ONLY}, {}, "can be swapped"),
    ],
)  # fmt: skip
def test_what_can_not_be_run_is_refused_before_anything_starts(tmp_path, study, changes, settings, message):
    with pytest.raises(ConfigError, match=message):
        plan_of("at-grpo-tableN", study, column_file(tmp_path, **changes), **settings)


def test_a_base_of_several_policies_is_refused_where_none_is_the_shared_one(tmp_path):
    forms = {
        "base": {"recipe": "plan_path", "with": ["per_role"]},
        "single": "plan_path",
        "shared": "plan_path",
        "per_role": "plan_path",
    }
    file = column_file(tmp_path, roles=["planner", "executor"], forms=forms, paper={})
    with pytest.raises(ConfigError, match="no policy 'shared'"):
        plan_of("t", TABLE1, file)


def test_a_study_may_be_changed_by_its_reader():
    plan = plan_of("mine", replace(TABLE1, methods=lambda column: TABLE1.methods(column)[:1]))
    assert kinds(plan) == [("evaluate", "single")]

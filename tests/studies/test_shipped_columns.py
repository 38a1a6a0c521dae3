"""The columns that Coterie brings."""

from __future__ import annotations

import pytest

from coterie.core.plugins import plugins
from coterie.core.training.assemble import compose
from coterie.studies.catalogue import load_column
from coterie.studies.columns import BASE
from coterie.studies.graph import plan, resolve
from coterie.studies.library.at_grpo import TEAMMATES

CPU = ("plan_path", "sokoban", "sudoku")


def composed(column, form, scale):
    return compose(resolve(column, form, scale, [])[3])


def test_every_game_has_the_paper_s_form_too():
    names = plugins().registry.names("column")
    assert {*CPU, *(f"{game}_code" for game in CPU)} <= {*names}


@pytest.mark.parametrize("name", CPU)
def test_every_form_is_a_run_in_words_that_the_common_start_knows(name):
    column = load_column(name)
    known = {*composed(column, BASE, "cpu").vocabulary}
    for form in column.forms:
        assert {*composed(column, form, "cpu").vocabulary} <= known, form


@pytest.mark.parametrize("name", [f"{game}_code" for game in CPU])
def test_every_form_with_code_is_a_run(name):
    column = load_column(name)
    for form in column.forms:
        run = composed(column, form, "gpu")
        assert {role for stage in run.team.order for role in stage} <= {"tool", "plan", "solver"}


def test_beside_an_untrained_teammate_one_role_learns_and_has_the_whole_budget():
    column = load_column("plan_path")
    made = plan("teammates", TEAMMATES, [column], scale="cpu", seeds=1)
    trains = {job.what: job for job in made.jobs.values() if job.kind == "train"}
    assert {*trains} == {
        "alone.planner", "alone.executor", "beside.planner", "beside.executor", "per_role"
    }  # fmt: skip
    assert trains["beside.planner"].tokens == trains["per_role"].tokens == 2 * trains["alone.planner"].tokens
    for form, learner in (("beside.planner", "planner"), ("beside.executor", "executor")):
        policies = resolve(column, form, "cpu", [])[3].config.policies
        assert {name for name, policy in policies.items() if policy.train != "none"} == {learner}

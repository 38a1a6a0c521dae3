"""The built-in columns."""

from __future__ import annotations

import pytest

from coterie.compose import compose
from coterie.discovery import plugins
from coterie.studies.catalogue import columns_of, load_column
from coterie.studies.columns import BASE
from coterie.studies.graph import plan, plan as plan_jobs
from coterie.studies.library.at_grpo import TABLE1, TABLE3, TEAMMATES
from coterie.studies.library.magrpo import MAGRPO, MODES
from coterie.studies.table import markdown
from coterie.studies.variants import resolve
from tests.studies.test_table import collected, outcome_of

STUDIES = {"at-grpo-table1": TABLE1, "magrpo": MAGRPO}

CPU = ("plan_path", "sokoban", "sudoku")
CODE = {"apps": "apps", "code_contests": "code_contests", "live_code_bench": "live_code_bench"}
"""By column the set of its test problems."""
MAGRPO_COLUMNS = ("tldr", "arxiv", "humaneval", "coop_humaneval")
MATH = ("aime24", "aime25", "olympiadbench")
FIGURES = {
    "aime24": ([13.4, 10, 13.3, 16.7, 13.3], [18.3, 18.3, 36.6, 50, 57]),
    "aime25": ([9.8, 6.7, 13, 16.7, 18.3], [20, 26.67, 30, 35.2, 40]),
    "apps": ([16.2, 17, 16.6, 17.6, 18.6], [30.2, 37, 44.4, 45.8, 46.5]),
    "code_contests": ([3.6, 3, 3.6, 4.8, 7.8], [15.75, 12.12, 17.6, 18.1, 18.1]),
    "live_code_bench": ([11.6, 18.8, 19, 20.9, 24], [22.8, 25.7, 28, 30.28, 33.1]),
    "olympiadbench": ([22.2, 23.8, 35.9, 39.6, 35.2], [55, 54.8, 56.5, 56.8, 56.6]),
}
"""Of the paper's tables 1 and 2, in the order of its columns."""


def composed(column, variant, scale):
    return compose(resolve(column, variant, scale, [])[1])


def test_every_game_has_a_column_with_the_papers_roles():
    names = plugins().registry.names("column")
    assert {*CPU, *(f"{game}_code" for game in CPU)} <= {*names}


@pytest.mark.parametrize("name", CPU)
def test_the_common_initial_weights_know_the_words_of_every_variant(name):
    column = load_column(name)
    known = {*composed(column, BASE, "cpu").vocabulary}
    for variant in column.variants:
        assert {*composed(column, variant, "cpu").vocabulary} <= known, variant


@pytest.mark.parametrize("name", [f"{game}_code" for game in CPU])
def test_every_variant_with_code_composes(name):
    column = load_column(name)
    for variant in column.variants:
        run = composed(column, variant, "gpu")
        assert {role for stage in run.team.order for role in stage} <= {"tool", "plan", "solver"}


@pytest.mark.parametrize("name", ["sudoku", "sudoku_code"])
def test_sudoku_beside_the_papers_figures_is_the_papers_4x4(name):
    column = load_column(name)
    assert column.paper
    for scale in column.scales:
        environments = [resolve(column, variant, scale, [])[1].config.env for variant in column.variants]
        assert {environment["size"] for environment in environments} == {4}


@pytest.mark.parametrize("name", ["plan_path", "plan_path_code"])
def test_table_3_has_every_figure_of_the_paper_and_says_how_its_agents_match_ours(name):
    column = load_column(name)
    ids = [method.id for method in TABLE3.methods(column)]
    assert [column.paper["at-grpo-table3"][id_] for id_ in ids] == [5, 11, 14.5, 16, 96, 6]
    note = column.notes["at-grpo-table3"]
    for text in ('"tool agent" (11)', '"code agent" (14.5)', "by elimination"):
        assert text in note


def test_with_a_frozen_partner_one_role_learns_and_has_the_whole_budget():
    column = load_column("plan_path")
    jobs = plan("teammates", TEAMMATES, [column], scale="cpu", seeds=1).jobs
    trains = {job.subject: job for job in jobs.values() if job.kind == "train"}
    assert {*trains} == {
        "alone.planner", "alone.executor", "beside.planner", "beside.executor", "per_role"
    }  # fmt: skip
    assert trains["beside.planner"].tokens == trains["per_role"].tokens == 2 * trains["alone.planner"].tokens
    for variant, learner in (("beside.planner", "planner"), ("beside.executor", "executor")):
        policies = resolve(column, variant, "cpu", [])[1].config.policies
        assert {name for name, policy in policies.items() if policy.train != "none"} == {learner}


@pytest.mark.parametrize("name", [*MATH, *CODE])
def test_a_column_has_all_figures_of_both_tables(name):
    column = load_column(name)
    methods = [method.id for method in TABLE1.methods(column) if not method.scales]
    for study, figures in zip(("at-grpo-table1", "at-grpo-table2"), FIGURES[name], strict=True):
        assert [column.paper[study][id_] for id_ in methods] == figures
    assert list(column.scales) == ["gpu"], "the compact rendering can't show programs"


@pytest.mark.parametrize("name", MATH)
def test_maths_has_its_own_test_set(name):
    column = load_column(name)
    for variant in column.variants:
        trained = resolve(column, variant, "gpu", [])[1].config
        played = resolve(column, variant, "gpu", [], tested=True)[1].config
        assert (played.env["train"], played.env["test"]) == ("polaris", name)
        assert trained.env["test"] is None and trained.env["apart"] == list(MATH)


def test_the_three_columns_of_maths_share_their_trainings():
    """Table 1 has five methods that train; each is trained once, and tested on each of the three sets."""
    plan = plan_jobs("at-grpo-table1", TABLE1, [load_column(name) for name in MATH], scale="gpu", seeds=1)
    trains = [job for job in plan.jobs.values() if job.kind == "train"]
    assert len(trains) == 5 and len({job.subject for job in trains}) == 5
    evaluations = [job for job in plan.jobs.values() if job.kind == "evaluate"]
    assert len(evaluations) == 7 * 3
    for name in MATH:
        cell = plan.cells[name, "shared", 0]
        assert plan.jobs[cell.evaluation].overrides == (f"env.test={name}",)
        assert cell.trains == plan.cells["aime24", "shared", 0].trains


@pytest.mark.parametrize(("name", "tested"), CODE.items())
def test_code_has_its_own_test_set_and_trains_by_one_with_references(name, tested):
    column = load_column(name)
    for variant in column.variants:
        config = resolve(column, variant, "gpu", [])[1].config
        data = config.data["type"]
        assert config.env.get("test", data) == tested and data in ("apps", "code_contests")


@pytest.mark.parametrize("name", MAGRPO_COLUMNS)
def test_columns_of_magrpo_have_every_mode(name):
    column = load_column(name)
    rows = [method.id for method in MAGRPO.methods(column)]
    assert rows == ["team", "single_grpo", "magrpo", *(f"mt_{mode}" for mode in MODES)]
    for mode in MODES:
        config = resolve(column, f"mt_{mode}", "gpu", [])[1].config
        assert (config.transition["type"], config.team.max_turns) == (mode, 2)
        assert config.data["type"] == name


def test_a_study_takes_the_columns_that_are_made_for_it():
    of = {study: [c.name for c in columns_of(s, None, "gpu")] for study, s in STUDIES.items()}
    assert {*CODE, *MATH, *CPU} <= {*of["at-grpo-table1"]} and not {*of["at-grpo-table1"]} & {*of["magrpo"]}
    assert {*of["magrpo"]} == {*MAGRPO_COLUMNS}


@pytest.mark.parametrize("name", [*CPU, *(f"{game}_code" for game in CPU), *MATH, *CODE])
def test_on_a_gpu_all_weights_are_trained_as_in_the_paper(name):
    column = load_column(name)
    for variant in column.variants:
        policies = resolve(column, variant, "gpu", [])[1].config.policies
        frozen = {policy for policy, settings in policies.items() if settings.train == "none"}
        assert len(frozen) == variant.startswith("beside."), "a frozen partner stays frozen"
        for policy, settings in policies.items():
            if policy not in frozen:
                assert (settings.train, settings.lora) == ("full", None)
                assert settings.optimizer.learning_rate == 5e-6


def test_lora_rows_stand_beside_them_and_the_head_says_what_is_trained():
    column = load_column("plan_path")
    plan = plan_jobs("at-grpo-table1", TABLE1, [column], scale="gpu", seeds=1)
    trained = {id_: what for (_, id_), what in plan.trained.items()}
    adapters = "LoRA of rank 16, learning rate 2e-05"
    assert trained == {
        **dict.fromkeys(("single_grpo", "shared", "per_role"), "all weights, learning rate 5e-06"),
        **dict.fromkeys(("shared_lora", "per_role_lora"), adapters),
    }
    page = markdown(collected(plan, outcome_of(plan, {})), plan)
    head = next(line for line in page.splitlines() if " Trained: " in line)
    assert " Trained: all weights, learning rate 5e-06; of *Team + AT-GRPO, shared policy, " in head
    assert f"{adapters}." in head
    on_cpu = plan_jobs("at-grpo-table1", TABLE1, [column], scale="cpu", seeds=1)
    assert [method.id for method in on_cpu.methods["plan_path"]] == [
        "single", "single_grpo", "team", "shared", "per_role",
    ]  # fmt: skip
    assert set(on_cpu.trained.values()) == {"all weights, learning rate 0.0002"}

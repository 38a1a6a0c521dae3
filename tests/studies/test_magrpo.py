"""The study `magrpo`: its rows by column, returns and answers in the table, claims over returns."""

from __future__ import annotations

import json

import pytest

from coterie.core.errors import ConfigError
from coterie.studies import table
from coterie.studies.library.magrpo import MAGRPO, MODES
from coterie.studies.study import above, order
from tests.studies.support import FOLDER, InOneProcess, column_file, plan_of, runner
from tests.studies.test_table import collected, outcome_of, tasks

MODES_HERE = ("plain", "level_feedback")


@pytest.fixture
def column(tmp_path):
    """The test column with variants of two modes; what they play is no matter here."""
    two_turns = {"recipe": str(FOLDER / "hand_over.yaml"), "overrides": ["team.max_turns=2"]}
    plain = json.loads(json.dumps(two_turns))
    forms = {
        **ONE_TURN,
        "mt_plain": plain,
        "mt_level_feedback": {**two_turns, "overrides": ["team.max_turns=2", "sampler.branches=2"]},
    }
    return column_file(tmp_path, forms=forms, paper={})


ONE_TURN = {
    "grpo": {
        "recipe": str(FOLDER / "hand_over.yaml"),
        "overrides": ["team.order=[giver]", "team.roles.taker=null"],
    },
    "magrpo": str(FOLDER / "hand_over.yaml"),
}


@pytest.fixture
def one_turn(tmp_path):
    """The test column with the variants of one turn alone."""
    return column_file(tmp_path, forms=ONE_TURN, paper={})


def test_a_column_has_the_rows_of_its_modes(column):
    plan = plan_of("magrpo", MAGRPO, column)
    rows = [method.id for method in plan.methods["changed"]]
    assert rows == ["team", "single_grpo", "magrpo", "mt_plain", "mt_level_feedback"]


def test_an_expert_is_asked_at_scale_gpu_only(one_turn):
    plan = plan_of("magrpo", MAGRPO, one_turn)
    assert [method.id for method in plan.methods["changed"]] == ["team", "single_grpo", "magrpo"]
    assert MODES[-1] == "expert_edits"


def test_a_misspelt_mode_is_no_variant_of_a_study(tmp_path):
    path = column_file(tmp_path, forms={**ONE_TURN, "mt_plian": "hand_over"})
    with pytest.raises(ConfigError, match="no study uses a variant 'mt_plian'"):
        plan_of("magrpo", MAGRPO, path)


def with_answers(plan, per_method, returns):
    outcome = outcome_of(plan, per_method)
    for (_, id_, seed), cell in plan.cells.items():
        outcome.results[cell.evaluation] |= {
            "returns": {task: [value] for task, value in returns[id_][seed].items()},
            "answer_tokens": 10.0 * (1 + seed),
            "answer_seconds": 0.002,
        }
    return outcome


def test_the_table_has_returns_tokens_and_milliseconds_of_an_answer(one_turn):
    plan = plan_of("magrpo", MAGRPO, one_turn, seeds=2)
    per_method = {method.id: [tasks(4, 8), tasks(4, 8, 1)] for method in plan.methods["changed"]}
    low = [{f"test-{s}-{i}": 1.0 + i / 10 for i in range(8)} for s in (0, 1)]
    high = [{task: value + 2.0 for task, value in seed.items()} for seed in low]
    outcome = with_answers(plan, per_method, {"team": low, "single_grpo": low, "magrpo": high})
    entry = collected(plan, outcome)
    rows = {row["id"]: row for row in entry["columns"]["changed"]["rows"]}
    # The mean of 1.0, 1.1, ..., 1.7; two more for MAGRPO. Tokens are 10 and 20 on the two seeds.
    assert rows["team"]["answers"]["return"]["mean"] == pytest.approx(1.35)
    assert rows["magrpo"]["answers"]["return"]["mean"] == pytest.approx(3.35)
    assert (rows["team"]["answers"]["tokens"], rows["team"]["answers"]["seconds"]) == (15.0, 0.002)
    claims = {claim["statement"]: claim["seeds"] for claim in entry["columns"]["changed"]["claims"]}
    first = next(seeds for statement, seeds in claims.items() if "above the untrained team" in statement)
    assert [seed["holds"] for seed in first] == [True, True], "returns are compared, and success is equal"
    page = table.markdown(entry, plan)
    assert "| return | tokens an answer | ms an answer |" in page
    assert "| 3.35 [" in page and "| 15 | 2 |" in page


def test_claims_of_success_and_of_return_read_their_own_values():
    assert (above("a", "b", "x").of, above("a", "b", "x", of="return").of) == ("success", "return")
    assert order("a", "b", "x", of="return").of == "return"


def test_results_of_a_version_without_returns_leave_gaps(one_turn):
    plan = plan_of("magrpo", MAGRPO, one_turn)
    per_method = {method.id: [tasks(4, 8)] for method in plan.methods["changed"]}
    entry = collected(plan, outcome_of(plan, per_method))
    row = entry["columns"]["changed"]["rows"][0]
    assert row["answers"] == {"return": None, "tokens": None, "seconds": None}
    assert "| – | – | – |" in table.markdown(entry, plan)


def test_a_job_writes_the_returns_and_the_length_of_its_answers(one_turn, tmp_path):
    plan = plan_of("magrpo", MAGRPO, one_turn, tokens=60, tasks=12)
    done = runner(plan, tmp_path, kind=InOneProcess).run()
    assert set(done.states.values()) == {"done"}
    result = done.results[plan.cells["changed", "team", 0].evaluation]
    assert set(result["returns"]) == set(result["per_task"]) and len(result["returns"]) == 12
    assert result["answer_tokens"] >= 1 and result["answer_seconds"] > 0

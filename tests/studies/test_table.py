"""The table, the claims and the curves of hand-made results."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.core.errors import ConfigError
from coterie.recipes import read_yaml
from coterie.stats import Interval, wilson
from coterie.studies import table
from coterie.studies.library.at_grpo import TABLE1, TABLE3, TEAMMATES
from coterie.studies.library.cooperation import (
    COOPERATION,
    WINDOW,
    correlation,
    fewer_turns,
    pearson,
    read,
    smooth,
)
from coterie.studies.reproduce import draw
from coterie.studies.runner import StudyOutcome
from coterie.studies.study import above, at_most_half, order
from tests.studies.support import COLUMN, column_file, plan_of


def tasks(solved, of, seed=0):
    return {f"test-{seed}-{i}": [1.0 if i < solved else 0.0] for i in range(of)}


def outcome_of(plan, per_method, tokens=100):
    """An outcome with these successes of each method and seed; methods that are not named have failed."""
    outcome = StudyOutcome()
    for (_, id_, seed), cell in plan.cells.items():
        for run in cell.trains:
            outcome.states[run] = "done"
            outcome.results[run] = {"tokens": tokens, "seconds": 2.0, "versions": {"coterie": "1"}}
        if id_ in per_method:
            outcome.states[cell.evaluation] = "done"
            values = {"per_task": tasks(9, 9), "changed_per_task": per_method[id_][seed]}
            if not cell.changed:
                values = {"per_task": per_method[id_][seed]}
            outcome.results[cell.evaluation] = {**values, "seconds": 1.0, "versions": {"coterie": "1"}}
        else:
            outcome.states[cell.evaluation], outcome.errors[cell.evaluation] = "failed", "it broke"
    return outcome


CALL = {"wall_seconds": 9.0, "parallel_jobs": 2, "command": "coterie reproduce x", "complete": False}


def collected(plan, outcome):
    return {**table.collect(plan, outcome, {id_: Path("jobs") / id_ for id_ in plan.jobs}), **CALL}


def test_success_is_pooled_over_the_tasks_of_all_seeds():
    plan = plan_of("at-grpo-table1", TABLE1, seeds=2)
    rows = {id_: [tasks(2, 8), tasks(6, 8, seed=1)] for id_ in ("single", "single_grpo", "team", "shared")}
    rows["per_role"] = [tasks(8, 8), tasks(8, 8)]  # one id in two seeds stands for two tasks
    by_id = {row["id"]: row for row in collected(plan, outcome_of(plan, rows))["columns"]["column"]["rows"]}
    assert by_id["team"]["success"]["mean"] == 0.5 and by_id["team"]["success"]["n"] == 16
    assert [seed["success"]["mean"] for seed in by_id["team"]["seeds"]] == [0.25, 0.75]
    low, high = wilson(1.0, 16)
    assert by_id["per_role"]["success"]["ci95"] == [pytest.approx(low), pytest.approx(high)]
    assert (by_id["team"]["tokens"], by_id["shared"]["tokens"]) == (0, 100)
    assert (by_id["shared"]["paper"], by_id["team"]["paper"]) == (96, None)


def test_swapped_and_put_together_have_the_values_of_the_changed_team():
    plan = plan_of("at-grpo-table3", TABLE3)
    rows = {method.id: [tasks(1, 16)] for method in plan.methods["column"]}
    rows |= {"together": [tasks(16, 16)], "put_together": [tasks(6, 16)], "swapped": [tasks(8, 16)]}
    column = collected(plan, outcome_of(plan, rows))["columns"]["column"]
    by_id = {row["id"]: row for row in column["rows"]}
    assert by_id["swapped"]["success"]["mean"] == 0.5 and by_id["put_together"]["success"]["mean"] == 0.375
    assert by_id["put_together"]["tokens"] == 200, "two runs were trained for it"
    first, second = column["claims"]
    assert first["seeds"][0]["holds"] is True and second["seeds"][0]["holds"] is True
    paired = second["seeds"][0]["numbers"]["paired_difference"]
    assert paired["mean"] == -0.5 and paired["n"] == 16


def test_gaps_are_shown_and_claims_on_them_are_not_checked():
    plan = plan_of("at-grpo-table1", TABLE1, seeds=2)
    outcome = outcome_of(plan, {"team": [tasks(1, 16), tasks(1, 16)]})
    results = collected(plan, outcome)
    text = table.markdown(results, plan)
    assert "| Team + AT-GRPO, shared policy | failed | failed | failed | – | 96 | +91 | 100 | – |" in text
    assert "| Single agent | failed | failed | failed | – | 5 | – | 0 | – |" in text
    assert "(disjoint 95 % intervals) | – | – |" in text
    assert "**Not complete:** 8 of 16 jobs are done." in text
    json.dumps(results, allow_nan=False)


def test_the_page_has_every_seed_the_claims_and_the_costs():
    plan = plan_of("at-grpo-table3", TABLE3, seeds=2)
    rows = {method.id: [tasks(1, 16), tasks(2, 16, seed=1)] for method in plan.methods["column"]}
    rows |= {"together": [tasks(16, 16), tasks(16, 16)], "swapped": [tasks(8, 16), tasks(12, 16)]}
    text = table.markdown({**collected(plan, outcome_of(plan, rows)), "complete": True}, plan)
    assert "| row | all seeds | seed 0 | seed 1 | gain | paper | paper's gain | tokens | seconds |" in text
    [swapped] = [line for line in text.splitlines() if line.startswith("| Trained together, swapped |")]
    assert swapped.split(" | ")[1][:5] == "62.5 " and swapped.split(" | ")[2][:6] == "50.0 ["
    assert swapped.endswith(" | +53.1 | 6 | – | 100 | 3 |"), "a training of 2 s and its evaluation of 1 s"
    assert "swapping the two policies at least halves success | yes (<) | no (~) |" in text
    assert "Not complete" not in text and "Made with coterie 1." in text
    assert "This call: 9 s, with 2 at a time." in text and "    coterie reproduce x\n" in text
    plan = plan_of("at-grpo-table3", TABLE3)
    text = table.markdown(collected(plan, outcome_of(plan, rows)), plan)
    assert "| row | seed 0 | gain | paper | paper's gain | tokens | seconds |" in text, (
        "one seed has no pooled value"
    )


def test_gains_are_over_the_untrained_single_agent_of_the_same_seeds():
    plan = plan_of("at-grpo-table1", TABLE1, seeds=2)
    rows = {method.id: [tasks(0, 8), tasks(8, 8, seed=1)] for method in plan.methods["column"]}
    rows |= {"single": [tasks(1, 8), tasks(3, 8)], "shared": [tasks(8, 8), tasks(6, 8)]}
    results = collected(plan, outcome_of(plan, rows))
    by_id = {row["id"]: row for row in results["columns"]["column"]["rows"]}
    assert results["gain_over"] == "single"
    assert by_id["shared"]["gain"] == 0.625 and by_id["shared"]["paper_gain"] == 91, "96 and 5 in the paper"
    assert [seed["gain"] for seed in by_id["shared"]["seeds"]] == [0.875, 0.375]
    assert by_id["team"]["gain"] == 0.25 and by_id["team"]["paper_gain"] is None
    assert [seed["gain"] for seed in by_id["team"]["seeds"]] == [-0.125, 0.625]
    baseline = by_id["single"]
    assert (baseline["gain"], baseline["paper_gain"], baseline["seeds"][0]["gain"]) == (None, None, None)
    text = table.markdown(results, plan)
    assert " | +62.5 | 96 | +91 | " in text and "points over the row *Single agent*" in text
    lines = {(line["row"], line["seed"]): line for line in csv.DictReader(io.StringIO(table.as_csv(results)))}
    assert [lines["shared", seed]["gain"] for seed in ("all", "0", "1")] == ["0.625", "0.875", "0.375"]
    assert [lines["shared", seed]["paper_gain_percent"] for seed in ("all", "0")] == ["91.0", ""]


def test_a_study_without_a_single_agent_has_no_gains():
    plan = plan_of("cooperation", replace(COOPERATION, analysis=None))
    results = collected(plan, outcome_of(plan, {"team": [tasks(4, 8)], "per_role": [tasks(8, 8)]}))
    assert results["gain_over"] is None
    assert all(row["gain"] is None for row in results["columns"]["column"]["rows"])
    assert "| row | seed 0 | paper | tokens | seconds |" in table.markdown(results, plan)


def test_gains_over_a_method_that_the_study_lacks_are_refused():
    with pytest.raises(ConfigError, match="no method 'singel'") as refused:
        plan_of("at-grpo-table1", replace(TABLE1, gain_over="singel"))
    assert refused.value.path == "Study.gain_over" and "single" in refused.value.fix


def test_the_page_says_what_of_the_budget_a_role_has_that_trains_without_the_others(tmp_path):
    forms = read_yaml(COLUMN)["forms"]
    file = column_file(tmp_path, forms={**forms, "beside": forms["alone"]})
    texts = {}
    for name, study in (("at-grpo-table1", TABLE1), ("at-grpo-table3", TABLE3), ("teammates", TEAMMATES)):
        plan = plan_of(name, study, file)
        texts[name] = table.markdown(collected(plan, outcome_of(plan, {})), plan)
    assert "Budget of each trained row: 500 generated tokens. " in texts["at-grpo-table1"]
    assert "tokens; roles that are trained alone share it. " in texts["at-grpo-table3"]
    assert "share it; a role that is trained beside a frozen one has all of it" in texts["teammates"]


def test_a_columns_note_on_the_papers_figures_is_under_the_table(tmp_path):
    note = "The paper's giver gives twice."
    file = column_file(tmp_path, notes={"at-grpo-table1": note})
    for name, study, shown in (("at-grpo-table1", TABLE1, True), ("at-grpo-table3", TABLE3, False)):
        plan = plan_of(name, study, file)
        text = table.markdown(collected(plan, outcome_of(plan, {})), plan)
        assert (f"|\n\n{note}\n\n| claim |" in text) is shown


def test_the_csv_has_every_seed_and_all_of_them():
    plan = plan_of("at-grpo-table1", TABLE1, seeds=2)
    results = collected(plan, outcome_of(plan, {"team": [tasks(4, 8), tasks(8, 8)]}))
    lines = list(csv.DictReader(io.StringIO(table.as_csv(results))))
    assert len(lines) == 5 * 3
    team = [line for line in lines if line["row"] == "team"]
    assert [line["seed"] for line in team] == ["all", "0", "1"]
    assert [float(line["success"]) for line in team] == [0.75, 0.5, 1.0]
    assert [line["seconds"] for line in team] == ["1.0", "1.0", "1.0"] and team[0]["tokens"] == "0.0"
    assert {line["state"] for line in lines if line["row"] == "single"} == {"failed"}


def test_a_plot_is_drawn_with_gaps_and_without(tmp_path):
    pytest.importorskip("matplotlib")
    plan = plan_of("at-grpo-table1", TABLE1)
    for rows in ({}, {method.id: [tasks(3, 8)] for method in plan.methods["column"]}):
        file = draw(tmp_path / "plot.png", collected(plan, outcome_of(plan, rows)), plan)
        assert file.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("claim", "a", "b", "holds", "summary"),
    [
        (above, (0.9, 0.8, 1.0), (0.5, 0.4, 0.6), True, ">"),
        (above, (0.7, 0.6, 0.8), (0.5, 0.4, 0.6), False, "~"),
        (above, (0.1, 0.0, 0.2), (0.5, 0.4, 0.6), False, "<"),
        (at_most_half, (0.4, 0.3, 0.5), (0.8, 0.7, 0.9), True, "<"),
        (at_most_half, (0.41, 0.3, 0.5), (0.8, 0.7, 0.9), False, "<"),
        (at_most_half, (0.0, 0.0, 0.1), (0.0, 0.0, 0.1), False, "~"),
        (order, (0.4, 0.3, 0.5), (0.8, 0.7, 0.9), None, "<"),
        (order, (0.4, 0.3, 0.5), (0.5, 0.4, 0.6), None, "~"),
    ],
)
def test_claims(claim, a, b, holds, summary):
    verdict = claim("a", "b", "statement").check(Interval(*a, n=10), Interval(*b, n=10))
    assert (verdict.holds, verdict.summary) == (holds, summary)
    assert verdict.numbers["a"]["mean"] == a[0] and verdict.numbers["b"]["ci95"] == list(b[1:])


# ------------------------------------------------------------------------------------------------ cooperation


def test_rewards_that_rise_together_are_correlated_and_opposed_ones_against():
    rising = [0.1 * i for i in range(20)]
    assert pearson(rising, [2 * v + 1 for v in rising]) == pytest.approx(1)
    assert pearson(rising, [-v for v in rising]) == pytest.approx(-1)
    assert pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8), "by hand: 4 / 5"
    assert pearson(rising, [1.0] * 20) is None and pearson([1, 2], [1, 2]) is None


def test_steps_in_which_a_role_has_no_reward_are_left_out_of_both():
    rewards = {"a": [1.0, 2.0, None, 3.0, 4.0], "b": [1.0, 3.0, 99.0, 2.0, 4.0]}
    result = correlation("a", "b", rewards)
    assert result["steps"] == 4 and result["raw"] == pytest.approx(0.8)


def test_smoothing_is_a_centred_mean_and_keeps_the_length():
    values = [0.0] * 10 + [9.0] + [0.0] * 10
    smoothed = smooth(values)
    assert (
        len(smoothed) == 21
        and smoothed[10] == pytest.approx(9 / WINDOW)
        and smoothed[10 - WINDOW // 2 - 1] == 0
    )
    assert smooth([1.0, 3.0], window=3) == [2.0, 2.0]


def test_turns_fall_from_the_first_third_to_the_last():
    assert fewer_turns([3.0, 2.9, 2.5, None, 2.0, 1.5, 1.0])["holds"] is True
    assert fewer_turns([1.0, 1.0, 1.0])["holds"] is False
    assert fewer_turns([None, 2.0])["holds"] is None


def test_curves_are_read_from_a_runs_metrics(tmp_path):
    rows = [
        {"step": 1, "tokens/total": 10.0, "reward/a": 0.0, "reward/b": 1.0},
        {"step": 2, "tokens/total": 30.0, "reward/a": 1.0, "reward/b": None, "eval/success": 0.5,
         "eval/turns_to_success": 3.0},
        {"step": 3, "tokens/total": 35.0, "reward/a": 2.0, "reward/b": 2.0, "eval/success": 0.0,
         "eval/turns_to_success": None},
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves = read(tmp_path)
    assert curves["tokens"] == [10.0, 30.0, 35.0] and curves["rewards"]["b"] == [1.0, None, 2.0]
    assert curves["val"] == {
        "steps": [2, 3],
        "tokens": [30.0, 35.0],
        "turns": [3.0, None],
        "success": [0.5, 0.0],
    }
    assert curves["correlations"][0]["steps"] == 2 and curves["correlations"][0]["raw"] is None
    assert not math.isnan(curves["val"]["success"][1])

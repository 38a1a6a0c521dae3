"""The results table: success with intervals, claims and costs, as JSON, CSV and Markdown.

A row of the table belongs to a method of the study, so the keys `row` and `rows` name methods; `form` is the
method's variant, and `told` the summary of a verdict.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import Interval, clustered_bootstrap, paired_difference
from coterie.studies import answers
from coterie.studies.columns import SOLO, WITH_FROZEN_PARTNER, Column
from coterie.studies.graph import Cell, StudyPlan
from coterie.studies.runner import StudyOutcome, display_path
from coterie.studies.study import ClaimResult, Method, Value

GAP = answers.GAP
CSV_COLUMNS = """
    column row seed state success low high tasks tokens seconds paper_percent gain paper_gain_percent
"""
VALUES: tuple[Value, Value] = ("success", "return")


def collect(plan: StudyPlan, outcome: StudyOutcome, folders: Mapping[str, Path]) -> dict[str, Any]:
    """The table as plain JSON values, without those that only the call knows (command, wall time).

    Args:
        folders: id of a job -> its folder.
    """
    columns = {column.name: _column(plan, column, outcome, folders) for column in plan.columns}
    results = outcome.results
    versions = {key: value for result in results.values() for key, value in result["versions"].items()}
    return {
        "study": plan.name,
        "summary": plan.study.summary,
        "scale": plan.scale,
        "gain_over": plan.study.gain_over,
        "seeds": list(plan.seeds),
        "columns": columns,
        "alone_seconds": sum(result["seconds"] for result in results.values()),
        "versions": versions,
        "jobs": [
            {
                "id": id_,
                "label": job.label,
                "state": outcome.states.get(id_, "interrupted" if outcome.interrupted else "open"),
                "seconds": results[id_]["seconds"] if id_ in results else None,
                "config_digest": results.get(id_, {}).get("config_digest"),
                "command": outcome.commands.get(id_),
                "folder": str(display_path(folders[id_])),
                "reused": id_ in outcome.reused,
                "error": outcome.errors.get(id_),
                "log": str(display_path(outcome.logs[id_])) if id_ in outcome.logs else None,
            }
            for id_, job in plan.jobs.items()
        ],
    }


def _column(
    plan: StudyPlan, column: Column, outcome: StudyOutcome, folders: Mapping[str, Path]
) -> dict[str, Any]:
    tokens, tasks = plan.budgets[column.name]
    methods = plan.methods[column.name]
    values, returns = (
        {
            (method.id, seed): _per_task(plan.cells[column.name, method.id, seed], outcome, of)
            for method in methods
            for seed in plan.seeds
        }
        for of in VALUES
    )
    entry: dict[str, Any] = {
        "title": column.title,
        "tokens": tokens,
        "tasks": tasks,
        "rows": [_row(plan, column, method, values, outcome) for method in methods],
        "claims": _claims(plan, {"success": values, "return": returns}),
        "trained": {
            m.id: plan.trained[column.name, m.id] for m in methods if (column.name, m.id) in plan.trained
        },
    }
    compare(entry, column, plan.name, plan.study.gain_over)
    if plan.study.answers:
        for row in entry["rows"]:
            row["answers"] = answers.measured(row, plan.seeds, returns, outcome)
    analysis = plan.study.analysis
    if analysis is not None:
        by_seed = {}
        for seed in plan.seeds:
            run = plan.cells[column.name, analysis.method, seed].trains[0]
            if outcome.states.get(run) == "done":
                by_seed[seed] = dict(analysis.read(folders[run] / "run"))
        entry["analysis"] = {str(seed): result for seed, result in by_seed.items()}
        entry["claims"] += _analysis_claims(by_seed)
    return entry


def _per_task(cell: Cell, outcome: StudyOutcome, of: Value) -> Mapping[str, Sequence[float]] | None:
    """task -> success (or return) of each sample; None: the evaluation has no result."""
    result = outcome.results.get(cell.evaluation)
    if result is None or (of == "return" and cell.changed):
        return None
    name = "returns" if of == "return" else "changed_per_task" if cell.changed else "per_task"
    per_task: Mapping[str, Sequence[float]] | None = result.get(name)
    return per_task


def _row(
    plan: StudyPlan,
    column: Column,
    method: Method,
    values: Mapping[tuple[str, int], Mapping[str, Sequence[float]] | None],
    outcome: StudyOutcome,
) -> dict[str, Any]:
    seeds: list[dict[str, Any]] = []
    for seed in plan.seeds:
        per_task, cell = values[method.id, seed], plan.cells[column.name, method.id, seed]
        state = outcome.states.get(cell.evaluation, "open")
        jobs = [*cell.trains, cell.evaluation]
        seeds.append(
            {
                "seed": seed,
                "state": "failed" if state in ("failed", "skipped") else state,
                "success": None if per_task is None else clustered_bootstrap(per_task, seed=seed).as_dict(),
                "tokens": _sum("tokens", cell.trains, outcome),
                "seconds": _sum("seconds", jobs, outcome),
                "jobs": jobs,
            }
        )
    pooled = answers.pooled_tasks({seed: values[method.id, seed] for seed in plan.seeds})
    return {
        "id": method.id,
        "title": method.title,
        "form": method.variant,
        "trained": method.trained,
        "swapped": method.swapped,
        "parts": dict(method.parts),
        "success": clustered_bootstrap(pooled, seed=0).as_dict() if pooled else None,
        "tokens": answers.mean([entry["tokens"] for entry in seeds]),
        "seconds": answers.mean([entry["seconds"] for entry in seeds]),
        "seeds": seeds,
    }


def compare(entry: dict[str, Any], column: Column, study: str, gain_over: str | None) -> None:
    """Add what a column's entry is compared with: the paper's figures, the gains, and the column's note.

    Of each row: `paper` (%), `gain` over the row `gain_over` (a difference of success in [0, 1], of each seed
    too) and `paper_gain` (percentage points). None: a figure is missing, or it is the row `gain_over`.
    """
    paper = column.paper.get(study, {})
    entry["note"] = column.notes.get(study)
    base: Mapping[str, Any] = next((row for row in entry["rows"] if row["id"] == gain_over), {"seeds": ()})
    of_seeds = {seed["seed"]: seed["success"] for seed in base["seeds"]}
    for row in entry["rows"]:
        over = {} if row["id"] == gain_over else of_seeds
        row["gain"] = _gain(row["success"], base["success"] if over else None)
        row["paper"] = paper.get(row["id"])
        known = over and gain_over in paper and row["id"] in paper
        row["paper_gain"] = round(paper[row["id"]] - paper[str(gain_over)], 6) if known else None
        for seed in row["seeds"]:
            seed["gain"] = _gain(seed["success"], over.get(seed["seed"]))


def _gain(success: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> float | None:
    return None if success is None or other is None else success["mean"] - other["mean"]


def _sum(name: str, jobs: Sequence[str], outcome: StudyOutcome) -> float | None:
    """The sum of a number over the results of jobs; None: a job has no result."""
    numbers = [outcome.results[job][name] for job in jobs if job in outcome.results]
    return sum(numbers) if len(numbers) == len(jobs) else None


def _claims(
    plan: StudyPlan, values: Mapping[Value, Mapping[tuple[str, int], Mapping[str, Sequence[float]] | None]]
) -> list[dict[str, Any]]:
    claims = []
    for claim in plan.study.claims:
        seeds: list[dict[str, Any]] = []
        for seed in plan.seeds:
            per_method = [
                per_task for id_ in claim.methods if (per_task := values[claim.of].get((id_, seed)))
            ]
            if len(per_method) < len(claim.methods):
                seeds.append({"seed": seed, "holds": None, "told": GAP, "numbers": {}})
                continue
            intervals: list[Interval] = [clustered_bootstrap(per_task, seed=seed) for per_task in per_method]
            verdict: ClaimResult = claim.check(*intervals)
            numbers = dict(verdict.numbers)
            if len(per_method) == 2 and set(per_method[0]) == set(per_method[1]):
                numbers["paired_difference"] = paired_difference(*per_method, seed=seed).as_dict()
            seeds.append({"seed": seed, "holds": verdict.holds, "told": verdict.summary, "numbers": numbers})
        claims.append({"statement": claim.statement, "rows": list(claim.methods), "seeds": seeds})
    return claims


def _analysis_claims(by_seed: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The claims in the results of an analysis, by statement."""
    by_statement: dict[str, list[dict[str, Any]]] = {}
    for seed, result in by_seed.items():
        for claim in result.get("claims", ()):
            verdict = {name: claim[name] for name in ("holds", "told", "numbers")}
            by_statement.setdefault(claim["statement"], []).append({"seed": seed, **verdict})
    return [{"statement": statement, "rows": [], "seeds": seeds} for statement, seeds in by_statement.items()]


# --------------------------------------------------------------------------------------------------- Markdown


def markdown(table: Mapping[str, Any], plan: StudyPlan) -> str:
    """The page: for each column a table, its claims and its analysis; then the costs."""
    seeds = f"{len(plan.seeds)} seed" + ("s" if len(plan.seeds) > 1 else "")
    lines = [f"# {table['study']}", "", f"{table['summary']} Scale {table['scale']}, {seeds}.", ""]
    if not table["complete"]:
        done = sum(job["state"] == "done" for job in table["jobs"])
        lines += [f"**Not complete:** {done} of {len(table['jobs'])} jobs are done.", ""]
    for column in table["columns"].values():
        lines += _column_lines(column, table["seeds"], table["gain_over"])
        if plan.study.analysis is not None and column["analysis"]:
            by_seed = {int(seed): result for seed, result in column["analysis"].items()}
            lines += [plan.study.analysis.markdown(by_seed), ""]
    return "\n".join([*lines, *_cost_lines(table)]) + "\n"


def _column_lines(column: Mapping[str, Any], seeds: Sequence[int], gain_over: str | None) -> list[str]:
    names = [f"seed {seed}" for seed in seeds]
    all_seeds = ["all seeds"] if len(seeds) > 1 else []
    compared = ["paper"] if gain_over is None else ["gain", "paper", "paper's gain"]
    measured = answers.HEAD if any("answers" in row for row in column["rows"]) else ()
    head = ["row", *all_seeds, *names, *measured, *compared, "tokens", "seconds"]
    base = [row["title"] for row in column["rows"] if row["id"] == gain_over]
    lines = [
        f"## {column['title']}",
        "",
        f"Success in % on {column['tasks']:,} test tasks a seed, sampled, with its 95 % interval over tasks. "
        f"Budget of each trained row: {column['tokens']:,} generated tokens"
        + _budget_of_roles(column["rows"])
        + _trained(column)
        + "".join(f" Gains are in percentage points over the row *{title}*." for title in base),
        "",
        _cells(head),
        _cells(["---", *["---:"] * (len(head) - 1)]),
        *(_cells(_row_cells(row, bool(all_seeds), bool(gain_over))) for row in column["rows"]),
        "",
        *([answers.NOTE, ""] if measured else []),
        *([column["note"], ""] if column["note"] else []),
    ]
    if column["claims"]:
        lines += [_cells(["claim", *names]), _cells(["---"] * (1 + len(names)))]
        lines += [_cells(_claim_cells(claim, seeds)) for claim in column["claims"]]
        lines += ["", "`<` and `>`: the two 95 % intervals are disjoint; `~`: they overlap.", ""]
    return lines


def _trained(column: Mapping[str, Any]) -> str:
    """What the rows train; the rows that differ from the first are named."""
    titles = {row["id"]: row["title"] for row in column["rows"]}
    kinds: dict[str, list[str]] = {}
    for id_, what in column.get("trained", {}).items():
        kinds.setdefault(what, []).append(titles.get(id_, id_))
    first, *others = kinds.items() if kinds else [("", [])]
    named = "".join(f"; of {', '.join(f'*{title}*' for title in rows)}: {what}" for what, rows in others)
    return f" Trained: {first[0]}{named}." if kinds else ""


def _budget_of_roles(rows: Sequence[Mapping[str, Any]]) -> str:
    """The end of the sentence on the budget: what of it a role has that trains without the others."""
    trained = {name.partition(".")[0] for row in rows for name in (row["form"], *row["parts"].values())}
    shares = {
        SOLO: "; roles that are trained alone share it",
        WITH_FROZEN_PARTNER: "; a role that is trained beside a frozen one has all of it, its partner's "
        "tokens included",
    }
    return "".join(text for kind, text in shares.items() if kind in trained) + "."


def _cost_lines(table: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    return [
        "Tokens (generated in training) and seconds (of trainings and evaluation) are those of one seed, on "
        "average.",
        f"All jobs, one after the other: {table['alone_seconds']:,.0f} s. This call: "
        f"{table['wall_seconds']:,.0f} s, with {table['parallel_jobs']} at a time.",
        *([f"Made with {versions}."] if versions else []),
        *(["", f"    {table['command']}"] if table["command"] else []),
    ]


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _row_cells(row: Mapping[str, Any], pooled: bool, gains: bool) -> list[str]:
    gaps = {seed["state"] for seed in row["seeds"]} - {"done"}
    mean = _percent(row["success"]) if row["success"] is not None else "failed" if "failed" in gaps else GAP
    tokens, seconds = (GAP if row[name] is None else f"{row[name]:,.0f}" for name in ("tokens", "seconds"))
    compared = [GAP if row["paper"] is None else f"{row['paper']:g}"]
    if gains:
        ours = GAP if row["gain"] is None else f"{100 * row['gain']:+.1f}"
        compared = [ours, *compared, GAP if row["paper_gain"] is None else f"{row['paper_gain']:+g}"]
    measured = answers.cells(row["answers"]) if "answers" in row else []
    shown = [*([mean] if pooled else []), *map(_seed, row["seeds"]), *measured, *compared]
    return [row["title"], *shown, tokens, seconds]


def _seed(seed: Mapping[str, Any]) -> str:
    if seed["success"] is None:
        return "failed" if seed["state"] == "failed" else GAP
    return _percent(seed["success"])


def _percent(value: Mapping[str, Any]) -> str:
    low, high = (_hundred(bound) for bound in value["ci95"])
    return f"{_hundred(value['mean'])} [{low}, {high}]"


def _hundred(value: float | None) -> str:
    return GAP if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def _claim_cells(claim: Mapping[str, Any], seeds: Sequence[int]) -> list[str]:
    verdicts = {verdict["seed"]: _verdict(verdict) for verdict in claim["seeds"]}
    return [claim["statement"], *(verdicts.get(seed, GAP) for seed in seeds)]


def _verdict(verdict: Mapping[str, Any]) -> str:
    if verdict["holds"] is None:
        return str(verdict["told"])
    return f"{'yes' if verdict['holds'] else 'no'} ({verdict['told']})"


# -------------------------------------------------------------------------------------------------------- CSV


def as_csv(table: Mapping[str, Any]) -> str:
    """One line per (column, method, seed), and one with seed `all` for pooled values.

    Success is in [0, 1], `gain` the difference of two such values; `paper_percent` and `paper_gain_percent`
    are in percent and percentage points.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS.split())
    for name, column in table["columns"].items():
        for row in column["rows"]:
            states = {seed["state"] for seed in row["seeds"]}
            pooled = "done" if states == {"done"} else "failed" if "failed" in states else "open"
            entries = [("all", pooled, row), *((seed["seed"], seed["state"], seed) for seed in row["seeds"])]
            for seed, state, entry in entries:
                success = entry["success"] or {"mean": None, "ci95": [None, None], "n": 0}
                numbers = [success["mean"], *success["ci95"], success["n"], entry["tokens"], entry["seconds"]]
                paper, paper_gain = (row[key] if seed == "all" else None for key in ("paper", "paper_gain"))
                writer.writerow([name, row["id"], seed, state, *numbers, paper, entry["gain"], paper_gain])
    return stream.getvalue()

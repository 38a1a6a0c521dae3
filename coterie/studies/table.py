"""What came out: rows and columns with intervals, the claims, and what it cost; as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.stats import Interval, clustered_bootstrap, paired_difference
from coterie.studies.columns import ALONE, Column
from coterie.studies.graph import Cell, Plan
from coterie.studies.runner import Outcome, near
from coterie.studies.study import Method, Verdict

GAP = "–"


def collect(plan: Plan, outcome: Outcome, folders: Mapping[str, Path]) -> dict[str, Any]:
    """The table as JSON, without what the call adds (command, wall time).

    Args:
        folders: job -> its folder.
    """
    columns = {column.name: _column(plan, column, outcome, folders) for column in plan.columns}
    results = outcome.results
    versions = {key: value for result in results.values() for key, value in result["versions"].items()}
    return {
        "study": plan.name,
        "summary": plan.study.summary,
        "scale": plan.scale,
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
                "folder": str(near(folders[id_])),
                "reused": id_ in outcome.reused,
                "error": outcome.errors.get(id_),
                "log": str(near(outcome.logs[id_])) if id_ in outcome.logs else None,
            }
            for id_, job in plan.jobs.items()
        ],
    }


def _column(plan: Plan, column: Column, outcome: Outcome, folders: Mapping[str, Path]) -> dict[str, Any]:
    tokens, tasks = plan.budgets[column.name]
    values = {
        (row.id, seed): _per_task(plan.cells[column.name, row.id, seed], outcome)
        for row in plan.rows[column.name]
        for seed in plan.seeds
    }
    figures = column.paper.get(plan.name, {})
    found: dict[str, Any] = {
        "title": column.title,
        "tokens": tokens,
        "tasks": tasks,
        "rows": [
            _row(plan, column, row, values, outcome, figures.get(row.id)) for row in plan.rows[column.name]
        ],
        "claims": _claims(plan, values),
    }
    analysis = plan.study.analysis
    if analysis is not None:
        read = {}
        for seed in plan.seeds:
            run = plan.cells[column.name, analysis.row, seed].trains[0]
            if outcome.states.get(run) == "done":
                read[seed] = dict(analysis.read(folders[run] / "run"))
        found["analysis"] = {str(seed): one for seed, one in read.items()}
        found["claims"] += _read_claims(read)
    return found


def _per_task(cell: Cell, outcome: Outcome) -> Mapping[str, Sequence[float]] | None:
    """task -> success of each sample; None where there is no result."""
    result = outcome.results.get(cell.evaluation)
    if result is None:
        return None
    found: Mapping[str, Sequence[float]] = result["changed_per_task" if cell.changed else "per_task"]
    return found


def _row(
    plan: Plan,
    column: Column,
    row: Method,
    values: Mapping[tuple[str, int], Mapping[str, Sequence[float]] | None],
    outcome: Outcome,
    paper: float | None,
) -> dict[str, Any]:
    seeds: list[dict[str, Any]] = []
    pooled: dict[str, Sequence[float]] = {}
    for seed in plan.seeds:
        per_task, cell = values[row.id, seed], plan.cells[column.name, row.id, seed]
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
        # Each seed has its own tasks: the same id of two seeds is two tasks.
        pooled |= {f"{seed}/{task}": samples for task, samples in (per_task or {}).items()}
    return {
        "id": row.id,
        "title": row.title,
        "form": row.form,
        "trained": row.trained,
        "swapped": row.swapped,
        "parts": dict(row.parts),
        "success": clustered_bootstrap(pooled, seed=0).as_dict() if pooled else None,
        "tokens": _mean([one["tokens"] for one in seeds]),
        "seconds": _mean([one["seconds"] for one in seeds]),
        "paper": paper,
        "seeds": seeds,
    }


def _sum(name: str, jobs: Sequence[str], outcome: Outcome) -> float | None:
    """Over the results of jobs; None where one has none."""
    found = [outcome.results[job][name] for job in jobs if job in outcome.results]
    return sum(found) if len(found) == len(jobs) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _claims(
    plan: Plan, values: Mapping[tuple[str, int], Mapping[str, Sequence[float]] | None]
) -> list[dict[str, Any]]:
    found = []
    for claim in plan.study.claims:
        seeds: list[dict[str, Any]] = []
        for seed in plan.seeds:
            given = [values.get((row, seed)) for row in claim.rows]
            have = [one for one in given if one]
            if len(have) < len(given):
                seeds.append({"seed": seed, "holds": None, "told": GAP, "numbers": {}})
                continue
            intervals: list[Interval] = [clustered_bootstrap(one, seed=seed) for one in have]
            verdict: Verdict = claim.check(*intervals)
            numbers = dict(verdict.numbers)
            if len(have) == 2 and set(have[0]) == set(have[1]):
                numbers["paired_difference"] = paired_difference(have[0], have[1], seed=seed).as_dict()
            seeds.append({"seed": seed, "holds": verdict.holds, "told": verdict.told, "numbers": numbers})
        found.append({"statement": claim.statement, "rows": list(claim.rows), "seeds": seeds})
    return found


def _read_claims(read: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What an analysis says of each seed, by statement."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed, one in read.items():
        for claim in one.get("claims", ()):
            rest = {name: claim[name] for name in ("holds", "told", "numbers")}
            found.setdefault(claim["statement"], []).append({"seed": seed, **rest})
    return [{"statement": statement, "rows": [], "seeds": seeds} for statement, seeds in found.items()]


# --------------------------------------------------------------------------------------------------- Markdown


def markdown(table: Mapping[str, Any], plan: Plan) -> str:
    """The page: a table per column, its claims, what an analysis found, and what it cost."""
    seeds = f"{len(plan.seeds)} seed" + ("s" if len(plan.seeds) > 1 else "")
    lines = [f"# {table['study']}", "", f"{table['summary']} Scale {table['scale']}, {seeds}.", ""]
    if not table["complete"]:
        done = sum(job["state"] == "done" for job in table["jobs"])
        lines += [f"**Not complete:** {done} of {len(table['jobs'])} jobs are done.", ""]
    for column in table["columns"].values():
        lines += _column_lines(column, table["seeds"])
        if plan.study.analysis is not None and column["analysis"]:
            read = {int(seed): one for seed, one in column["analysis"].items()}
            lines += [plan.study.analysis.markdown(read), ""]
    return "\n".join([*lines, *_cost_lines(table)]) + "\n"


def _column_lines(column: Mapping[str, Any], seeds: Sequence[int]) -> list[str]:
    names = [f"seed {seed}" for seed in seeds]
    all_seeds = ["all seeds"] if len(seeds) > 1 else []
    head = ["row", *all_seeds, *names, "paper", "tokens", "seconds"]
    shared = any(row["form"].startswith(f"{ALONE}.") for row in column["rows"])
    lines = [
        f"## {column['title']}",
        "",
        f"Success in % on {column['tasks']:,} test tasks a seed, sampled, with its 95 % interval over tasks. "
        f"Budget of each trained row: {column['tokens']:,} generated tokens"
        + ("; roles that are trained alone share it." if shared else "."),
        "",
        _cells(head),
        _cells(["---", *["---:"] * (len(head) - 1)]),
        *(_cells(_row_cells(row, bool(all_seeds))) for row in column["rows"]),
        "",
    ]
    if column["claims"]:
        lines += [_cells(["claim", *names]), _cells(["---"] * (1 + len(names)))]
        lines += [_cells(_claim_cells(claim, seeds)) for claim in column["claims"]]
        lines += ["", "`<` and `>`: the two 95 % intervals are disjoint; `~`: they overlap.", ""]
    return lines


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


def _cells(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _row_cells(row: Mapping[str, Any], pooled: bool) -> list[str]:
    gaps = {one["state"] for one in row["seeds"]} - {"done"}
    mean = _percent(row["success"]) if row["success"] is not None else "failed" if "failed" in gaps else GAP
    tokens, seconds = (GAP if row[name] is None else f"{row[name]:,.0f}" for name in ("tokens", "seconds"))
    paper = GAP if row["paper"] is None else f"{row['paper']:g}"
    return [row["title"], *([mean] if pooled else []), *map(_seed, row["seeds"]), paper, tokens, seconds]


def _seed(one: Mapping[str, Any]) -> str:
    if one["success"] is None:
        return "failed" if one["state"] == "failed" else GAP
    return _percent(one["success"])


def _percent(value: Mapping[str, Any]) -> str:
    low, high = (_hundred(bound) for bound in value["ci95"])
    return f"{_hundred(value['mean'])} [{low}, {high}]"


def _hundred(value: float | None) -> str:
    return GAP if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def _claim_cells(claim: Mapping[str, Any], seeds: Sequence[int]) -> list[str]:
    told = {one["seed"]: _verdict(one) for one in claim["seeds"]}
    return [claim["statement"], *(told.get(seed, GAP) for seed in seeds)]


def _verdict(one: Mapping[str, Any]) -> str:
    if one["holds"] is None:
        return str(one["told"])
    return f"{'yes' if one['holds'] else 'no'} ({one['told']})"


# -------------------------------------------------------------------------------------------------------- CSV


def as_csv(table: Mapping[str, Any]) -> str:
    """A line a (column, row, seed), and one with seed `all` for the pooled value; success in [0, 1]."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        [
            "column",
            "row",
            "seed",
            "state",
            "success",
            "low",
            "high",
            "tasks",
            "tokens",
            "seconds",
            "paper_percent",
        ]
    )
    for name, column in table["columns"].items():
        for row in column["rows"]:
            states = {one["state"] for one in row["seeds"]}
            state = "done" if states == {"done"} else "failed" if "failed" in states else "open"
            for seed, one, said in (
                ("all", row, state),
                *((one["seed"], one, one["state"]) for one in row["seeds"]),
            ):
                success = one["success"] or {"mean": None, "ci95": [None, None], "n": 0}
                numbers = [success["mean"], *success["ci95"], success["n"], one["tokens"], one["seconds"]]
                paper = row["paper"] if seed == "all" else None
                writer.writerow([name, row["id"], seed, said, *numbers, paper])
    return stream.getvalue()

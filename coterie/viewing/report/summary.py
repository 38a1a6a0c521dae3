"""What a run is, in a few lines, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from coterie.analysis.diagnosis.run import evidence_of, sicknesses
from coterie.api.rows import number_of, tokens_so_far
from coterie.viewing.follow import interval
from coterie.viewing.report.blocks import PackedRun
from coterie.viewing.report.reading import ReportedRun, discarded
from coterie.viewing.text import one_line as shown

EMPTY_SHARE = 0.1
"""A larger share of answers without text is an alarm (docs/runs.md)."""
MISSING_SHARE = 0.05


def summary(run: ReportedRun) -> dict[str, Any]:
    """The facts of a run's header. `success` holds the first and the last evaluation as they are."""
    config = run.config
    rows = run.rows
    schedule = config.get("schedule") or {}
    tokens = tokens_so_far(rows)
    return {
        "name": run.name,
        "recipe": config.get("name"),
        "about": config.get("summary"),
        "algorithm": _type(config.get("algorithm")),
        "environment": _type(config.get("env")),
        "order": (config.get("team") or {}).get("order") or [],
        "team": run.team,
        "models": {name: model(table) for name, table in (config.get("policies") or {}).items()},
        "seed": config.get("seed"),
        "step": int(rows[-1]["step"]) if rows else 0,
        "steps": schedule.get("steps"),
        "tokens": tokens[-1] if tokens else 0,
        "success": _success(run),
        "best": run.best,
        "versions": run.record.used if run.record is not None else {},
        "live": run.live,
    }


def model(table: Any) -> str:
    """A policy's model in a few words."""
    table = table or {}
    of = table.get("model")
    if isinstance(of, Mapping):
        layers, width = of.get("layers"), of.get("hidden_size")
        size = f"{layers} {'layer' if layers == 1 else 'layers'} of {width}" if layers and width else ""
        tabular = of.get("init") == "tabular"  # whose configuration has the sizes of other models too
        what = ("a table of logits",) if tabular else (f"new {of.get('init')}", size)
        text = ", ".join(filter(None, (*what, f"tokenizer {of.get('tokenizer')}")))
    else:
        text = str(of) if of is not None else "a table of logits"
    train = table.get("train")
    return text if train in (None, "full") else f"{text}, {'frozen' if train == 'none' else train}"


def warnings(run: ReportedRun, packed: PackedRun) -> Iterator[dict[str, str]]:
    """What a reader should know before believing a curve: `{"what", "detail"}`."""
    yield from _signals(run)
    yield from _sicknesses(run)
    yield from _lost(run)
    folders, cancelled = discarded(run.folder)
    for name in folders:
        yield {"what": "A resume took steps out", "detail": f"discarded/{name}"}
    for row in cancelled:
        yield {
            "what": f"An end after step {row.get('step')} cancelled steps in play",
            "detail": f"{row.get('steps')} steps, {row.get('tokens')} tokens",
        }
    for note in (*run.remarks, *packed.remarks):
        yield {"what": "Read with a warning", "detail": note}
    if run.live:
        last = run.rows[-1]["step"] if run.rows else 0
        yield {"what": "The run goes on", "detail": f"This page shows it up to step {last}."}
    yield from _stopped(run)
    if not packed.recorded:
        yield {
            "what": "No rollouts",
            "detail": "The run has recorded none (schedule.record_every), so it has no episodes to look at.",
        }


def _stopped(run: ReportedRun) -> Iterator[dict[str, str]]:
    """Before its last step a run that nobody trains looks like one that has ended."""
    if run.live or run.state not in ("stopped", "unseen"):
        return
    last, most = run.rows[-1]["step"] if run.rows else 0, (run.config.get("schedule") or {}).get("steps")
    where = f"It ended at step {last}" + (f" of {most}" if most else "")
    which = (
        "No process trains the run" if run.state == "stopped" else "No process of this machine trains the run"
    )
    yield {"what": which, "detail": f"{where}. Go on with: coterie run --resume {shown(run.folder.path)}"}


def _signals(run: ReportedRun) -> Iterator[dict[str, str]]:
    """The signs that nothing is learned, with their steps."""
    steps: dict[str, list[int]] = {}
    for row in run.rows:
        for name, value in row.items():
            if name.startswith("signal/") and value:
                steps.setdefault(name, []).append(int(row["step"]))
    for name, of in steps.items():
        yield {"what": name, "detail": f"held in {len(of)} steps, from step {of[0]} to step {of[-1]}"}


def _sicknesses(run: ReportedRun) -> Iterator[dict[str, str]]:
    """The known sicknesses that the metrics show, but for the signs that the rows have themselves."""
    for sickness in sicknesses(evidence_of(run.rows, run.config)):
        if not sickness.metric.startswith("signal/"):
            yield {"what": sickness.line, "detail": f"{sickness.says}. What helps: {sickness.helps}"}


def _lost(run: ReportedRun) -> Iterator[dict[str, str]]:
    """Rows that are lost, and shares that are alarms, with the step of the largest."""
    steps = {step for step in run.steps if step > 0}
    missing = max(steps, default=0) - len(steps)
    if missing:
        first = next(step for step in count(1) if step not in steps)
        yield {"what": "Rows are missing", "detail": f"{missing} steps, the first of them {first}"}
    alarms = (
        ("missing/share", MISSING_SHARE, "Missing scores"),
        ("episodes/missing", MISSING_SHARE, "Episodes lost by a fault"),
        ("empty/", EMPTY_SHARE, "Answers without text"),
        ("faults/system", 0.0, "Actions lost by the system"),
    )
    for prefix, bound, what in alarms:
        names = dict.fromkeys(name for row in run.rows for name in row if name.startswith(prefix))
        for name in names:
            values = ((number_of(row.get(name)), int(row["step"])) for row in run.rows)
            above = [(value, step) for value, step in values if value > bound]
            if above:
                most, step = max(above)
                where = f"in {len(above)} steps; most in step {step}: {most:.3g}"
                yield {"what": what, "detail": f"{name} was above {bound:g} {where}"}


def _success(run: ReportedRun) -> dict[str, Any]:
    """The first and last evaluation on `val`; without any, training's, unless it is the best of K."""
    rated = [row for row in run.rows if not math.isnan(number_of(row.get("eval/success")))]
    key = "eval/success" if rated else "success"
    rated = rated or [row for row in run.rows if not math.isnan(number_of(row.get("success")))]
    if not rated:
        return {}
    ends = [
        {"step": row["step"], "mean": row[key], "ci95": interval(row.get(f"{key}_ci95"))}
        for row in (rated[0], rated[-1])
    ]
    return {"of": "val" if key == "eval/success" else "training", "first": ends[0], "last": ends[1]}


def _type(table: Any) -> str | None:
    return table.get("type") if isinstance(table, Mapping) else table

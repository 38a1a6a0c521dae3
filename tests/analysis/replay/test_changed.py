"""Records that were changed by hand: each is noticed, at the place of the change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import coterie
from coterie.analysis.records import RunRecords
from coterie.analysis.replay.differences import row_id
from coterie.api.rollouts import read_rollouts
from coterie.plugins.envs.plan_path import PlanPath
from tests.analysis.replay.support import SCRIPTED, Rows, changed, replayed, table, trained


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """Three steps of an estimator with a state, on trees that fork."""
    folder = tmp_path_factory.mktemp("changed") / "run"
    sampler = {"branches": 3, "expand": "best", "sampling": {"max_new_tokens": 2}}
    return RunRecords.open(trained(folder, table(sampler=sampler, engine=SCRIPTED)))


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    folder = tmp_path_factory.mktemp("stateful") / "run"
    sampler = {"chains": 3, "branches": 1, "sampling": {"max_new_tokens": 2}}
    return RunRecords.open(trained(folder, table(algorithm={"type": "rae"}, sampler=sampler)))


def of(kind: str, number: int = 0, **fields: Any) -> Callable[[Rows], dict[str, Any]]:
    """The n-th row of a kind with these fields."""

    def find(rows: Rows) -> dict[str, Any]:
        fitting = [row for row in rows if row["kind"] == kind and fields.items() <= row.items()]
        return fitting[number]

    return find


def put(where: Callable[[Rows], dict[str, Any]], *path: Any, value: Any) -> Callable[[Rows], dict[str, Any]]:
    """Another value at a path of a row; a function makes it from the present one."""

    def change(rows: Rows) -> dict[str, Any]:
        row = inner = where(rows)
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value(inner[path[-1]]) if callable(value) else value
        return row

    return change


def scored(number: int) -> Callable[[Rows], dict[str, Any]]:
    """A joint action whose judge gave a score."""
    return lambda rows: [r for r in rows if r["kind"] == "joint" and r["scores"].get("team.judge")][number]


def unscored(number: int) -> Callable[[Rows], dict[str, Any]]:
    return lambda rows: [
        r for r in rows if r["kind"] == "joint" and r["scores"].get("team.judge", 0) is None
    ][number]


def traded(first: int, second: int) -> Callable[[Rows], dict[str, Any]]:
    """Two rows in each other's place."""

    def change(rows: Rows) -> dict[str, Any]:
        row = rows[first]
        rows[first], rows[second] = rows[second], rows[first]
        return row

    return change


def dropped(where: Callable[[Rows], dict[str, Any]]) -> Callable[[Rows], dict[str, Any]]:
    def change(rows: Rows) -> dict[str, Any]:
        row = where(rows)
        rows.remove(row)
        return row

    return change


def repeated(where: Callable[[Rows], dict[str, Any]]) -> Callable[[Rows], dict[str, Any]]:
    def change(rows: Rows) -> dict[str, Any]:
        row = where(rows)
        rows.insert(rows.index(row), dict(row))
        return row

    return change


def another_action(number: int) -> Callable[[Rows], dict[str, Any]]:
    """The tokens and the text of another branch, so that the row is consistent in itself."""

    def change(rows: Rows) -> dict[str, Any]:
        sound = [row for row in rows if row["kind"] == "branch" and row["fault"] is None]
        pairs = [(a, b) for a in sound for b in sound if a["completion"] != b["completion"]]
        row, other = pairs[number % len(pairs)]
        row["calls"], row["completion"] = other["calls"], other["completion"]
        return row

    return change


REVERSED = lambda text: text[::-1] + "x"  # noqa: E731
MORE = lambda value: value + 0.25  # noqa: E731
CHANGES: dict[str, tuple[Callable[[Rows], dict[str, Any]], str]] = {
    "an action's text": (put(of("branch", 4), "completion", value=REVERSED), "completion"),
    "an action's first token": (put(of("branch", 7), "calls", 0, "token_ids", 0, value=1), "completion"),
    "a parsed fault": (put(of("branch", 9), "fault", value={"kind": "policy", "reason": "no"}), "fault"),
    "a thought": (put(of("branch", 2), "thought", value="hm"), "thought"),
    "a policy": (put(of("branch", 3), "policy", value="other"), "policy"),
    "a prompt": (put(of("node", 1), "prompt", value=REVERSED), "prompt"),
    "a prompt's ids": (put(of("node", 2), "prompt_ids", 0, value=7), "prompt_ids"),
    "a temperature": (put(of("node", 3), "temperature", value=0.5), "temperature"),
    "a state before": (put(of("node", 5), "state_digest", value=REVERSED), "state_digest"),
    "a state after": (put(of("joint", 4), "state_digest", value=REVERSED), "state_digest"),
    "a last state": (put(of("joint", -1), "state_digest", value=REVERSED), "state_digest"),
    "a judge's score": (put(scored(0), "scores", "team.judge", value=MORE), "scores"),
    "another score": (put(of("joint", 6), "scores", "team.team", value=MORE), "scores"),
    "a score that is there": (put(scored(1), "scores", "team.judge", value=None), "scores"),
    "a missing mark": (put(unscored(0), "scores", "team.judge", value=0.0), "scores"),
    "a missing mark's reason": (put(unscored(0), "reasons", "team.judge", value="lost"), "reasons"),
    "a whole mark": (put(unscored(0), "whole", value=[]), "whole"),
    "a branch's mean score": (put(of("branch", 5), "scores", "team.team", value=MORE), "scores"),
    "a reward": (put(of("branch", 0), "reward", value=9.0), "reward"),
    "a joint's reward": (put(of("joint", 2), "reward", "planner", value=9.0), "reward"),
    "a choice": (put(of("joint", 0), "expanded", value=lambda now: not now), "expanded"),
    "a rule": (put(of("joint", 1), "rule", value="sampled"), "rule"),
    "an end": (put(of("joint", 3), "terminated", value=lambda now: not now), "terminated"),
    "an outcome": (
        put(lambda rows: next(r for r in rows if r.get("outcome")), "outcome", "success", value=0.125),
        "outcome",
    ),
    "a fault of the policy": (put(of("joint", 5), "fault", value={"kind": "policy", "reason": "x"}), "fault"),
    "an advantage": (
        put(lambda rows: [r for r in rows if r.get("advantage") is not None][3], "advantage", value=MORE),
        "advantage",
    ),
    "a return": (
        put(lambda rows: [r for r in rows if r.get("return") is not None][4], "return", value=MORE),
        "return",
    ),
    "a weight in the loss": (
        put(lambda rows: [r for r in rows if r.get("weight") is not None][5], "weight", value=0.5),
        "weight",
    ),
    "two rows traded": (traded(3, 5), "order"),
    "two trees' rows traded": (traded(1, -1), "order"),
    "a row dropped": (dropped(of("branch", 8)), "row"),
    "a joint action dropped": (dropped(of("joint", 2)), "row"),
    "a row repeated": (repeated(of("branch", 6)), "row"),
    "another action": (another_action(1), "state_digest"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_located(name: str, records: RunRecords, tmp_path: Path) -> None:
    change, field = CHANGES[name]
    touched: list[dict[str, Any]] = []
    result = changed(records, 2, lambda rows: touched.append(change(rows)), tmp_path)
    first, row = result.first, touched[0]
    assert first is not None, "it wasn't noticed"
    assert first.step == 2 and first.task == row["task_id"] and first.node == row["node"], first
    assert first.field.partition(".")[0].partition("[")[0] == field, first
    if field != "state_digest" or row["kind"] == "node":
        assert (first.role, first.branch, first.joint) == (
            row.get("role", ""),
            row.get("branch"),
            row.get("joint"),
        )
    assert first.recorded != first.replayed and result.equal["steps"] == 0


def test_there_are_at_least_30_changes() -> None:
    assert len(CHANGES) >= 30


def test_the_step_s_first_row(records: RunRecords, stateful: RunRecords, tmp_path: Path) -> None:
    first = changed(records, 2, put(lambda rows: rows[0], "weights", "judge", value=3.0), tmp_path).first
    assert (
        first is not None
        and first.field == "weights.judge"
        and (first.recorded, first.replayed) == (3.0, 1.5)
    )
    first = changed(records, 2, put(lambda rows: rows[0], "team_weight", value=3.0), tmp_path).first
    assert first is not None and first.field == "team_weight" and not first.node
    first = changed(stateful, 2, put(lambda rows: rows[0], "state", "planner", value=MORE), tmp_path).first
    assert first is not None and (first.step, first.field) == (2, "state.planner")
    with pytest.raises(coterie.RunFolderError, match="doesn't begin with a row of kind 'step'"):
        changed(records, 2, lambda rows: rows.pop(0), tmp_path)


def test_the_state_after_is_that_of_the_checkpoint_and_of_the_next_step(stateful: RunRecords) -> None:
    whole = replayed(stateful, stateful.steps)
    assert whole.same and whole.equal["states"] == 3 + 2  # steps; checkpoints of steps 2 and 3
    manifest = stateful.folder.checkpoints / "step-000002" / "manifest.json"
    assert json.loads(manifest.read_text())["meta"]["credit_state"]["planner"] is not None


@pytest.mark.parametrize("change", ["seed", "team.max_turns", "env.size"])
def test_another_configuration(change: str, records: RunRecords, tmp_path: Path) -> None:
    """A setting of the folder's configuration: the first value that follows from it."""
    values = {"seed": 5, "team.max_turns": 1, "env.size": 4}
    run = records.run(extra=[f"{change}={values[change]}"])
    other = RunRecords(records.folder, records.resolved, None, records.files, {(): run})
    first = replayed(other, [1]).first
    assert first is not None
    rows = records.rows(1)
    if change == "seed":
        assert first.field == "task" and rows[1]["task_id"] in str(first.recorded)
    else:
        assert (
            first.node == rows[1]["node"] if change == "env.size" else first.field in ("truncated", "outcome")
        )


def test_a_task_that_the_step_does_not_have(records: RunRecords, tmp_path: Path) -> None:
    def change(rows: Rows) -> None:
        task = rows[1]["task_id"]
        for row in rows[1:]:
            if row["task_id"] == task:
                row["task_id"], row["node"] = "train-999", row["node"].replace(task, "train-999")
                row["child"] = (
                    row["child"] and row["child"].replace(task, "train-999") if "child" in row else None
                )

    first = changed(records, 2, change, tmp_path).first
    assert first is not None and (first.field, first.task) == ("task", "train-999")


def test_a_bug_that_a_plugin_has_since_the_run_is_a_difference(
    records: RunRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ValueError("broken since")

    monkeypatch.setattr(PlanPath, "observe", broken)
    first = replayed(records, [2]).first
    assert first is not None and (first.field, first.recorded) == ("play", "played to its end")
    assert first.replayed.startswith(
        "ValueError: broken since in environment 'plan_path' of coterie: observe"
    )


UNCHECKED = ("logprobs", "version", "float32", "format", "kind")
"""What only the model can give again."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [
            leaf
            for key, inner in value.items()
            if key not in UNCHECKED
            for leaf in leaves(inner, (*path, key))
        ]
    if isinstance(value, list):
        return [leaf for at, inner in enumerate(value) for leaf in leaves(inner, (*path, at))]
    return [] if value is None else [path]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_of_any_row(data: st.DataObject, records: RunRecords, tmp_path: Path) -> None:
    rows = read_rollouts(records.files[2])
    at = data.draw(st.integers(1, len(rows) - 1))
    keys = [
        leaf
        for leaf in leaves(rows[at])
        if leaf[0] not in ("task_id", "epoch", "chain", "node", "role", "branch", "joint")
    ]
    path = data.draw(st.sampled_from(keys))

    def another(value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        return value + 1 if isinstance(value, (int, float)) else f"{value} x"

    first = changed(records, 2, put(lambda rows: rows[at], *path, value=another), tmp_path).first
    assert first is not None, path
    assert (first.node, first.task) == (rows[at]["node"], rows[at]["task_id"])
    if row_id(rows[at])[0] != "branch" or path[0] != "calls":
        assert first.field.partition(".")[0].partition("[")[0] == path[0]

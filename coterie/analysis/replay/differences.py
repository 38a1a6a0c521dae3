"""The differences between the recorded rows of a step and those that its replay makes, located.

The replay makes the whole file again, and the two are compared row by row and field by field. What caused a
difference comes before what follows from it: play before credit, parents before children, a prompt before
its actions, and a score before the means over it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.api.episodes import Row, tree_id

RowId = tuple[str, str, str, int]
"""Kind, node, role, and index of the branch or of the joint action."""

_CREDIT = ("return", "advantage", "weight")
_RANKS = (
    ("row", "order", "task", "format"),
    ("task_id", "epoch", "chain", "stratum", "turn", "stage", "policy"),
    ("state_digest:node", "prompt", "prompt_ids", "prompt_sha256", "temperature", "trainable"),
    ("calls", "completion", "thought", "tool_results", "tool_limit", "version", "fault:branch"),
    ("branches", "recombined", "fault:joint"),
    ("state_digest:joint",),
    ("own_scores", "scores:joint", "whole", "reasons:joint", "comments:joint"),
    ("scores:branch", "reasons:branch", "comments:branch"),
    ("reward", "terminated", "truncated", "outcome", "annotations"),
    ("rule", "expanded", "child"),
    _CREDIT,
)
_RANK = {field: rank for rank, fields in enumerate(_RANKS) for field in fields}
_SPOT = re.compile(r" \([^()]*, line \d+\)")
"""Where in a plugin's file an exception was raised: it depends on the folder that it is installed in."""
_FOLDER = re.compile(r"[^\s'\"(]*/(?=[\w.-]+\.py\b)")
"""The folder of a plugin's file, which may have been moved."""
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One field that the record and the replay have differently, and the place that it is of."""

    step: int
    field: str
    """With the place in a table or list: `scores.team.success`, `prompt_ids[12]`. `row`: a row is missing,
    repeated or too much; `order`: it stands elsewhere; `task`: the step plays another one; `state`: the
    estimator's."""
    recorded: Any
    replayed: Any
    task: str = ""
    """Empty: the difference is none of a tree."""
    epoch: int = 0
    chain: int = 0
    node: str = ""
    """Text of the node's key; empty: the difference is the tree's or the step's."""
    turn: int | None = None
    role: str = ""
    branch: int | None = None
    joint: int | None = None

    @property
    def place(self) -> str:
        """The place in words: `step 3, task train-7 (epoch 0, chain 1), node n0.2, turn 1, role planner`."""
        parts = [f"step {self.step}"]
        if self.task:
            parts.append(f"task {self.task} (epoch {self.epoch}, chain {self.chain})")
        if self.node:
            parts.append(f"node {self.node.rpartition('/')[2]}")
        if self.turn is not None:
            parts.append(f"turn {self.turn + 1}")
        if self.role:
            parts.append(f"role {self.role}")
        if self.branch is not None:
            parts.append(f"branch {self.branch}")
        if self.joint is not None:
            parts.append(f"joint action {self.joint}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The entry of `coterie replay --json`."""
        names = ("step", "task", "epoch", "chain", "node", "turn", "role", "branch", "joint", "field")
        table = {name: getattr(self, name) for name in names}
        return {**table, "place": self.place, "recorded": self.recorded, "replayed": self.replayed}


def shown(value: Any) -> str:
    """A side of a difference, as one line of at most some hundred characters."""
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def row_id(row: Row) -> RowId:
    """What a row is of."""
    index = row.get("branch", row.get("joint", -1))
    return row["kind"], row.get("node", ""), row.get("role", ""), index


def compare_rows(
    step: int,
    recorded: Sequence[Row],
    replayed: Sequence[Row],
    exempt: Callable[[Row, str], bool] = lambda row, field: False,
) -> list[Mismatch]:
    """All differences, the cause of others first.

    Args:
        recorded: rows without that of kind `step`; `replayed` likewise.
        exempt: whether a field of a recorded row is taken from the record, and so not compared.
    """
    trees = _positions(tree_id(row) for row in (*replayed, *recorded))
    nodes = _positions(row["node"] for row in (*replayed, *recorded))
    turns = {row["node"]: row["turn"] for row in (*recorded, *replayed) if "turn" in row}
    differences: list[tuple[tuple[int, ...], Mismatch]] = []

    def add(row: Row, field: str, left: Any, right: Any, at: int) -> None:
        base = re.split(r"[.\[]", field)[0]
        rank = _RANK.get(f"{base}:{row['kind']}", _RANK.get(base, len(_RANKS) - 2))
        credit = base in _CREDIT
        place = (int(credit), trees[tree_id(row)], nodes[row["node"]], rank, at)
        differences.append((place, mismatch_of(step, row, field, left, right, turns)))

    expected = {row_id(row): row for row in replayed}
    for at, row, field, left, right in _structure(recorded, replayed):
        add(row, field, left, right, at)
    seen: set[RowId] = set()
    for at, row in enumerate(recorded):
        name = row_id(row)
        if name in seen or name not in expected:
            continue
        seen.add(name)
        for field, left, right in _fields(row, expected[name]):
            if not exempt(row, field):
                add(row, field, left, right, at)
    return [mismatch for _, mismatch in sorted(differences, key=lambda pair: pair[0])]


def differing_state(step: int, name: str, recorded: Any, replayed: Any) -> list[Mismatch]:
    """The difference of two states of an estimator, if there is one."""
    if recorded == replayed:
        return []
    path, left, right = _inside(name, recorded, replayed)
    return [Mismatch(step=step, field=path, recorded=left, replayed=right)]


def _structure(recorded: Sequence[Row], replayed: Sequence[Row]) -> Iterator[tuple[int, Row, str, Any, Any]]:
    """Rows that are repeated, missing, too much, or elsewhere."""
    ids, expected = [row_id(row) for row in recorded], [row_id(row) for row in replayed]
    counts, known, present = Counter(ids), set(expected), set(ids)
    seen: set[RowId] = set()
    for at, (row, name) in enumerate(zip(recorded, ids, strict=True)):
        if name in seen:
            continue
        seen.add(name)
        if counts[name] > 1:
            yield at, row, "row", f"{counts[name]} times", "once"
        if name not in known:
            yield at, row, "row", "it is there", "not played"
    for at, (row, name) in enumerate(zip(replayed, expected, strict=True)):
        if name not in present:
            yield at, row, "row", "missing", "played"
    first = list(dict.fromkeys(name for name in ids if name in known))
    wanted = [name for name in expected if name in present]
    for at, (left, right) in enumerate(zip(first, wanted, strict=True)):
        if left != right:
            row = next(row for row, name in zip(replayed, expected, strict=True) if name == right)
            yield at, row, "order", _row_text(left), _row_text(right)
            return


def _row_text(name: RowId) -> str:
    kind, node, role, index = name
    of = [f"the row of kind {kind}", f"of {node}", role and f"role {role}", index >= 0 and f"number {index}"]
    return " ".join(str(part) for part in of if part)


def _fields(recorded: Row, replayed: Row) -> Iterator[tuple[str, Any, Any]]:
    for field in recorded:  # what an older version didn't write isn't compared; the rest was checked for
        left, right = recorded[field], replayed.get(field)
        if field in ("reasons", "fault", "comments"):
            left, right = _without_spots(left), _without_spots(right)
        if field == "calls":
            right = _as_written(left, right)
        if left != right or field not in replayed:
            yield _inside(field, left, right)


def _as_written(recorded: Any, replayed: Any) -> Any:
    """Calls without the text, where the recorded ones have none, as of older versions."""
    if any("text" in call for call in recorded):
        return replayed
    return [{key: value for key, value in call.items() if key != "text"} for call in replayed or ()]


def _without_spots(value: Any) -> Any:
    if isinstance(value, str):
        return _FOLDER.sub("", _SPOT.sub("", value))
    return {key: _without_spots(text) for key, text in value.items()} if isinstance(value, dict) else value


def _inside(field: str, left: Any, right: Any) -> tuple[str, Any, Any]:
    """The innermost entry in which two values differ first, with its path."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys((*left, *right)):
            if key not in left or key not in right or left[key] != right[key]:
                return _inside(f"{field}.{key}", left.get(key, "nothing"), right.get(key, "nothing"))
    if isinstance(left, list) and isinstance(right, list):
        for at, (first, second) in enumerate(zip(left, right, strict=False)):
            if first != second:
                return _inside(f"{field}[{at}]", first, second)
        return f"{field}[{min(len(left), len(right))}]", f"{len(left)} entries", f"{len(right)} entries"
    return field, left, right


def _positions(names: Iterable[Any]) -> dict[Any, int]:
    return {name: at for at, name in enumerate(dict.fromkeys(names))}


def mismatch_of(step: int, row: Row, field: str, left: Any, right: Any, turns: Mapping[str, int]) -> Mismatch:
    """The difference of a field of a row; `turns` has the turns of nodes by their keys."""
    task, epoch, chain = tree_id(row)
    return Mismatch(
        step=step,
        field=field,
        recorded=left,
        replayed=right,
        task=task,
        epoch=epoch,
        chain=chain,
        node=row["node"],
        turn=turns.get(row["node"]),
        role=row.get("role", ""),
        branch=row.get("branch"),
        joint=row.get("joint"),
    )

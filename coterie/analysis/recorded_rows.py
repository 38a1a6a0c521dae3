"""The shape of rollout rows: a file that something else wrote, or that was changed, is refused by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from coterie.api.rollout_lines import damaged

_PLACE: dict[str, tuple[type, ...]] = {"task_id": (str,), "epoch": (int,), "chain": (int,), "node": (str,)}
_FAULT = (dict, NoneType)
SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "step": {"step": (int,), "weights": (dict,), "team_weight": (int, float), "kinds": (dict,)},
    "node": {
        **_PLACE, "turn": (int,), "stage": (int,), "role": (str,), "policy": (str,), "prompt": (str,),
        "prompt_ids": (list,), "state_digest": (str,),
    },
    "branch": {
        **_PLACE, "role": (str,), "branch": (int,), "policy": (str,), "completion": (str,), "thought": (str,),
        "calls": (list,), "tool_results": (list,), "fault": _FAULT, "scores": (dict,), "reasons": (dict,),
        "comments": (dict,), "own_scores": (dict,), "annotations": (dict,),
    },
    "joint": {
        **_PLACE, "joint": (int,), "branches": (dict,), "scores": (dict,), "reasons": (dict,),
        "comments": (dict,), "whole": (list,), "reward": (dict,), "state_digest": (str,), "fault": _FAULT,
        "expanded": (bool,), "child": (str, NoneType),
    },
}  # fmt: skip
"""By kind of row: the types of the fields that a replay reads."""
_CALL: dict[str, tuple[type, ...]] = {"token_ids": (list,), "logprobs": (list,), "finish": (str,)}
_REASON: dict[str, tuple[type, ...]] = {"kind": (str,), "reason": (str,)}


def check_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Refuse rows that lack a field, or have one of another type.

    Raises:
        RunFolderError: it names the line and the field.
    """
    for line, row in enumerate(rows, 1):
        where = f"line {line}"
        shape = SHAPES.get(row["kind"])
        if shape is None:
            raise damaged(path, f"{where} is of the unknown kind {row['kind']!r}")
        _check(row, shape, path, where)
        if row.get("fault") is not None:
            _check(row["fault"], _REASON, path, f"{where}, fault")
        for index, call in enumerate(row.get("calls", ())):
            inner = f"{where}, calls[{index}]"
            if not isinstance(call, dict):
                raise damaged(path, f"{inner} is {call!r:.60}")
            _check(call, {**_CALL, **({"prompt_ids": (list,)} if index else {})}, path, inner)


def _check(row: Mapping[str, Any], shape: Mapping[str, tuple[type, ...]], path: Path, where: str) -> None:
    for name, types in shape.items():
        if name not in row:
            raise damaged(path, f"{where} has no field '{name}'")
        if not isinstance(row[name], types):
            raise damaged(path, f"{where}: the field '{name}' is {row[name]!r:.60}")

"""The shape of rollout rows: a file that something else wrote, or that was changed, is refused by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from coterie.api.rollout_lines import damaged

_PLACE: dict[str, tuple[type, ...]] = {"task_id": (str,), "epoch": (int,), "chain": (int,), "node": (str,)}
_FAULT = (dict, NoneType)
_NUMBER = (int, float, NoneType)
SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "step": {
        "step": (int,), "weights": (dict,), "team_weight": (int, float), "kinds": (dict,), "state": (object,),
    },
    "node": {
        **_PLACE, "turn": (int,), "stage": (int,), "role": (str,), "policy": (str,), "prompt": (str,),
        "prompt_ids": (list,), "prompt_sha256": (str,), "temperature": (int, float), "trainable": (bool,),
        "state_digest": (str,),
    },
    "branch": {
        **_PLACE, "role": (str,), "branch": (int,), "policy": (str,), "version": (int, NoneType),
        "completion": (str,), "thought": (str,), "calls": (list,), "tool_results": (list,),
        "tool_limit": (bool,), "fault": _FAULT, "scores": (dict,), "reasons": (dict,), "own_scores": (dict,),
        "annotations": (dict,), "reward": _NUMBER, "return": _NUMBER, "advantage": (*_NUMBER, list),
        "weight": _NUMBER,
    },
    "joint": {
        **_PLACE, "joint": (int,), "branches": (dict,), "scores": (dict,), "reasons": (dict,),
        "whole": (list,), "reward": (dict,), "state_digest": (str,), "fault": _FAULT, "rule": (str,),
        "expanded": (bool,), "recombined": (bool,), "terminated": (bool,), "truncated": (bool,),
        "outcome": (dict, NoneType), "child": (str, NoneType),
    },
}  # fmt: skip
"""By kind of row: the types of the fields that a replay reads."""
_CALL: dict[str, tuple[type, ...]] = {"token_ids": (list,), "logprobs": (list,), "finish": (str,)}
_LATER_CALL = {**_CALL, "prompt_ids": (list,), "continues": (bool,), "version": (int,)}
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
        if row["kind"] == "step" and line > 1:
            raise damaged(path, f"{where} is a second row of kind 'step'")
        _check(row, shape, path, where)
        if row.get("fault") is not None:
            _check(row["fault"], _REASON, path, f"{where}, fault")
        for index, call in enumerate(row.get("calls", ())):
            inner = f"{where}, calls[{index}]"
            if not isinstance(call, dict):
                raise damaged(path, f"{inner} is {call!r:.60}")
            _check(call, _LATER_CALL if index else _CALL, path, inner)
            _check_tokens(call, path, inner)


def _check(row: Mapping[str, Any], shape: Mapping[str, tuple[type, ...]], path: Path, where: str) -> None:
    for name, types in shape.items():
        if name not in row:
            raise damaged(path, f"{where} has no field '{name}'")
        if not isinstance(row[name], types):
            raise damaged(path, f"{where}: the field '{name}' is {row[name]!r:.60}")


def _check_tokens(call: Mapping[str, Any], path: Path, where: str) -> None:
    tokens, logprobs = call["token_ids"], call["logprobs"]
    if len(tokens) != len(logprobs):
        raise damaged(path, f"{where} has {len(tokens)} tokens and {len(logprobs)} log-probs")
    for name in ("token_ids", "prompt_ids"):
        if any(type(token) is not int for token in call.get(name, ())):
            raise damaged(path, f"{where}: an entry of '{name}' is no token id")
    if any(not isinstance(value, _NUMBER) for value in logprobs):
        raise damaged(path, f"{where}: an entry of 'logprobs' is no number")

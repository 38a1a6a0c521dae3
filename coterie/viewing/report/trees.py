"""Trees of a rollout file as the page's script reads them: what rows have in common is said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.api.episodes import RecordedEpisode, RecordedNode, RecordedTree
from coterie.viewing.report.tokens import TokenCuts, utf16

DIGITS = 2
"""Decimal places of per-token numbers, where all digits would make the file too large."""
PLACE = {"kind", "format", "task_id", "epoch", "chain", "node", "stratum", "turn", "stage", "role"}
LEFT_OUT = {"state_digest", "prompt_ids", "prompt_sha256", "float32"}
DEFAULTS: dict[str, Any] = {
    "thought": "",
    "tool_results": [],
    "tool_limit": False,
    "fault": None,
    "reasons": {},
    "comments": {},
    "annotations": {},
    "whole": [],
    "recombined": False,
    "terminated": False,
    "truncated": False,
    "outcome": None,
    "weight": 1.0,
}
"""Values that the page's script puts in where a key is absent."""


def tree_json(tree: RecordedTree, cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    """A tree as JSON: its nodes, each with the decisions of its roles and its joint actions.

    Args:
        rounded: per-token numbers as integers, in units of `10 ** -DIGITS`; else exactly.
    """
    index = {key: position for position, key in enumerate(tree.nodes)}
    return {
        "step": tree.step,
        "task": tree.task_id,
        "epoch": tree.epoch,
        "chain": tree.chain,
        "stratum": tree.stratum,
        "nodes": [_node(node, index, cuts, rounded) for node in tree.nodes.values()],
    }


def path_json(episode: RecordedEpisode) -> list[list[int | None]]:
    """The path of an episode: [position of the node in its tree, joint action]."""
    index = {key: position for position, key in enumerate(episode.tree.nodes)}
    return [[index[node.key], joint] for node, joint in episode.path]


def _node(node: RecordedNode, index: Mapping[str, int], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    return {
        "key": node.key,
        "turn": node.turn,
        "stage": node.stage,
        "decisions": [
            {
                "role": role,
                **_short(decision.prompt),
                "prompt_tokens": len(decision.prompt["prompt_ids"]),
                "branches": [_branch(branch, cuts, rounded) for branch in decision.branches],
            }
            for role, decision in node.decisions.items()
        ],
        "joints": [
            {**_short(joint), "child": index.get(joint["child"]) if joint["child"] is not None else None}
            for joint in node.joints
        ],
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its place, digests and what is as usual."""
    return {
        key: value
        for key, value in row.items()
        if key not in PLACE
        and key not in LEFT_OUT
        and not (key in DEFAULTS and value == DEFAULTS[key] and type(value) is type(DEFAULTS[key]))
    }


def _branch(row: Mapping[str, Any], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    short = _short(row)
    short["calls"] = [_call(call, row, cuts, rounded) for call in row["calls"]]
    if isinstance(row["advantage"], list) and rounded:
        short["advantage"] = _scaled(row["advantage"])
    if row.get("annotations") and rounded:
        short["annotations"] = {name: _scaled(values) for name, values in row["annotations"].items()}
    if "policy" in short:
        del short["policy"]  # the decision says it
    return short


def _call(call: Mapping[str, Any], row: Mapping[str, Any], cuts: TokenCuts, rounded: bool) -> dict[str, Any]:
    logprobs = call["logprobs"]
    short: dict[str, Any] = {
        "finish": call["finish"],
        "tokens": len(call["token_ids"]),
        "logprobs": _scaled(logprobs) if rounded else logprobs,
    }
    for key in ("version", "version_runs", "continues"):
        if key in call:
            short[key] = call[key]
    last = call is row["calls"][-1]
    known = cuts.cut(row["policy"], call, row["completion"] if last else "")
    if known is not None:
        lengths, text = known
        short["cuts"] = "words" if lengths == _words(text, len(lengths)) else lengths
        if text != row["completion"] or not last:
            short["text"] = text
    return short


def _words(text: str, count: int) -> list[int] | None:
    """The lengths where each word with the space after it is a token; tokens after the last have no text."""
    words = text.split(" ")
    lengths = [utf16(word) + 1 for word in words[:-1]] + [utf16(words[-1])]
    return lengths + [0] * (count - len(lengths)) if text and len(lengths) <= count else None


def _scaled(values: Sequence[float | None]) -> list[int | None]:
    return [None if value is None else round(value * 10**DIGITS) for value in values]

"""Rollout files: everything that was played as flat rows, enough to compute the advantages again.

Files are gzipped JSON lines, with log-probs in the digits of a float32. Each row says its `format`. Keys are
added to a format and never change their meaning.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from coterie.api.rollout_lines import damaged, lengthened, lines_of, shortened
from coterie.core.errors import RunFolderError
from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards, joint_reward
from coterie.core.storage.atomic import write_atomic, written
from coterie.core.storage.jsonl import to_json
from coterie.core.storage.run_folder import RunFolder
from coterie.core.types import (
    TEAM,
    Annotations,
    Call,
    Credit,
    Decision,
    Fault,
    Key,
    Message,
    Node,
    RewardWeights,
    Score,
    Scores,
    Tree,
)

FORMAT = 3
"""Of rollout rows."""
LEVEL = 3
"""Of gzip: a higher one takes twice the time and saves a tenth."""

Decode = Callable[[str, Call], str]
"""(policy, call) -> its text."""


def rollout_rows(
    trees: Sequence[Tree],
    scores: Scores,
    credit: Credit | None,
    reward_weights: RewardWeights,
    decode: Decode | None = None,
    annotations: Annotations | None = None,
) -> Iterator[dict[str, Any]]:
    """Everything that was played, as flat rows: enough to compute the advantages again from the file.

    * `node`: one per (node, role): the prompt;
    * `branch`: one per sampled action: its calls with exact log-probs, its scores, reward, return and
      advantage (a number, or one per token; null where it is not trained, as that of a frozen policy);
    * `joint`: one per combination that was played: scores, what it pays each role, and where it led.

    A branch's `scores` are its own plus those of the played joints that contain it (their mean, recombined
    joints left out; null where one is missing). The team's are named `team.<component>` there. Its
    `own_scores` are those of the action alone, named `<role>.<component>` as in joint rows; a return over
    turns adds them to the joint's. Every row has `format: 3`, and
    the task's `stratum` where it has one.

    Args:
        credit: None for an evaluation: return and advantage are null.
        decode: adds the text of every call; the branch's `completion` is the last call's anyway.
        annotations: adds per-token arrays, such as reference log-probs, where an estimator used them.
    """
    for tree in trees:
        for node in tree.nodes():
            place = _place(tree, node)
            for role, decision in node.decisions.items():
                yield _node_row(place, node, role, decision)
                rewards = branch_rewards(node, role, scores, reward_weights)
                for branch, reward in enumerate(rewards):
                    yield {
                        **_branch_row(place, node, role, branch, scores, credit, decode),
                        "reward": reward,
                        "annotations": {
                            name: table[key].tolist()
                            for name, table in (annotations or {}).items()
                            if (key := node.key.of_branch(role, branch)) in table
                        },
                    }
            for index in range(len(node.joints)):
                yield _joint_row(place, node, index, scores, reward_weights)


def rows_on_path(
    tree: Tree, node: Node, index: int, scores: Scores, credit: Credit | None, weights: RewardWeights
) -> tuple[dict[str, Any], dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """The rows of one joint action, and by role those of its prompt and of the branch that was committed.

    They are those of `rollout_rows`, but for the branch's `reward` and `annotations`.
    """
    place = _place(tree, node)
    committed = {
        role: (
            _node_row(place, node, role, node.decisions[role]),
            _branch_row(place, node, role, branch, scores, credit),
        )
        for role, branch in node.joints[index].branches.items()
    }
    return _joint_row(place, node, index, scores, weights), committed


def _branch_row(
    place: Mapping[str, Any], node: Node, role: str, branch: int, scores: Scores, credit: Credit | None,
    decode: Decode | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Without `reward` and `annotations`."""
    key, decision = node.key.of_branch(role, branch), node.decisions[role]
    action = decision.branches[branch]
    texts = [
        each["content"] for each in action.dialogue[len(decision.messages) :] if each["role"] == "assistant"
    ]
    calls = []
    for index, call in enumerate(action.calls):
        row: dict[str, Any] = {
            "token_ids": list(call.token_ids),
            "logprobs": list(call.logprobs),
            "finish": call.finish,
        }
        if index > 0:  # the first call's prompt is the node's
            row |= {"prompt_ids": list(call.prompt_ids), "continues": call.continues, "version": call.version}
        elif call.version != action.calls[-1].version:
            row["version"] = call.version
        if call.version_runs:
            row["version_runs"] = [list(pair) for pair in call.version_runs]
        if index < len(texts):  # of a tool call; the last call's text is the completion
            row["text"] = texts[index]
        calls.append(row if decode is None else {**row, "text": decode(decision.policy, call)})
    return {
        "kind": "branch",
        "format": FORMAT,
        **place,
        "role": role,
        "branch": branch,
        "policy": decision.policy,
        "version": action.calls[-1].version if action.calls else None,
        "completion": action.text,
        "thought": action.thought,
        "calls": calls,
        "tool_results": list(action.tool_results),
        "tool_limit": action.tool_limit,
        "fault": _fault(action.fault),
        **_cells("scores", branch_scores(node, role, branch, scores), role),
        "own_scores": _named(scores.at(key)),
        "reward": None,
        **_credit(key, credit, decision.trainable and action.trainable),
    }


def _joint_row(
    place: Mapping[str, Any], node: Node, index: int, scores: Scores, weights: RewardWeights
) -> dict[str, Any]:
    joint, cell = node.joints[index], scores.at(node.key.of_joint(index))
    return {
        "kind": "joint",
        "format": FORMAT,
        **place,
        # Where a prompt outgrew the context, no row of a node or a branch has turn and stage.
        **({} if node.decisions else {"turn": node.turn, "stage": node.stage}),
        "joint": index,
        "branches": dict(joint.branches),
        **_cells("scores", cell),
        "whole": sorted({component for (_, component), score in cell.items() if score.whole}),
        "reward": {role: joint_reward(node, index, role, scores, weights) for role in joint.branches},
        "child": joint.child.key.text() if joint.child is not None else None,
        "expanded": index in node.expanded,
        "rule": node.rule,
        "recombined": joint.recombined,
        "terminated": joint.terminated,
        "truncated": joint.truncated,
        "outcome": dict(joint.outcome) if joint.outcome is not None else None,
        "state_digest": joint.state_digest,
        "fault": _fault(joint.fault),
    }


def _place(tree: Tree, node: Node) -> dict[str, Any]:
    """What all rows of a node have in common."""
    task = tree.task
    place = {"task_id": task.id, "epoch": tree.epoch, "chain": tree.chain, "node": node.key.text()}
    return {**place, "stratum": task.stratum} if task.stratum else place


def branch_scores(node: Node, role: str, branch: int, scores: Scores) -> dict[tuple[str, str], Score]:
    """{(role or TEAM, component): score} of one branch: its own, and the mean over its played joints."""
    of_joints: dict[tuple[str, str], list[Score]] = {}
    for index, joint in enumerate(node.joints):
        if joint.branches.get(role) == branch and not joint.recombined:
            for owner, score in scores.at(node.key.of_joint(index)).items():
                if owner[0] in (role, TEAM):
                    of_joints.setdefault(owner, []).append(score)
    table = {owner: _mean(several) for owner, several in of_joints.items()}
    for owner, score in scores.at(node.key.of_branch(role, branch)).items():
        # Under one name in both places: their sum, for that is what the reward adds up.
        table[owner] = _sum(score, table[owner]) if owner in table else score
    return table


def _mean(several: Sequence[Score]) -> Score:
    values = [score.value for score in several if score.value is not None]
    if len(values) < len(several):
        return next(score for score in several if score.value is None)
    reason = next((score.reason for score in several if score.reason), "")
    return Score(math.fsum(values) / len(values), reason, several[0].source)


def _sum(a: Score, b: Score) -> Score:
    if a.value is None or b.value is None:
        return a if a.value is None else b
    return Score(a.value + b.value, a.reason or b.reason, a.source)


def _node_row(place: Mapping[str, Any], node: Node, role: str, decision: Decision) -> dict[str, Any]:
    return {
        "kind": "node",
        "format": FORMAT,
        **place,
        "turn": node.turn,
        "stage": node.stage,
        "role": role,
        "policy": decision.policy,
        "prompt": prompt_text(decision.messages),
        "prompt_ids": list(decision.prompt_ids),
        "prompt_sha256": decision.prompt_sha256,
        "temperature": decision.temperature,
        "trainable": decision.trainable,
        "state_digest": node.state_digest,
    }


def prompt_text(messages: Sequence[Message]) -> str:
    """Messages to read, with their roles; not the string that was tokenised."""
    return "\n\n".join(f"[{message.get('role', '')}]\n{message.get('content', '')}" for message in messages)


def _credit(key: Key, credit: Credit | None, trained: bool) -> dict[str, Any]:
    if credit is None or key not in credit.advantage or not trained:
        return {"return": credit.returns.get(key) if credit else None, "advantage": None, "weight": None}
    advantage = credit.advantage[key]
    return {
        "return": credit.returns.get(key),
        "advantage": advantage.tolist() if isinstance(advantage, np.ndarray) else float(advantage),
        "weight": float(credit.weight.get(key, 1.0)),
    }


def _cells(name: str, cell: Mapping[tuple[str, str], Score], role: str | None = None) -> dict[str, Any]:
    """Scores, and those that have one with a reason (of a missing score, or a floor) or a judge's comment."""
    return {
        name: _named(cell, role),
        "reasons": {_name(owner, role): score.reason for owner, score in cell.items() if score.reason},
        "comments": {_name(owner, role): score.comment for owner, score in cell.items() if score.comment},
    }


def _named(cell: Mapping[tuple[str, str], Score], role: str | None = None) -> dict[str, float | None]:
    return {_name(owner, role): score.value for owner, score in cell.items()}


def _name(owner: tuple[str, str], role: str | None) -> str:
    return owner[1] if owner[0] == role else f"{owner[0]}.{owner[1]}"


def _fault(fault: Fault | None) -> dict[str, str] | None:
    return None if fault is None else {"kind": fault.kind, "reason": fault.reason}


def step_row(
    step: int, reward_weights: RewardWeights, state: Any, answers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What all advantages of a step follow from beside its trees: the first row of a run's rollout file.

    Args:
        state: the estimator's, before the step.
        answers: of programs that the environment ran, by question (`coterie/answers.py`).
    """
    return {
        "kind": "step",
        "format": FORMAT,
        "step": step,
        "weights": dict(reward_weights.weights),
        "team_weight": reward_weights.team_weight,
        "kinds": dict(reward_weights.kinds),
        "state": state,
        **({"answers": dict(sorted(answers.items()))} if answers else {}),
    }


def rollout_recorder(folder: RunFolder) -> Callable[[int, Batch, Any, Credit], None]:
    """Write the rollouts of a run's steps to its folder."""

    def record(step: int, batch: Batch, state: Any, credit: Credit) -> None:
        weights, annotations = batch.reward_weights, batch.annotations
        rows = rollout_rows(batch.trees, batch.scores, credit, weights, annotations=annotations)
        head = step_row(step, weights, state, batch.scores.answers)
        write_rollouts(folder.rollout_file(step), chain([head], rows))

    return record


def write_rollouts(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as gzipped JSON lines, the whole file or nothing.

    Raises:
        WriteError: e.g. the disk is full; no half file stays.
    """
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(to_json(shortened(row)) + "\n" for row in rows)
    write_atomic(path, gzip.compress(text.encode(), LEVEL, mtime=0))  # no time: equal rows, equal bytes


def read_rollouts(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a rollout file. Numbers are those that were written, exactly.

    Raises:
        RunFolderError: the file is damaged, it is no regular file, or a row of it has another format.
    """
    path, rows = Path(path), []
    for line in lines_of(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise damaged(path, str(error)) from error
        if not isinstance(row, dict) or "kind" not in row:
            raise damaged(path, "a line is no row")
        rows.append(_whole(row, path))
    return rows


def as_read(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as `read_rollouts` gives it once it is written."""
    return _whole(json.loads(to_json(shortened(row))), Path())


def _whole(row: dict[str, Any], path: Path) -> dict[str, Any]:
    """A row as `write_rollouts` got it."""
    version = row.pop("format", None)
    if version != FORMAT:
        raise RunFolderError(
            f"{path} has rows of format {version}",
            why=f"this version of Coterie reads format {FORMAT}",
            fix="install the version that wrote them",
        )
    kind = row.pop("kind")
    try:
        lengthened(row, row.pop("float32", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"'float32' of a row names no numbers of it: {error!r:.80}") from error
    return {"kind": kind, "format": FORMAT, **row}

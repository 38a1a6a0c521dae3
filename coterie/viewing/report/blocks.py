"""The data of the page, compressed: blocks that the page's script opens when they are looked at."""

from __future__ import annotations

import base64
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from coterie.analysis.diagnosis.role_table import RoleInStep, role_failures, roles_in_step
from coterie.api.episodes import RecordedTree, trees_of
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import UserError
from coterie.core.storage.jsonl import finite
from coterie.viewing.episode_fields import fields_of
from coterie.viewing.find_episodes import step_of
from coterie.viewing.report.reading import ReportedRun
from coterie.viewing.report.trees import TokenCuts, path_json, tree_json
from coterie.viewing.text import cut

T = TypeVar("T", "PackedTree", RecordedTree)
BYTES = 10_800_000
"""Of compressed episodes in a page; its base64 and all else make it at most 15 MB."""
EXACT_BYTES = 4_000_000
"""Rollout files of together at most this size are shown with all digits of their per-token numbers."""
READ_BYTES = 400_000_000
"""Most bytes of rollout files, as they are on the disk, that are read; of more, evenly spaced steps are."""
BLOCK_TREES, BLOCK_BYTES = 50, 300_000
LEVEL = 6
"""Of gzip."""


@dataclass(slots=True)
class PackedTree:
    """A tree of the page, compressed by itself until it is known which trees are kept."""

    step: int
    text: bytes
    episodes: list[dict[str, Any]]
    """Fields of its episodes, with `path` and `key`."""

    @property
    def reward(self) -> float:
        """Mean reward of its episodes; of none, the lowest: what is missing should be seen."""
        rewards = [of["reward"] for of in self.episodes if of["reward"] is not None]
        return math.fsum(rewards) / len(rewards) if rewards else -math.inf


@dataclass(slots=True)
class PackedRun:
    """The rollouts of a run, compressed."""

    trees: list[PackedTree] = field(default_factory=list)
    roles: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step, `roles_json` of all of its trees."""
    recorded: int = 0
    """Steps with a rollout file."""
    steps_read: int = 0
    all_trees: int = 0
    all_episodes: int = 0
    remarks: list[str] = field(default_factory=list)


def pack(run: ReportedRun, rounded: bool) -> PackedRun:
    """Read the rollouts of a run. A damaged file is a note."""
    packed, cuts = PackedRun(), TokenCuts(run.config.get("policies") or {})
    files = run.folder.rollout_files()
    packed.recorded = len(files)
    tables: dict[int, tuple[Sequence[RoleInStep], Reasons]] = {}
    rows = {int(row["step"]): row for row in run.rows}
    for file in _within(files, READ_BYTES):
        try:
            trees = trees_of(read_rollouts(file), step_of(file))
        except (UserError, KeyError, TypeError, OSError) as error:
            packed.remarks.append(f"{file} is left out: {_why(error)}")
            continue
        packed.steps_read += 1
        for step, of_step in _by_step(trees).items():
            _add(packed, of_step, cuts, rounded)
            tables[step] = roles_in_step(of_step), fault_reasons(of_step)
    if packed.steps_read < len(files) and not packed.remarks:
        packed.remarks.append(
            f"of {len(files)} recorded steps {packed.steps_read}, evenly spaced, were read: all of them are "
            f"over {READ_BYTES / 1e6:.0f} MB"
        )
    packed.roles = roles_json(tables, rows)
    return packed


def _why(error: Exception) -> str:
    """Why a file is left out."""
    if isinstance(error, UserError):
        return error.what
    if isinstance(error, OSError):
        return f"it can't be read ({error.strerror})"
    return f"its rows don't fit together ({error!r})"


def _by_step(trees: Sequence[T]) -> dict[int, list[T]]:
    steps: dict[int, list[T]] = {}
    for tree in trees:
        steps.setdefault(tree.step, []).append(tree)
    return steps


def _add(packed: PackedRun, trees: Sequence[RecordedTree], cuts: TokenCuts, rounded: bool) -> None:
    """Add the trees of a step."""
    cuts.learn(row for tree in trees for row in _branches(tree))
    for tree in trees:
        episodes = [
            {**fields_of(episode), "path": path_json(episode), "key": episode.key}
            for episode in tree.episodes()
        ]
        text = zlib.compress(dumps(tree_json(tree, cuts, rounded)).encode(), LEVEL)
        packed.trees.append(PackedTree(tree.step, text, episodes))
        packed.all_episodes += len(episodes)
    packed.all_trees += len(trees)


def kept(packed: PackedRun, budget: int) -> tuple[list[PackedTree], str]:
    """The trees that fit, and the rule by which they were chosen, as a sentence; empty: all are there.

    Of each step as many trees are kept, evenly spaced in the order of their mean reward, the worst and the
    best among them. Where two a step are too many, so are the steps: evenly spaced, the last one among them.
    """
    if _size(packed.trees) <= budget:
        return packed.trees, ""
    by_step = _by_step(packed.trees)
    steps = sorted(by_step)
    chosen: list[PackedTree] = []
    count, of_steps = 2, steps
    while True:
        tried = [tree for step in of_steps for tree in _spaced(by_step[step], count)]
        if _size(tried) <= budget:
            chosen, count = tried, count + max(1, count // 8)
            if count > max(map(len, by_step.values())):
                break
        elif chosen or len(of_steps) == 1:
            break
        else:
            of_steps = [
                steps[-1 - round(i * (len(steps) - 1) / max(1, len(of_steps) // 2 - 1))]
                for i in range(max(1, len(of_steps) // 2))
            ][::-1]
    chosen = chosen or tried[-1:]
    most = max(sum(tree.step == step for tree in chosen) for step in of_steps)
    which = (
        "each recorded step" if of_steps == steps else f"{len(of_steps)} evenly spaced steps of {len(steps)}"
    )
    rule = (
        f"Of {packed.all_trees:,} recorded trees {len(chosen):,} are in this file: "
        f"of {which} at most {most}, evenly spaced in the order of their mean reward, "
        "so the worst and the best are always among them."
    )
    return chosen, rule


def _spaced(trees: Sequence[PackedTree], count: int) -> list[PackedTree]:
    """`count` trees, evenly spaced by reward, in their own order."""
    if len(trees) <= count:
        return [*trees]
    order = sorted(range(len(trees)), key=lambda index: (trees[index].reward, index))
    places = {order[round(i * (len(order) - 1) / (count - 1))] for i in range(count)}
    return [trees[index] for index in sorted(places)]


def episode_index(
    trees: Sequence[PackedTree], blocks: Sequence[Sequence[PackedTree]], first: int
) -> dict[str, Any]:
    """Columns of the episodes' fields, for filters: {"count", "columns": {field: values}}.

    Args:
        first: number of the run's first block.
    """
    rows: list[dict[str, Any]] = []
    for number, block in enumerate(blocks, first):
        for position, tree in enumerate(block):
            rows += [{**of, "block": number, "tree": position} for of in tree.episodes]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "count": len(rows),
        "trees": len(trees),
        "columns": {name: [row.get(name) for row in rows] for name in names},
    }


def in_blocks(trees: Iterable[PackedTree]) -> Iterator[list[PackedTree]]:
    """Trees of one step, at most 50 or 300 kB together."""
    block: list[PackedTree] = []
    for tree in trees:
        full = len(block) >= BLOCK_TREES or _size(block) + len(tree.text) > BLOCK_BYTES
        if block and (full or block[-1].step != tree.step):
            yield block
            block = []
        block.append(tree)
    if block:
        yield block


def block_json(block: Sequence[PackedTree]) -> str:
    """The JSON of a block: prompts that repeat are said once."""
    prompts: dict[str, int] = {}
    trees = [json.loads(zlib.decompress(tree.text)) for tree in block]
    for tree in trees:
        for node in tree["nodes"]:
            for decision in node["decisions"]:
                decision["prompt"] = prompts.setdefault(decision["prompt"], len(prompts))
    return dumps({"prompts": list(prompts), "trees": trees})


def encoded(text: str) -> str:
    """A text as base64 of gzip."""
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode("ascii")


def dumps(value: Any) -> str:
    """Strict JSON in ASCII. Floats are exact; NaN and infinities are null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, separators=(",", ":"))


def _branches(tree: RecordedTree) -> Iterator[Mapping[str, Any]]:
    for node in tree.nodes.values():
        for decision in node.decisions.values():
            yield from decision.branches


def _size(trees: Iterable[PackedTree]) -> int:
    return sum(len(tree.text) for tree in trees)


def _within(files: Sequence[Path], most: int) -> list[Path]:
    """All files, or evenly spaced ones of together about `most` bytes; the last one is among them."""
    total = bytes_of(files)
    if total <= most:
        return [*files]
    count = max(1, int(len(files) * most / total))
    return sorted({files[-1 - round(i * (len(files) - 1) / count)] for i in range(count)})


def bytes_of(files: Iterable[Path]) -> int:
    """The bytes of the files on the disk; of a link to nothing, none."""
    return sum(file.stat().st_size for file in files if file.exists())


REASONS = 5
"""Most frequent reasons of faults that are shown of a role."""
LONGEST = 300
"""Most characters of a reason; an episode has the whole."""

Reasons = Mapping[str, Sequence[tuple[str, int]]]
"""Role -> reasons and how many actions each had."""


def roles_json(
    tables: Mapping[int, tuple[Sequence[RoleInStep], Reasons]], rows: Mapping[int, Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """By step: `{"roles": [one entry a role], "findings": [...]}`.

    Args:
        tables: by recorded step: what the roles did, over all of its trees, and the reasons of their faults.
        rows: the rows of `metrics.jsonl` by step.
    """
    steps: dict[int, dict[str, Any]] = {}
    for step, (table, reasons) in sorted(tables.items()):
        row = rows.get(step, {})
        steps[step] = {
            "roles": [
                {
                    **asdict(of),
                    "zero_variance": row.get(f"groups/{of.role}/zero_variance"),
                    "reasons": reasons.get(of.role, []),
                }
                for of in table
            ],
            "findings": [],
        }
    for finding in role_failures([table for _, (table, _) in sorted(tables.items())]):
        steps[finding.step]["findings"].append(asdict(finding))
    return steps


def fault_reasons(trees: Sequence[RecordedTree]) -> dict[str, list[tuple[str, int]]]:
    """By role, the most frequent reasons of the policy's faults, and how many actions had each.

    A reason has at most `LONGEST` characters; those that begin alike up to there count as one.
    """
    counts: dict[str, Counter[str]] = {}
    for tree in trees:
        for node in tree.nodes.values():
            for role, decision in node.decisions.items():
                for branch in decision.branches:
                    if branch["fault"] is not None and branch["fault"]["kind"] == "policy":
                        reason = cut(branch["fault"]["reason"], LONGEST)
                        counts.setdefault(role, Counter())[reason] += 1
    return {role: of.most_common(REASONS) for role, of in counts.items()}

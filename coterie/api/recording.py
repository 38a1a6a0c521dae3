"""What a run keeps of the episodes of its steps: rollout files, and the episodes that trackers ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from coterie.api.episodes import action_row
from coterie.api.rollouts import rollout_recorder, rows_on_path
from coterie.core.config import RunConfig
from coterie.core.protocols import Batch
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.steps_in_play import Recorder
from coterie.core.types import Credit, Node
from coterie.core.types.messages import encodable
from coterie.core.types.seeding import generator

Path = tuple[tuple[Node, int | None], ...]
"""(node, its joint action on the path); None at the end: no joint action of the last node could go on."""


def step_recorder(folder: RunFolder, config: RunConfig) -> Recorder:
    """Write the rollout files that `schedule.record_every` asks for, and hand episodes to the trackers."""
    write, every = rollout_recorder(folder), config.schedule.record_every

    def record(step: int, batch: Batch, state: Any, credit: Credit, trackers: MetricsWriter) -> None:
        if every and step % every == 0:
            write(step, batch, state, credit)
        made = cache(lambda number: episode_rows(batch, credit, step, config.seed, number))
        trackers.episodes(step, lambda number: [_copied(row) for row in made(number)])

    return record


def episode_rows(batch: Batch, credit: Credit, step: int, seed: int, number: int) -> list[dict[str, Any]]:
    """Some episodes of a step as rows, one an action (`api/episodes.action_rows`), in the order of the trees.

    Every episode of the step is as likely as another, whatever it earned and whenever it ended. The draw is
    keyed by the run's seed and the step. A smaller number's episodes are among those of a larger one.
    """
    paths = [list(_paths(tree.root)) for tree in batch.trees]
    rows = []
    for place, wanted in drawn([len(of) for of in paths], step, seed, number).items():
        for index in sorted(wanted):
            path, tree = paths[place][index], batch.trees[place]
            node, joint = path[-1]
            outcome = node.joints[joint].outcome if joint is not None else None
            of = {"step": step, "episode": index, "success": (outcome or {}).get("success")}
            for node, joint in path:
                if joint is not None:
                    weights = batch.reward_weights
                    row, committed = rows_on_path(tree, node, joint, batch.scores, credit, weights)
                    rows += [action_row(row, role, *of_role) | of for role, of_role in committed.items()]
    return [{name: _encodable(value) for name, value in row.items()} for row in rows]


def _paths(root: Node) -> Iterator[Path]:
    """Every path of a tree, in the order of `RecordedTree.episodes`."""
    stack: list[tuple[Node | None, Path]] = [(root, ())]
    while stack:
        node, path = stack.pop()
        if node is None:
            yield path
            continue
        following: list[int | None] = [*node.expanded] or [None]
        for index in reversed(following):
            child = None if index is None else node.joints[index].child
            stack.append((child, (*path, (node, index))))


def _copied(row: dict[str, Any]) -> dict[str, Any]:
    """A tracker's own copy; `copy.deepcopy` takes as long as making the row."""
    return {**row, "scores": {**row["scores"]}, "tool_results": [*row["tool_results"]]}


def _encodable(value: Any) -> Any:
    """Half a surrogate pair in a model's text would make a library refuse the whole table."""
    if isinstance(value, str):
        return encodable(value)
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def drawn(counts: Sequence[int], step: int, seed: int, number: int) -> dict[int, set[int]]:
    """Place of a tree -> its episodes that were drawn, in the order of the trees.

    Args:
        counts: episodes of each tree.
    """
    every = [(place, index) for place, count in enumerate(counts) for index in range(count)]
    order = generator(seed, f"step {step}", "logged episodes").permutation(len(every))[:number]
    chosen: dict[int, set[int]] = {}
    for place, index in sorted(every[at] for at in order):
        chosen.setdefault(place, set()).add(index)
    return chosen

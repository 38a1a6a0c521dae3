"""What a run keeps of the episodes of its steps: rollout files, and the episodes that trackers ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.api.episodes import action_rows, trees_of
from coterie.api.rollouts import rollout_recorder, rollout_rows
from coterie.core.config import RunConfig
from coterie.core.protocols import Batch
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.metrics import episodes
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.step_rollouts import Recorder
from coterie.core.types import Credit, Tree
from coterie.core.types.messages import encodable
from coterie.core.types.seeding import generator


def step_recorder(folder: RunFolder, config: RunConfig) -> Recorder:
    """Write the rollout files that `schedule.record_every` asks for, and hand episodes to the trackers."""
    write, every = rollout_recorder(folder), config.schedule.record_every

    def record(step: int, batch: Batch, state: Any, credit: Credit, trackers: MetricsWriter) -> None:
        if every and step % every == 0:
            write(step, batch, state, credit)
        trackers.episodes(step, lambda number: episode_rows(batch, credit, step, config.seed, number))

    return record


def episode_rows(batch: Batch, credit: Credit, step: int, seed: int, number: int) -> list[dict[str, Any]]:
    """Some episodes of a step as rows, one an action (`api/episodes.action_rows`), in the order of the trees.

    Every episode of the step is as likely as another, whatever it earned and whenever it ended. The draw is
    keyed by the run's seed and the step. A smaller number's episodes are among those of a larger one.
    """
    chosen = drawn([sum(1 for _ in episodes(tree)) for tree in batch.trees], step, seed, number)
    trees: Sequence[Tree] = [batch.trees[place] for place in chosen]
    played = rollout_rows(trees, batch.scores, credit, batch.reward_weights)
    return [
        {name: _encodable(value) for name, value in row.items()}
        for tree, wanted in zip(trees_of(played, step), chosen.values(), strict=True)
        for episode in tree.episodes()
        if episode.index in wanted
        for row in action_rows(episode)
    ]


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

"""Splits by content, tasks drawn one by one, and tasks of records that were drawn before."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.types import Task
from coterie.core.types.splits import Split

SHARES: dict[Split, tuple[float, float]] = {"train": (0.0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
"""The part of the hash range of each split."""


def split_of(content: str) -> Split:
    """The split of a task's content: a function of the content alone, never of a seed."""
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "little") / 2.0**64
    return "train" if share < SHARES["train"][1] else "val" if share < SHARES["val"][1] else "test"


@dataclass(frozen=True, slots=True)
class Generated(ABC):
    """The `count` generated tasks of one split; task i is a function of (split, seed, i).

    Problems are drawn until one meets the settings and belongs to the split. There are few small grids, so
    two tasks of a split may be the same problem; tasks of two splits never are.
    """

    split: Split
    seed: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return Task(id=f"{self.split}-{index}", payload=self.draw(index))

    @abstractmethod
    def draw(self, index: int) -> Any:
        """The problem.

        Raises:
            ConfigError: no draw met the settings.
        """


@dataclass(frozen=True, slots=True)
class DrawnTasks(Generated):
    """Problems that a game draws until one meets its settings and belongs to the split."""

    game: Any
    """A `BoardGame`."""

    def draw(self, index: int) -> Any:
        game = self.game
        for attempt in range(game.attempts):
            purpose = f"{game.drawn_as}|{self.split}|{self.seed}|{index}|{attempt}"
            problem = game.drawn(purpose, self.split)
            if problem is not None:
                return problem
        what, path, why, fix = game.scarce()
        raise ConfigError(
            f"no {what} for split '{self.split}' in {game.attempts} draws", path=path, why=why, fix=fix
        )


@dataclass(frozen=True, slots=True)
class FrozenTasks:
    """Tasks of a split from records, in the order of the file."""

    records: Sequence[Mapping[str, Any]]
    read: Callable[[Mapping[str, Any], str], Task]
    """(record, id) -> Task; raises ValueError, KeyError or TypeError on a record of another game."""
    split: Split

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self.records):
            raise IndexError(index)
        try:
            return self.read(self.records[index], f"{self.split}-{index}")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"record {index} of the {self.split} split is no task of this game",
                path="env.data",
                why=f"{type(error).__name__}: {error}",
                fix="make the file with `coterie data make` for the same environment",
            ) from error

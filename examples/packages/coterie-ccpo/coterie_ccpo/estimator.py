"""CCPO: a role is credited with what the team earns beyond the team without it (arXiv 2603.21563)."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from coterie import Batch, Key, Row, RowConfig, RowEstimator, Rows

log = logging.getLogger("coterie")
Alone = Mapping[tuple[Key, str], Mapping[int, float]]
"""By task (`task_of`) and removed role: the role's return in each chain that was played without it."""


def task_of(row: Row) -> Key:
    """The task and epoch of a row."""
    return Key(row.branches[0].task, row.branches[0].epoch)


def removed_roles(batch: Batch) -> dict[tuple[str, int, int], str]:
    """(task, epoch, chain) of the chains without a role -> the role: its actions have no call."""
    return {
        (tree.task.id, tree.epoch, tree.chain): role
        for tree in batch.trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        if all(not action.calls and action.trainable for action in decision.branches)
    }


class Marginal(RowEstimator):
    """Base: the rewards of the whole team's chains, less the mean of the task and role."""

    group = "task"
    returns = "episode"
    baseline = "mean"
    _warned = False

    @abstractmethod
    def rewards(self, rows: Rows, alone: Alone) -> Sequence[float | None]:
        """The reward of each row; None where what it is compared with is unknown."""

    def rows(self, batch: Batch) -> Iterable[Row]:
        """The rows of the whole team's chains."""
        removed = removed_roles(batch)
        if not removed and not self._warned:
            self._warned = True
            log.warning("ccpo: no chain is played without a role: set sampler.type=ccpo and sampler.remove")
        return [row for row in super().rows(batch) if row.branches[0][:3] not in removed]

    def alone(self, batch: Batch) -> Alone:
        """What the chains without a role pay it."""
        removed, table = removed_roles(batch), dict[tuple[Key, str], dict[int, float]]()
        for role in set(removed.values()):
            for task, epoch, _ in removed:
                table.setdefault((Key(task, epoch), role), {})
        for row in super().rows(batch):
            first = row.branches[0]
            if removed.get(first[:3]) == row.role and row.value is not None:
                table[task_of(row), row.role][first.chain] = row.value
        return table

    def advantages(self, rows: Rows) -> list[float | None]:
        """The rewards, centred; None where one is unknown, or no other chain of the task has one."""
        rewards = self.rewards(rows, self.alone(rows.batch))
        groups: dict[tuple[Key, str], list[float]] = {}
        for row, reward in zip(rows, rewards, strict=True):
            if reward is not None:
                groups.setdefault((task_of(row), row.role), []).append(reward)
        centred: list[float | None] = []
        for row, reward in zip(rows, rewards, strict=True):
            group = groups.get((task_of(row), row.role), [])
            centred.append(None if reward is None or len(group) < 2 else reward - fmean(group))
        return centred


class CCPO(Marginal):
    """A role that rides along gets no bonus: what is solved without it is none of its merit.

    With R the return of a chain of the whole team, and S the mean return of its task's chains without role i
    (the sampler `ccpo` plays both), the reward of role i is R + weight * bonus, where the bonus is

        event       1 where R succeeds and S fails, -1 where R fails and S succeeds, else 0
        difference  (R - S) / 2

    A role that is never removed keeps R. The advantage is the reward less the mean over the task's chains.

    When it degenerates: where removing a role changes nothing it is GRPO without a deviation. A task of which
    no S is known gives that role no credit, and one with a single chain of the team gives none to any.
    """

    class Config(RowConfig):
        bonus: Literal["event", "difference"] = "event"
        weight: float = Field(0.2, ge=0, description="Of the bonus.")
        threshold: float = Field(0.0, description="Returns above it are a success, those below it a failure.")

    def rewards(self, rows: Rows, alone: Alone) -> Sequence[float | None]:
        """Each row's return and its bonus."""
        rewards: list[float | None] = []
        for row in rows:
            without = alone.get((task_of(row), row.role))
            if without is None:  # the role is never removed
                rewards.append(row.value)
            elif not without:
                rewards.append(None)
            else:
                bonus = self._bonus(row.value, fmean(without.values()))
                rewards.append(row.value + self.config.weight * bonus)
        return rewards

    def _bonus(self, value: float, without: float) -> float:
        if self.config.bonus == "difference":
            return (value - without) / 2
        return self._event(value, without)

    def _event(self, value: float, without: float) -> float:
        bound = self.config.threshold
        return float(value > bound > without) - float(value < bound < without)

    def metrics(self, rows: Rows, values: Any) -> Mapping[str, float]:
        """`ccpo/<role>/helped` and `/hindered`: the shares of chains in which the role mattered."""
        alone, events = self.alone(rows.batch), dict[str, list[float]]()
        for row in rows:
            if without := alone.get((task_of(row), row.role)):
                events.setdefault(row.role, []).append(self._event(row.value, fmean(without.values())))
        return {
            f"ccpo/{role}/{name}": signs.count(sign) / len(signs)
            for role, signs in events.items()
            for name, sign in (("helped", 1.0), ("hindered", -1.0))
        }

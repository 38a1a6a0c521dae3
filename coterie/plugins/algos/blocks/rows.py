"""The row estimator: a subclass writes `advantages(rows) -> values`, and the base does the bookkeeping.

The base collects the rows of a step, leaves missing ones out, counts groups and missing rows, normalises, and
splits values by branch into `Credit`. What it keeps from step to step is a state of plain JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from coterie.core.errors import ConfigError, PluginError
from coterie.core.plugins import PluginConfig
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import Action, Credit, Decision, Key
from coterie.plugins.algos.blocks.estimator import PiecedEstimator, RowConfig, check_pieces
from coterie.plugins.algos.blocks.groups import (
    GROUPINGS,
    GroupCounts,
    by_branch,
    credit_groups,
    grouped,
    metrics_of,
    no_baseline,
    normalise_batch,
)
from coterie.plugins.algos.blocks.returns import RETURNS, Row, token_counts, trained

Advantage = float | np.ndarray | None
"""What a row gets: a number, or an array of shape (tokens of the row,), its branches after one another; None:
nothing, so that its branches are not trained."""


@dataclass(frozen=True, slots=True)
class ScoredRow(Row):
    """A row whose value is present."""

    value: float


class Rows(Sequence[ScoredRow]):
    """The rows of a step whose value is present, in the order of the trees."""

    def __init__(self, rows: Iterable[Row], batch: Batch, state: Any = None) -> None:
        self.all = tuple(rows)
        """Every row: those with a missing value, and those without a branch, too."""
        self.batch = batch
        self.state = state
        """The estimator's state before the step; None before the first."""
        self._present = tuple(
            ScoredRow(row.role, row.value, row.branches, row.turn, row.paid)
            for row in self.all
            if row.value is not None and row.branches
        )

    @overload
    def __getitem__(self, index: int) -> ScoredRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ScoredRow, ...]: ...
    def __getitem__(self, index: int | slice) -> ScoredRow | tuple[ScoredRow, ...]:
        return self._present[index]

    def __len__(self) -> int:
        return len(self._present)

    def decisions(self, row: Row) -> tuple[Decision, ...]:
        """The decision of each branch of a row."""
        return tuple(self._decisions[key.decision] for key in row.branches)

    def actions(self, row: Row) -> tuple[Action, ...]:
        """The action of each branch of a row."""
        pairs = zip(self.decisions(row), row.branches, strict=True)
        return tuple(decision.branches[key.branch] for decision, key in pairs)

    def logprobs(self, row: Row) -> np.ndarray:
        """Behaviour log-probs of a row's tokens, shape (tokens,)."""
        return np.array([x for action in self.actions(row) for call in action.calls for x in call.logprobs])

    def annotation(self, row: Row, name: str) -> np.ndarray:
        """An annotation of a row's tokens, shape (tokens,), e.g. `values`; the estimator's `needs` names it.

        Raises:
            KeyError: a branch has none, as those of a policy that is not trained.
        """
        return np.concatenate([self.batch.annotations[name][key] for key in row.branches])

    @cached_property
    def tokens(self) -> Mapping[Key, int]:
        """The number of sampled tokens of every branch."""
        return token_counts(self.batch.trees)

    @cached_property
    def _decisions(self) -> Mapping[Key, Decision]:
        return {
            node.key.of_role(role): decision
            for tree in self.batch.trees
            for node in tree.nodes()
            for role, decision in node.decisions.items()
        }


class RowEstimator(PiecedEstimator, ABC):
    """Base of the estimators that give each row an advantage of its own.

    `advantages` must be written; `returns` names the rows that it gets. With a `group` the groups of the rows
    are counted (`zero_variance`, `too_small`), and a normaliser may have the scope `group`; the values are
    then numbers.
    """

    Config: type[PluginConfig] = RowConfig

    @abstractmethod
    def advantages(self, rows: Rows) -> Sequence[Advantage]:
        """The advantage of each row, in the order of the rows, before the normaliser."""

    def rows(self, batch: Batch) -> Iterable[Row]:
        """The rows of a step; default: those of the return that `returns` names."""
        return RETURNS[self.pieces.returns](batch, self.horizon)

    def next_state(self, rows: Rows) -> Any:
        """The state after the step, as plain JSON; default: the one before it."""
        return rows.state

    def metrics(self, rows: Rows, values: Sequence[Advantage]) -> Mapping[str, float]:
        """Metrics beside those of the groups; default: none."""
        return {}

    def unscaled_scopes(self, rows: Rows, values: Sequence[Advantage]) -> Collection[str]:
        """Scopes that the normaliser centres and doesn't scale: roles, or "" for the batch; default: none."""
        return ()

    def targets(self, rows: Rows, values: Sequence[Advantage]) -> Sequence[np.ndarray]:
        """Targets of the value head by row, shape (tokens of the row,); default: none."""
        return ()

    def shown(self, rows: Rows, unscaled: Mapping[Key, Any]) -> dict[Key, float]:
        """The return of each credited branch, for rollout files.

        Args:
            unscaled: advantages before the normaliser, by credited branch.
        """
        returns = by_branch(rows, [row.paid or float(row.value) for row in rows])
        return {key: returns[key] for key in unscaled}

    def check(self, plan: Plan, team: Team) -> None:
        """Refuse combinations that break one of RULES, and the scope `group` without a group."""
        self.check_scope()
        check_pieces(self.pieces, plan, team)
        self._max_turns = team.max_turns

    def check_scope(self) -> None:
        """Refuse a normaliser over groups where there are none.

        Raises:
            ConfigError: with the path `algorithm.normalise.scope`.
        """
        normalise = self.config.normalise
        if self.group is None and normalise.type != "none" and normalise.scope == "group":
            raise ConfigError(
                f"{type(self).__name__} has no groups to normalise over",
                path="algorithm.normalise.scope",
                fix="set it to global or role, or algorithm.normalise.type=none",
            )

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        """Credit of the batch, and the next state.

        Raises:
            PluginError: `advantages` returned another number of values than rows, or of another shape.
        """
        rows = Rows(trained(self.rows(batch), batch), batch, state)
        returned: Any = self.advantages(rows)
        if not isinstance(returned, (Sequence, np.ndarray)) or isinstance(returned, str):
            raise PluginError(
                f"{origin_of(self)}: advantages returned {returned!r:.200}",
                fix="return a list with a value for each row, in their order",
            )
        values: list[Advantage] = list(returned)
        self._check_values(rows, values)
        credit = self._grouped(rows, values) if self.group is not None else self._alone(rows, values)
        targets = self.targets(rows, values)
        target = by_branch(rows, _split(rows, targets)) if targets else {}
        metrics = {**credit.metrics, **self.metrics(rows, values)}
        return replace(credit, target=target, metrics=metrics), self.next_state(rows)

    # ------------------------------------------------------------------------------------- bookkeeping

    def _alone(self, rows: Rows, values: Sequence[Advantage]) -> Credit:
        """Credit of rows that are compared with no others."""
        unscaled = by_branch(rows, _split(rows, values))
        counts: dict[str, GroupCounts] = {}
        for row in rows.all:
            counts.setdefault(row.role, GroupCounts()).add(False, False, row.value is None)
        scaled = unscaled
        if self.config.normalise.type != "none":
            scaled = normalise_batch(
                unscaled, rows.tokens, self.config.normalise, self.unscaled_scopes(rows, values)
            )
        return Credit(
            advantage=dict(scaled),
            returns=self.shown(rows, unscaled),
            metrics=metrics_of(counts),
        )

    def _grouped(self, rows: Rows, values: Sequence[Advantage]) -> Credit:
        """Credit of rows in groups; a row without an advantage counts as missing."""
        advantage = iter(values)
        centred = [
            replace(row, value=_number(next(advantage)) if row.value is not None and row.branches else None)
            for row in rows.all
        ]
        credit = credit_groups(
            grouped(centred, GROUPINGS[self.pieces.group]),
            no_baseline,
            self.config.normalise,
            drop_zero_variance=self.config.zero_variance == "drop",
            tokens=rows.tokens,
        )
        return replace(credit, returns=self.shown(rows, credit.returns))

    def _check_values(self, rows: Rows, values: Sequence[Advantage]) -> None:
        where = f"{origin_of(self)}: advantages"
        if len(values) != len(rows):
            raise PluginError(
                f"{where} returned {len(values)} values for {len(rows)} rows",
                fix="return one value per row, in their order; None leaves a row out",
            )
        for row, value in zip(rows, values, strict=True):
            try:
                sound = value is None or bool(np.isfinite(value).all())
            except TypeError:
                sound = False
            if not sound:
                raise PluginError(
                    f"{where} returned {value!r:.200} for the row {row.branches[0].text()}",
                    fix="return finite numbers; None leaves a row out",
                )
            shape = np.shape(value) if value is not None else ()
            tokens = sum(rows.tokens[key] for key in row.branches)
            if shape != () and (self.group is not None or shape != (tokens,)):
                raise PluginError(
                    f"{where} returned an array of shape {shape} for a row of {tokens} tokens",
                    fix="return a number" + ("" if self.group else f", or an array of shape ({tokens},)"),
                )


def _number(value: Advantage) -> float | None:
    return None if value is None else float(value)


def _split(rows: Rows, values: Sequence[Advantage]) -> list[Any]:
    """The values, arrays split by branch."""
    split: list[Any] = []
    for row, value in zip(rows, values, strict=True):
        if value is None or np.ndim(value) == 0:
            split.append(_number(value))
        else:
            ends = np.cumsum([rows.tokens[key] for key in row.branches])
            split.append(np.split(np.asarray(value), ends[:-1]))
    return split

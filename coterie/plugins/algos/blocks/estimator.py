"""The group estimator: a combination of pieces, and the rules for pieces that fit together.

Every group-relative algorithm is a subclass that names its pieces; `algorithm: {type: compose}` names them in
the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import ConfigError, PluginError, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import TEAM, Credit
from coterie.plugins.algos.blocks.groups import (
    BASELINES,
    GROUPINGS,
    Normalised,
    Normaliser,
    credit_groups,
    grouped,
)
from coterie.plugins.algos.blocks.returns import RETURNS, Fill, Horizon, token_counts, trained

log = logging.getLogger("coterie")

GroupName = Literal["decision", "turn", "task", "role", "batch"]
ReturnName = Literal["immediate", "episode", "tree", "to_go"]
BaselineName = Literal["mean", "loo", "none", "max"]
"""The keys of `BASELINES`: a new one is named here too."""


class GroupConfig(Normalised):
    """Settings of every group-relative estimator."""

    alpha: float = Field(1.0, description="Weight of the team's components in the reward.")
    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        description="Groups whose rewards are all equal: `keep` them at advantage 0 (they count in the "
        "loss's denominators), or `drop` them from the update. Counted either way.",
    )


class SumConfig(GroupConfig):
    """Settings of estimators whose return sums over turns."""

    gamma: float = Field(1.0, ge=0, le=1, description="Discount per turn.")
    fill: Fill = Field(
        "difference",
        description="What potentials pay: their `difference` to the turn before, or (`repeat`) their value "
        "every turn, in the turns after an early end too.",
    )


class RowConfig(SumConfig):
    """Settings of every row estimator: no normaliser unless the configuration names one."""

    normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of an estimator."""

    group: GroupName = "decision"
    returns: ReturnName = "immediate"
    baseline: BaselineName = "mean"
    normalise: Normaliser = field(default_factory=Normaliser)
    fill: Fill = "difference"
    gamma: float = 1.0

    @property
    def has_baseline(self) -> bool:
        """Whether a row is compared with its group's baseline, so that a group of one teaches nothing."""
        return self.baseline != "none"

    @property
    def only_normalises(self) -> bool:
        """Whether the normaliser alone compares a row with its group."""
        within = self.normalise.type != "none" and self.normalise.scope == "group"
        return within and not self.has_baseline


@dataclass(frozen=True, slots=True)
class PieceRule:
    """A combination of settings that `check` refuses."""

    when: str
    needs: str
    why: str
    path: str
    fix: str
    broken: Callable[[Pieces, Plan, Team], bool]


def _one_member(pieces: Pieces, plan: Plan) -> bool:
    """Whether a task has one row per role and turn: one chain, and no siblings with a return."""
    siblings = plan.branches > 1 and (plan.expand == "all" or pieces.returns == "immediate")
    return plan.chains < 2 and not siblings


RULES: tuple[PieceRule, ...] = (
    PieceRule("group `decision` with a baseline", "`sampler.branches` of 2 or more",
         "groups would have one member: the branches of a decision are compared with each other, and a "
         "single one equals its own mean", "sampler.branches", "set sampler.branches to 2 or more",
         lambda p, plan, team: p.group == "decision" and p.has_baseline and plan.branches < 2),
    PieceRule("group `task` or `turn` with a baseline", "`sampler.chains` of 2 or more (or `expand: all`)",
         "groups would have one member: the chains of a task are compared with each other, and a single one "
         "equals its own mean", "sampler.chains", "set sampler.chains to 2 or more",
         lambda p, plan, team: p.group in ("task", "turn") and p.has_baseline and _one_member(p, plan)),
    PieceRule("normaliser of scope `group` on group `decision`", "`sampler.branches` of 2 or more",
         "groups would have one member, which has no deviation from itself", "sampler.branches",
         "set sampler.branches to 2 or more, or algorithm.normalise.type=none",
         lambda p, plan, team: p.group == "decision" and p.only_normalises and plan.branches < 2),
    PieceRule("normaliser of scope `group` on group `task` or `turn`",
         "`sampler.chains` of 2 or more (or `expand: all`)",
         "groups would have one member, which has no deviation from itself", "sampler.chains",
         "set sampler.chains to 2 or more, or algorithm.normalise.type=none",
         lambda p, plan, team: p.group in ("task", "turn") and p.only_normalises and _one_member(p, plan)),
    PieceRule("return `episode`", "whole chains: `sampler.branches: 1` (or `expand: all`)",
         "branches that are not played out have no episode's return", "sampler.branches",
         "set sampler.branches=1 and sampler.chains to the group's size",
         lambda p, plan, team: p.returns == "episode" and plan.branches > 1 and plan.expand != "all"),
    PieceRule("return `to_go`", "`sampler.branches: 1`",
         "what comes after a branch that was not played out is not known", "sampler.branches",
         "set sampler.branches=1 and sampler.chains to the group's size, or use the return `tree`",
         lambda p, plan, team: p.returns == "to_go" and plan.branches > 1),
    PieceRule("return `tree`", "`sampler.expand: all`",
         "a branch that is not expanded has no children whose returns could be added", "sampler.expand",
         "set sampler.expand=all, or use the return `immediate`",
         lambda p, plan, team: p.returns == "tree" and plan.expand != "all"),
    PieceRule("return `episode`", "group `task`, `role` or `batch`",
         "one value for a whole chain belongs to no single decision or turn", "algorithm.group",
         "set algorithm.group=task",
         lambda p, plan, team: p.returns == "episode" and p.group in ("decision", "turn")),
    PieceRule("normaliser `scale` without a baseline", "`whiten`",
         "values that aren't centred have no scale of their own: nearly equal rewards would be blown up",
         "algorithm.normalise.type", "set algorithm.normalise.type to whiten or none",
         lambda p, plan, team: p.baseline == "none" and p.normalise.type == "scale"),
    PieceRule("`fill: repeat`", "one stage a turn",
         "a potential would be paid once per stage, and an ended episode is filled up by turns",
         "algorithm.fill", "set algorithm.fill=difference, or let all roles of a turn act at once",
         lambda p, plan, team: p.fill == "repeat" and p.returns != "immediate" and len(team.order) > 1),
    PieceRule("`gamma` below 1", "a return over several turns",
         "an immediate return has no later turn to discount", "algorithm.gamma",
         "leave it out, or choose the return tree, to_go or episode",
         lambda p, plan, team: p.returns == "immediate" and p.gamma != 1.0),
    PieceRule("`fill`", "a return over several turns",
         "an immediate return has no later turn to fill", "algorithm.fill",
         "leave it out, or choose the return tree, to_go or episode",
         lambda p, plan, team: p.returns == "immediate" and p.fill != "difference"),
)  # fmt: skip
"""The combinations that `check` refuses; the table of docs/algorithms.md is generated from them."""


def check_pieces(pieces: Pieces, plan: Plan, team: Team) -> None:
    """Refuse pieces that don't fit together or don't fit the way of sampling.

    Raises:
        PluginError: a piece that doesn't exist.
        ConfigError: with the first broken rule.
    """
    for piece, name, known in (
        ("returns", pieces.returns, RETURNS),
        ("group", pieces.group, GROUPINGS),
        ("baseline", pieces.baseline, BASELINES),
    ):
        if name is not None and name not in known:
            raise PluginError(
                f"unknown `{piece}` {name!r}", path="algorithm", fix=did_you_mean(str(name), known)
            )
    for rule in RULES:
        if rule.broken(pieces, plan, team):
            size = {"sampler.branches": plan.branches, "sampler.chains": plan.chains}.get(rule.path)
            given = f", and {rule.path} is {size}" if size is not None else ""
            raise ConfigError(
                f"{rule.when.replace('`', '')} needs {rule.needs.replace('`', '')}{given}",
                path=rule.path,
                why=rule.why,
                fix=rule.fix,
            )
    if pieces.baseline != "mean" and (
        pieces.normalise.type == "whiten" and pieces.normalise.scope in ("group", pieces.group)
    ):
        log.warning(
            "algorithm: the baseline '%s' makes no difference, since `normalise.type: whiten` re-centres "
            "every group: with it all baselines give the same advantages (set it to scale or none)",
            pieces.baseline,
        )


class PiecedEstimator(Plugin):
    """What the bases of estimators share: the reward weights, the pieces, and the rules between them."""

    Config: type[PluginConfig] = GroupConfig
    group: GroupName | None = None
    """The grouping; None: no row is compared with another."""
    returns: ReturnName = "immediate"
    baseline: BaselineName = "none"
    needs: tuple[str, ...] = ()
    _max_turns: int = 1

    @property
    def weights(self) -> Mapping[str, float]:
        """The reward weights that the algorithm sets: that of `team` (the paper's alpha)."""
        return {TEAM: self.config.alpha}

    @property
    def pieces(self) -> Pieces:
        """The pieces, as the class and the configuration name them."""
        return Pieces(
            group=self.group or "batch",
            returns=self.returns,
            baseline=self.baseline,
            normalise=self.config.normalise,
            fill=getattr(self.config, "fill", "difference"),
            gamma=getattr(self.config, "gamma", 1.0),
        )

    @property
    def sums_over_turns(self) -> bool:
        """Whether the return sums rewards over turns."""
        return self.pieces.returns != "immediate"

    def check(self, plan: Plan, team: Team) -> None:
        """Refuse combinations that break one of RULES."""
        check_pieces(self.pieces, plan, team)
        self._max_turns = team.max_turns

    @property
    def horizon(self) -> Horizon:
        """The settings of the return."""
        pieces = self.pieces
        differences = pieces.returns == "immediate" and pieces.group != "decision"
        return Horizon(pieces.gamma, pieces.fill, self._max_turns, differences)


class GroupEstimator(PiecedEstimator):
    """Base of the estimators that compare rows within groups; a subclass names its pieces."""

    group: GroupName = "decision"
    baseline: BaselineName = "mean"

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        """Credit of the batch; the state is passed on unchanged."""
        pieces = self.pieces
        rows = trained(RETURNS[pieces.returns](batch, self.horizon), batch)
        wide = pieces.normalise.scope != "group"
        return credit_groups(
            grouped(rows, GROUPINGS[pieces.group]),
            BASELINES[pieces.baseline],
            pieces.normalise,
            drop_zero_variance=self.config.zero_variance == "drop",
            tokens=token_counts(batch.trees) if wide else None,
        ), state

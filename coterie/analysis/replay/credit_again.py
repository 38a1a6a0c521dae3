"""Credit on recorded data by another estimator, by other reward weights, or by other settings of a reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from coterie.analysis.records import RunRecords
from coterie.analysis.replay.play import PlayedStep, as_json, new_estimator
from coterie.compose.tables import RewardConfig
from coterie.core.errors import ConfigError, UserError, did_you_mean
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Batch, NamedRewardSource
from coterie.core.rollout.contracts import check_credit
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.training.run import Run
from coterie.core.types import TEAM, Credit, RewardWeights

LARGEST = 10
"""Actions with the largest change that a result names."""


@dataclass(frozen=True, slots=True)
class TurnChange:
    """How the advantages of a role's actions in one turn change."""

    role: str
    turn: int
    actions: int
    """With an advantage both times."""
    flipped: int
    """Of them, those whose advantage has the other sign."""
    vanished: int
    """Those whose advantage becomes 0, or was 0 before."""
    mean_change: float
    """Mean of the absolute change."""
    one_only: int
    """Actions that are trained in one of the two only."""

    @property
    def share(self) -> float:
        """Share of the actions that change sign."""
        return self.flipped / self.actions if self.actions else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


@dataclass(frozen=True, slots=True)
class OtherCredit:
    """Advantages of the same actions, as the run has them and by other rules."""

    changes: list[str]
    """What is otherwise, as settings."""
    start: str
    """Where the other estimator's state begins: `none`, `recorded` or `empty`."""
    actions: list[dict[str, Any]]
    """A row an action; `advantage` and `other_advantage` are means over its tokens, None: not trained."""

    @property
    def table(self) -> list[TurnChange]:
        """By role and turn, in the order of turns."""
        groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for row in self.actions:
            groups.setdefault((row["turn"], row["role"]), []).append(row)
        return [_of_turn(role, turn, rows) for (turn, role), rows in sorted(groups.items())]

    @property
    def largest(self) -> list[dict[str, Any]]:
        """The actions whose advantage changes most."""
        both = [row for row in self.actions if _both(row)]
        return sorted(both, key=lambda row: -abs(row["other_advantage"] - row["advantage"]))[:LARGEST]

    def as_dict(self) -> dict[str, Any]:
        """The entry `other` of `coterie replay --json`."""
        table = [row.as_dict() for row in self.table]
        return {"changes": self.changes, "start": self.start, "table": table, "largest": self.largest}


def _both(row: Mapping[str, Any]) -> bool:
    return row["advantage"] is not None and row["other_advantage"] is not None


def _of_turn(role: str, turn: int, rows: Sequence[Mapping[str, Any]]) -> TurnChange:
    pairs = [(row["advantage"], row["other_advantage"]) for row in rows if _both(row)]
    single = sum((row["advantage"] is None) != (row["other_advantage"] is None) for row in rows)
    flipped = sum(left * right < 0 for left, right in pairs)
    vanished = sum((left == 0) != (right == 0) for left, right in pairs)
    change = float(np.mean([abs(right - left) for left, right in pairs])) if pairs else 0.0
    return TurnChange(role, turn, len(pairs), flipped, vanished, change, single)


@dataclass(slots=True)
class CreditAgain:
    """Gives other credit to the steps that are played again, one after the other."""

    records: RunRecords
    overrides: tuple[str, ...]
    weights: Mapping[str, float]
    rescored: tuple[str, ...]
    """Reward sources whose settings are others, so that they score again."""
    changes: list[str]
    start: str = "none"
    state: Any = None
    """The other estimator's, after the steps so far."""
    began: bool = False
    actions: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def asked(
        cls,
        records: RunRecords,
        estimator: str | None,
        rewards: Sequence[str],
        weights: Mapping[str, float],
    ) -> CreditAgain | None:
        """What was asked for; None: nothing.

        Raises:
            ConfigError: an unknown component, source, setting or type; it names the option.
        """
        for name, value in weights.items():
            if not math.isfinite(value):
                raise ConfigError(
                    f"the weight of '{name}' is {value}", path="--weights", fix="a finite number"
                )
        if estimator is None and not rewards and not weights:
            return None
        config = records.config
        overrides: list[str] = []
        if estimator is not None:
            kind, *settings = [part.strip() for part in estimator.split(",")]
            if kind != config.algorithm["type"]:
                overrides.append(f"algorithm.type={kind}")
            overrides += [f"algorithm.{setting}" for setting in settings]
            _check_settings(settings, "--estimator", "TYPE,key=value")
        _check_settings(rewards, "--reward", "NAME.key=value")
        rescored: list[str] = []
        for setting in rewards:
            name, _, rest = setting.partition("=")[0].partition(".")
            if name not in config.rewards:
                what = f"the run has no reward source '{name}'"
                raise ConfigError(what, path="--reward", fix=did_you_mean(name, config.rewards))
            if not rest:
                raise ConfigError(f"'{setting}' names no setting", path="--reward", fix="NAME.key=value")
            if rest.partition(".")[0] not in RewardConfig.model_fields:
                rescored.append(name)
        overrides += [f"rewards.{setting}" for setting in rewards]
        changes = [*overrides, *(f"weight {name}={value}" for name, value in weights.items())]
        if estimator is not None:  # stated, so that nothing advises another loss: none is computed here
            overrides.append(f"loss.type={config.loss['type']}")
        return cls(records, tuple(overrides), weights, tuple(dict.fromkeys(rescored)), changes)

    def run(self, step: int) -> Run:
        """The run with the other settings, as of a step."""
        try:
            return self.records.run(step, self.overrides)
        except UserError as error:
            error.why = "; ".join(filter(None, (error.why, "set by --estimator or --reward")))
            if error.path.startswith("sampler"):
                error.fix = "choose another estimator: what was played doesn't change"
            raise

    def sources(self, step: int) -> list[NamedRewardSource]:
        """The reward sources that score beside the run's own."""
        if not self.rescored:
            return []
        return [source for source in self.run(step).reward_sources if source.name in self.rescored]

    def add(self, played: PlayedStep) -> None:
        """Give other credit to a step.

        Raises:
            UserError: the estimator needs annotations that the run didn't make.
        """
        run = self.run(played.step)
        if not self.began:
            same = run.config.algorithm["type"] == self.records.config.algorithm["type"]
            self.state = played.state if same else None
            self.start = "none" if played.state is None and same else "recorded" if same else "empty"
            self.began = True
        batch = replace(
            played.batch,
            scores=played.other_scores if played.other_scores is not None else played.batch.scores,
            reward_weights=self._weights(run),
        )
        estimator = new_estimator(run)
        lacking = [name for name in estimator.needs if name not in batch.annotations]
        if lacking and batch.trees:
            raise UserError(
                f"estimator '{run.config.algorithm['type']}' needs {', '.join(lacking)}",
                path="--estimator",
                why="the run's own estimator and loss didn't, so they were never computed",
                fix="choose one without them, or record a run that has them",
            )
        with plugin_call(estimator, "__call__"):
            returned = estimator(batch, self.state)
        check_credit(estimator, returned, batch.trees)
        credit, self.state = returned[0], as_json(returned[1])
        self.actions += _rows(played, batch, credit)

    def _weights(self, run: Run) -> RewardWeights:
        given = run.reward_weights
        unknown = [name for name in self.weights if name != TEAM and name not in given.weights]
        if unknown:
            what = f"no reward source scores a component '{unknown[0]}'"
            fix = did_you_mean(unknown[0], [*given.weights, TEAM])
            raise ConfigError(what, path="--weights", fix=fix)
        components = {name: value for name, value in self.weights.items() if name != TEAM}
        return replace(
            given,
            weights={**given.weights, **components},
            team_weight=self.weights.get(TEAM, given.team_weight),
        )

    def result(self) -> OtherCredit:
        """The credit of all steps."""
        start = self.start if self.state is not None else "none"  # it keeps nothing between steps
        return OtherCredit(self.changes, start, self.actions)


def _check_settings(settings: Sequence[str], option: str, form: str) -> None:
    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"'{setting}' is no setting", path=option, fix=f"write {form}")


def _rows(played: PlayedStep, other: Batch, credit: Credit) -> Iterator[dict[str, Any]]:
    """A row an action that is trained by one of the two."""
    ours = played.credit
    for tree in other.trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                before = branch_rewards(node, role, played.batch.scores, played.batch.reward_weights)
                after = branch_rewards(node, role, other.scores, other.reward_weights)
                for branch, action in enumerate(decision.branches):
                    key = node.key.of_branch(role, branch)
                    trained = decision.trainable and action.trainable
                    first = _mean(ours.advantage.get(key)) if ours is not None and trained else None
                    second = _mean(credit.advantage.get(key)) if trained else None
                    if first is None and second is None:
                        continue
                    yield {
                        "step": played.step,
                        "task": tree.task.id,
                        "epoch": tree.epoch,
                        "chain": tree.chain,
                        "node": node.key.text(),
                        "turn": node.turn,
                        "stage": node.stage,
                        "role": role,
                        "policy": decision.policy,
                        "branch": branch,
                        "tokens": action.tokens,
                        "completion": action.text,
                        "reward": before[branch],
                        "other_reward": after[branch],
                        "return": ours.returns.get(key) if ours is not None else None,
                        "other_return": credit.returns.get(key),
                        "advantage": first,
                        "other_advantage": second,
                    }


def _mean(advantage: float | np.ndarray | None) -> float | None:
    if advantage is None:
        return None
    array = np.asarray(advantage, dtype=np.float64)
    return float(array.mean()) if array.size else 0.0

"""REINFORCE++ (arXiv 2501.03262), as MAPPA (arXiv 2601.23228) trains with a score for every action."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from coterie.core.plugins import Plugin
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import TEAM, Credit, Key
from coterie.plugins.algos.blocks.estimator import Pieces, check_pieces
from coterie.plugins.algos.blocks.groups import Counts, Normalised, Normaliser, normalise_batch
from coterie.plugins.algos.blocks.returns import RETURNS, Horizon, Row, token_counts

log = logging.getLogger("coterie")


class BatchNormaliser(Normaliser):
    """The normaliser of REINFORCE++: mean and deviation over all actions of the step."""

    type: Literal["none", "scale", "whiten"] = "whiten"
    ddof: int = Field(0, ge=0, le=1)
    eps: float = Field(1e-8, ge=0)
    scope: Literal["role", "global"] = Field(
        "global", description="Whether they are of each role, or of the whole step."
    )  # type: ignore[assignment]
    per: Literal["action", "token"] = Field(
        "token", description="Whether a long action counts as often as it has tokens."
    )


class ReinforcePP(Plugin):
    """A_t = score - beta * sum of KL from token t to the action's end, normalised over the whole batch.

    Every action is a sequence of its own. Its score is paid on its last token; every token also pays -beta *
    (log pi - log pi_ref), the k1 estimate of the KL to the reference. Rewards are summed back to the action's
    start, never across actions. There are no groups: the mean and deviation over all tokens of the step
    (`normalise.scope: global`, or `role`) are the baseline and the scale, so one sample per prompt is enough.

    `truncated: drop` leaves actions that reached the token limit out of the statistics and the loss. The
    original normalises twice and per agent; this estimator doesn't. When it degenerates: with beta 0 and
    actions of one length it is REINFORCE with the batch's mean as baseline; with statistics by token long
    actions dominate the mean (`per: action` avoids that).
    """

    class Config(Normalised):
        alpha: float = Field(1.0, description="Weight of the team's components in the reward.")
        beta: float = Field(0.01, ge=0, description="Coefficient of the KL in the reward (k1, per token).")
        gamma: float = Field(1.0, ge=0, le=1, description="Discount per token, inside an action.")
        returns: Literal["immediate", "to_go"] = Field(
            "immediate", alias="return", description="The action's own score, or the return to go."
        )
        normalise: BatchNormaliser = BatchNormaliser()
        truncated: Literal["drop", "keep"] = Field(
            "drop", description="Actions that reached the token limit. Counted either way."
        )
        model_config = {"populate_by_name": True}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ref_logprobs",) if self.config.beta > 0 else ()

    @property
    def weights(self) -> Mapping[str, float]:
        return {TEAM: self.config.alpha}

    @property
    def sums_over_turns(self) -> bool:
        return bool(self.config.returns == "to_go")

    def check(self, plan: Plan, team: Team) -> None:
        pieces = Pieces(
            group="batch", returns=self.config.returns, baseline="none", normalise=self.config.normalise
        )
        check_pieces(pieces, plan, team)

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        reference = batch.annotations.get("ref_logprobs", {})
        decisions = {
            node.key.of_role(role): decision
            for tree in batch.trees
            for node in tree.nodes()
            for role, decision in node.decisions.items()
        }
        advantage: dict[Key, np.ndarray] = {}
        returns: dict[Key, float] = {}
        counts: dict[str, Counts] = {}
        truncated: dict[str, int] = {}
        for row in self._rows(batch):
            key, count = row.branches[0], counts.setdefault(row.role, Counts())
            decision = decisions[key.decision]
            action = decision.branches[key.branch]
            count.add(False, False, row.value is None)
            at_limit = bool(action.calls) and action.calls[-1].finish == "length"
            truncated[row.role] = truncated.get(row.role, 0) + at_limit
            if row.value is None or (at_limit and self.config.truncated == "drop"):
                continue
            logprobs = np.array([value for call in action.calls for value in call.logprobs])
            if len(logprobs):
                # An untrained policy is its own reference.
                penalised = self.config.beta > 0 and decision.trainable
                kl = logprobs - reference[key] if penalised else np.zeros(len(logprobs))
                advantage[key] = self._return_to_go(row.value, kl)
                returns[key] = row.value
        if not advantage and any(truncated.values()):
            log.warning(
                "reinforce_pp: all %d actions reached the token limit, and nothing is trained on: raise "
                "sampler.sampling.max_new_tokens, or set algorithm.truncated=keep",
                sum(truncated.values()),
            )
        metrics = {name: value for role, count in counts.items() for name, value in count.metrics(role)}
        metrics |= {f"groups/{role}/truncated": float(number) for role, number in truncated.items()}
        scaled = advantage
        if self.config.normalise.type != "none":
            scaled = normalise_batch(advantage, token_counts(batch.trees), self.config.normalise)
        return Credit(advantage=dict(scaled), returns=returns, metrics=metrics), state

    def _rows(self, batch: Batch) -> Iterator[Row]:
        yield from RETURNS[self.config.returns](batch, Horizon())

    def _return_to_go(self, score: float, kl: np.ndarray) -> np.ndarray:
        """Rewards summed back from the last token, shape (tokens,)."""
        rewards = -self.config.beta * kl
        rewards[-1] += score
        following = 0.0
        for t in range(len(rewards) - 1, -1, -1):
            rewards[t] = following = rewards[t] + self.config.gamma * following
        return rewards

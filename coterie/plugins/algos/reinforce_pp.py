"""REINFORCE++ (arXiv 2501.03262), as MAPPA (arXiv 2601.23228) trains with a score for every action."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from coterie.plugins.algos.blocks.estimator import GroupConfig, GroupEstimator, Pieces
from coterie.plugins.algos.blocks.groups import Normalised, Normaliser, equal
from coterie.plugins.algos.blocks.returns import Row
from coterie.plugins.algos.blocks.rows import Advantage, RowEstimator, Rows, ScoredRow

log = logging.getLogger("coterie")


class BatchNormaliser(Normaliser):
    """The normaliser of REINFORCE++: mean and deviation over all actions of the step.

    The deviation is at least 1e-4, as OpenRLHF clamps the variance at 1e-8.
    """

    type: Literal["none", "scale", "whiten"] = "whiten"
    ddof: int = Field(0, ge=0, le=1)
    eps: float = Field(1e-4, ge=0)
    eps_mode: Literal["add", "clamp"] = Field(
        "clamp", description="Divide by deviation + eps, or by the larger of the two."
    )
    scope: Literal["role", "global"] = Field(
        "global", description="Whether they are of each role, or of the whole step."
    )  # type: ignore[assignment]
    per: Literal["action", "token"] = Field(
        "token", description="Whether a long action counts as often as it has tokens."
    )


class ReinforcePP(RowEstimator):
    """A_t = score - beta * sum of KL from token t to the action's end, normalised over the whole batch.

    Every action is a sequence of its own. Its score is paid on its last token; every token also pays -beta *
    (log pi - log pi_ref), the k1 estimate of the KL to the reference. Rewards are summed back to the action's
    start, never across actions. There are no groups: the mean and deviation over all tokens of the step
    (`normalise.scope: global`, or `role`) are the baseline and the scale, so one sample per prompt is enough.

    Where all scores that the normaliser compares are equal, no action was better than another. What varies is
    the KL alone, in fp32 down to rounding noise, so advantages are centred and not scaled; counted as
    `normaliser/unscaled`.

    `truncated: drop` leaves actions that reached the token limit out of the statistics and the loss. The
    original normalises twice and per agent; this estimator doesn't. When it degenerates: with beta 0 and
    actions of one length it is REINFORCE with the batch's mean as baseline; with statistics by token long
    actions dominate the mean (`per: action` avoids that).
    """

    paper_loss = "ppo_clip, token_mean"

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
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("ref_logprobs",) if self.config.beta > 0 else ()

    @property
    def pieces(self) -> Pieces:
        # `gamma` is per token here: the return to go is not discounted.
        return Pieces(
            group="batch", returns=self.config.returns, baseline="none", normalise=self.config.normalise
        )

    def advantages(self, rows: Rows) -> list[np.ndarray | None]:
        """Rewards summed back from each action's last token; None: dropped, or without tokens."""
        values = [self._action(rows, row) for row in rows]
        truncated = sum(_at_limit(rows, row) for row in rows.all)
        if truncated and all(value is None for value in values):
            log.warning(
                "reinforce_pp: all %d actions reached the token limit, and nothing is trained on: raise "
                "sampler.sampling.max_new_tokens, or set algorithm.truncated=keep",
                truncated,
            )
        return values

    def _action(self, rows: Rows, row: ScoredRow) -> np.ndarray | None:
        if self.config.truncated == "drop" and _at_limit(rows, row):
            return None
        logprobs = rows.logprobs(row)
        if not len(logprobs):
            return None
        # An untrained policy is its own reference.
        penalised = self.config.beta > 0 and rows.decisions(row)[0].trainable
        kl = logprobs - rows.annotation(row, "ref_logprobs") if penalised else np.zeros(len(logprobs))
        return self._return_to_go(row.value, kl)

    def _return_to_go(self, score: float, kl: np.ndarray) -> np.ndarray:
        """Rewards summed back from the last token, shape (tokens,)."""
        rewards = -self.config.beta * kl
        rewards[-1] += score
        following = 0.0
        for t in range(len(rewards) - 1, -1, -1):
            rewards[t] = following = rewards[t] + self.config.gamma * following
        return rewards

    def unscaled_scopes(self, rows: Rows, values: Sequence[Advantage]) -> set[str]:
        """The scopes in which all scores are equal."""
        scores: dict[str, list[float]] = {}
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                scores.setdefault(self.config.normalise.scope_of(row.role), []).append(row.value)
        return {scope for scope, several in scores.items() if equal(np.array(several))}

    def metrics(self, rows: Rows, values: Sequence[Advantage]) -> Mapping[str, float]:
        """The number of actions that reached the token limit, by role, and of scopes left unscaled."""
        truncated: dict[str, float] = {"normaliser/unscaled": len(self.unscaled_scopes(rows, values))}
        for row in rows.all:
            name = f"groups/{row.role}/truncated"
            truncated[name] = truncated.get(name, 0.0) + _at_limit(rows, row)
        return truncated


def _at_limit(rows: Rows, row: Row) -> bool:
    calls = rows.actions(row)[0].calls
    return bool(calls) and calls[-1].finish == "length"


class ReinforcePPBaseline(GroupEstimator):
    """A = (score - mean of the same task, role and turn) / the deviation of that over the batch.

    REINFORCE++-baseline: a group's mean first, the batch's deviation after (arXiv 2501.03262). The group's
    mean removes the difficulty of the task. The batch's deviation, unlike a group's, doesn't
    stretch a group of nearly equal scores, and a group of equal scores stays at 0. The KL moves from the
    reward into the loss, in the form k2 (`loss: {kl: 0.01, kl_form: k2}`), since the gradient of k1 is zero
    in expectation there. When it degenerates: with one chain per task there is no baseline (refused); after
    turn 1 the prompts of a group differ.
    """

    class Config(GroupConfig):
        normalise: BatchNormaliser = Field(default_factory=lambda: BatchNormaliser(type="scale"))

    group = "turn"
    returns = "immediate"
    paper_loss = "ppo_clip, kl as k2"

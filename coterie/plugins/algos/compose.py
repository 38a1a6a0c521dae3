"""An estimator put together in the configuration."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from coterie.plugins.algos.blocks.estimator import (
    BaselineName,
    GroupEstimator,
    GroupName,
    Pieces,
    ReturnName,
    SumConfig,
)


class Compose(GroupEstimator):
    """Names its grouping, return, baseline and normaliser itself.

    `{type: compose, group: decision, return: tree, baseline: loo, normalise: {type: none}}` is MARLOO with a
    flat weight per branch. What a pair means, and which pairs mean nothing, is in docs/algorithms.md.
    """

    class Config(SumConfig):
        model_config = ConfigDict(populate_by_name=True)

        group: GroupName = Field(description="What the rows that share a baseline have in common.")
        returns: ReturnName = Field(alias="return", description="What an action is worth.")
        baseline: BaselineName = Field("mean", description="What a row is compared with.")

    @property
    def pieces(self) -> Pieces:
        return Pieces(
            group=self.config.group,
            returns=self.config.returns,
            baseline=self.config.baseline,
            normalise=self.config.normalise,
            fill=self.config.fill,
            gamma=self.config.gamma,
        )

"""The estimator `compose`, whose pieces are named in the configuration."""

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
    """The group estimator whose grouping, return, baseline and normaliser the configuration names.

    `{type: compose, group: decision, return: tree, baseline: loo, normalise: {type: none}}` is MARLOO with a
    flat weight per branch. docs/algorithms.md explains the combinations and lists those that are refused.
    """

    class Config(SumConfig):
        model_config = ConfigDict(populate_by_name=True)

        group: GroupName = Field(description="The key that rows with one baseline share.")
        returns: ReturnName = Field(alias="return", description="The return of an action.")
        baseline: BaselineName = Field("mean", description="The value that a row is compared with.")

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

"""GRPO over the episodes of search trees."""

from __future__ import annotations

from dataclasses import replace

from coterie import GroupEstimator, Plan, SumConfig, Team


class SearchGRPO(GroupEstimator):
    """An action's advantage is the mean return of the episodes through it, less that of the task's episodes.

    An episode that the search played again counts once here, and again in the sampler's formula.
    A search plays on only some of a node's joint actions. Actions that no episode took have no return, and
    are not trained: what they paid at once is what the search distrusts. (The return `tree` would take such
    an action for one whose episode ended.)

    The search chose the episodes, so they are no sample of the policy: the baseline is that of the search,
    and advantages tell which of the searched actions were better, as in expert iteration.
    """

    Config = SumConfig
    group = "task"
    returns = "episode"

    def check(self, plan: Plan, team: Team) -> None:
        """Refuse what GRPO refuses of whole episodes: each expanded path of the tree is one."""
        super().check(replace(plan, expand="all"), team)

"""The reward source `function`: scores from a function of the user."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, SupportsFloat

from pydantic import Field

from coterie.core.errors import PluginError, SystemFault, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import ActionView, SiblingsView, View
from coterie.core.protocols.reward import CONCURRENCY, ScoreTable
from coterie.core.types import TEAM, ComponentKind, Score
from coterie.plugins.functions import FunctionReference, call, load_function


class FunctionReward(Plugin):
    """The result of `function(view)`, async or not, as scores.

    A number is the score of this source's own component (its name in the configuration): with the scopes
    `joint` and `episode` the team's, with the others the role's. None is a missing score, a `coterie.Score`
    a number with a comment. A table scores several components: {"solver.style": 0.5, "team.right": 1.0}, or
    {("solver", "style"): 0.5}. With the scope `siblings` the function returns a list with one of these per
    branch, with `trajectory` a list with one per entry of `EpisodeView.actions`.

    The function raises `coterie.PolicyFault` where the output is at fault (every component gets `floor`)
    and `coterie.SystemFault` where it isn't (the scores are missing).
    """

    class Config(PluginConfig):
        function: FunctionReference = Field(description="`module:function`.", examples=["my_rewards:score"])
        scope: Literal["action", "joint", "siblings", "episode", "trajectory"] = Field(
            "joint",
            description="Its argument: an ActionView, JointView or SiblingsView, else an EpisodeView.",
        )
        components: dict[str, ComponentKind] = Field(
            default_factory=dict,
            description="Names and kinds of the scores. Default: one increment with the name of this source.",
        )
        per_role: tuple[str, ...] = Field(
            (),
            description="Components that a table scores for single roles (scopes joint and episode): a "
            "failure is then each role's own, not the team's.",
        )
        floor: float = Field(
            0.0,
            allow_inf_nan=False,
            description="The score of every component where the function raises PolicyFault.",
        )

    config: Config

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.scope = config.scope
        self.components: Mapping[str, ComponentKind] = config.components or {build.name: "increment"}
        self.per_role = config.per_role
        self.weights: Mapping[str, float] = {}
        self.policy_fault = config.floor
        self._function = load_function(config.function, f"{build.path}.function")
        waits = inspect.iscoroutinefunction(self._function) or not inspect.isfunction(self._function)
        self.concurrency = CONCURRENCY if waits else 1  # a plain function holds up the event loop anyway

    async def score(self, view: View) -> ScoreTable | Sequence[ScoreTable]:
        """The function's scores for the view.

        Raises:
            PluginError: the function returned something other than scores of declared components.
        """
        answer = await call(self._function, view)
        if isinstance(view, SiblingsView):
            owners = [view.role] * len(view.actions)
        elif self.scope == "trajectory":
            owners = [played.decision.role for played in view.actions]  # type: ignore[union-attr]
        else:
            return self._table(answer, view.role if isinstance(view, ActionView) else TEAM)
        if (
            isinstance(answer, (str, Mapping))
            or not isinstance(answer, Sequence)
            or len(answer) != len(owners)
        ):
            raise self._wrong(answer, f"it must return a list of {len(owners)} scores, one per action")
        return [self._table(part, owner) for part, owner in zip(answer, owners, strict=True)]

    def _table(self, answer: Any, owner: str) -> ScoreTable:
        if answer is None and self.per_role:
            raise SystemFault("no score")  # of the roles, not of the team
        if answer is None:
            return {(owner, component): None for component in self.components}
        if isinstance(answer, Mapping):
            table: dict[tuple[str, str], float | Score | None] = {}
            for name, value in answer.items():
                key = self._score_key(name, owner)
                if key in table:
                    raise self._wrong(answer, f"it scores {'.'.join(key)} twice")
                table[key] = self._number(value)
            return table
        if len(self.components) > 1:
            raise self._wrong(answer, f"it has the components {', '.join(self.components)}: return a table")
        return {(owner, next(iter(self.components))): self._number(answer)}

    def _score_key(self, name: Any, owner: str) -> tuple[str, str]:
        """(role, component) of `role.component`, of a pair, or of a component of the owner."""
        pair = (owner, name) if isinstance(name, str) and "." not in name else name
        pair = tuple(pair.split(".", 1)) if isinstance(pair, str) else pair
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise self._wrong(name, "the key of a score is a name, `role.name` or (role, name)")
        role, component = pair
        if component not in self.components:
            raise self._wrong(
                name, f"'{component}' is not among its components; {did_you_mean(component, self.components)}"
            )
        return role, component

    def _number(self, value: Any) -> float | Score | None:
        if value is None or isinstance(value, Score):
            return value
        with suppress(Exception):  # an array of several has no number; other types raise errors of their own
            if isinstance(value, SupportsFloat):
                return float(value)
        raise self._wrong(value, "a score must be a number or None")

    def _wrong(self, answer: Any, why: str) -> PluginError:
        return PluginError(
            f"{self.config.function} returned {answer!r:.200}", path=f"{self.build.path}.function", why=why
        )

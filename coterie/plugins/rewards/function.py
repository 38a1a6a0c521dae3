"""The reward source `function`: a function of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import PluginError, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import ActionView, SiblingsView, View
from coterie.core.types import TEAM, ComponentKind
from coterie.plugins.functions import FunctionReference, call, load_function

Table = Mapping[tuple[str, str], float | None]


class FunctionReward(Plugin):
    """Calls `function(view)`, async or not, and reads what it returns.

    A number is the score of this source's own component (its name in the configuration): for scopes
    `joint` and `episode` the team's, for `action` and `siblings` the role's. None is a missing score. A
    table may name several: {"solver.style": 0.5, "team.right": 1.0}, or {("solver", "style"): 0.5}.
    Scope `siblings` returns one of these per branch.

    The function raises `coterie.PolicyFault` for what the output caused (every component gets `floor`)
    and `coterie.SystemFault` for what it didn't (the scores are missing).
    """

    class Config(PluginConfig):
        function: FunctionReference = Field(description="`module:function`.")
        scope: Literal["action", "joint", "siblings", "episode"] = Field(
            "joint", description="What it is called with: ActionView, JointView, SiblingsView or EpisodeView."
        )
        components: dict[str, ComponentKind] = Field(
            default_factory=dict,
            description="Names of the scores, and whether each is a gain or the value of a "
            "state. Default: one increment, named as this source.",
        )
        floor: float = Field(0.0, description="What every component gets where the output is to blame.")

    config: Config

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.scope = config.scope
        self.components: Mapping[str, ComponentKind] = config.components or {build.name: "increment"}
        self.weights: Mapping[str, float] = {}
        self.policy_fault = config.floor
        self._function = load_function(config.function, f"{build.path}.function")

    async def score(self, view: View) -> Table | Sequence[Table]:
        """What the function says of the view.

        Raises:
            PluginError: it returned something else than numbers of declared components.
        """
        answer = await call(self._function, view)
        if not isinstance(view, SiblingsView):
            return self._table(answer, view.role if isinstance(view, ActionView) else TEAM)
        if (
            isinstance(answer, (str, Mapping))
            or not isinstance(answer, Sequence)
            or len(answer) != len(view.actions)
        ):
            raise self._wrong(answer, f"a list of {len(view.actions)} scores, one a branch, is wanted")
        return [self._table(one, view.role) for one in answer]

    def _table(self, answer: Any, owner: str) -> Table:
        if answer is None:
            return {(owner, component): None for component in self.components}
        if isinstance(answer, Mapping):
            return {self._place(name, owner): self._number(value) for name, value in answer.items()}
        if len(self.components) > 1:
            raise self._wrong(answer, f"it has the components {', '.join(self.components)}: return a table")
        return {(owner, next(iter(self.components))): self._number(answer)}

    def _place(self, name: Any, owner: str) -> tuple[str, str]:
        """`role.component`, (role, component), or the component of the owner."""
        role, component = (
            (owner, name)
            if isinstance(name, str) and "." not in name
            else (tuple(name.split(".", 1)) if isinstance(name, str) else name)
        )
        if component not in self.components:
            raise self._wrong(
                name, f"'{component}' is not among its components; {did_you_mean(component, self.components)}"
            )
        return role, component

    def _number(self, value: Any) -> float | None:
        if value is None:
            return None
        if not isinstance(value, Real) and not hasattr(value, "__float__"):
            raise self._wrong(value, "a number is wanted")
        return float(value)

    def _wrong(self, answer: Any, wanted: str) -> PluginError:
        return PluginError(
            f"{self.config.function} returned {answer!r}", path=f"{self.build.path}.function", why=wanted
        )

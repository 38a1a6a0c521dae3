"""The reward source `environment`: the scores that the environment's steps emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import PluginError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.protocols.reward import ScoresRoles
from coterie.core.types import ComponentKind


class EnvironmentReward(Plugin):
    """Passes on the scores of `Environment.step`, with the components and weights that it declares."""

    class Config(PluginConfig):
        floor: float = Field(
            0.0,
            allow_inf_nan=False,
            description="The score of every component where a step raises PolicyFault.",
        )

    config: Config
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.components: Mapping[str, ComponentKind] = build.environment.components
        self.weights: Mapping[str, float] = build.environment.weights
        self.policy_fault = config.floor
        environment = build.environment
        self.per_role: Sequence[str] = environment.per_role if isinstance(environment, ScoresRoles) else ()

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The scores that the step emitted.

        Raises:
            PluginError: the environment doesn't declare a component, which therefore has no kind.
        """
        for _, component in view.emitted:
            if component not in self.components:
                raise PluginError(
                    f"the environment emits a score '{component}' that it doesn't declare",
                    path=self.build.path,
                    fix="add it to the environment's `components`",
                )
        return view.emitted

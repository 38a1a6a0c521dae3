"""The reward source `environment`: the scores that the environment's steps emit."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import PluginError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.plugins.origin import Origin, origin_of
from coterie.core.protocols import JointView
from coterie.core.types import TEAM, ComponentKind
from coterie.discovery.members import ScoresRoles

log = logging.getLogger("coterie")


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
        self._environment: Origin = origin_of(environment)
        self._told = False
        """Whether a step's score that is missing, and doesn't say so, was told."""
        self.per_role: Sequence[str] = environment.per_role if isinstance(environment, ScoresRoles) else ()

    @property
    def _origin(self) -> Origin:
        """The environment's: what is wrong with the scores is wrong with its steps."""
        return self._environment

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The scores that the step emitted.

        Raises:
            PluginError: the environment doesn't declare a component, which therefore has no kind.
        """
        for (role, component), value in view.emitted.items():
            if component not in self.components:
                raise PluginError(
                    f"the environment emits a score '{component}' that it doesn't declare",
                    path=self.build.path,
                    fix="add it to the environment's `components`",
                )
            stray = role != TEAM and role not in view.actions
            if not self._told and (stray or (value is not None and not math.isfinite(value))):
                self._told = True
                fix = (
                    "score roles that act, or coterie.TEAM" if stray else "a finite number, or None: missing"
                )
                log.warning(
                    "%s: step scored %r with %r; fix: %s", self._environment, (role, component), value, fix
                )
        return view.emitted

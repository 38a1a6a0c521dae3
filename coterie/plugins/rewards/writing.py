"""The reward source `writing`: the levels of MAGRPO's writing rewards (arXiv 2508.04652)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.types import TEAM, ComponentKind
from coterie.plugins.reports import WritingReport, check_report, report_of

LEVELS: Mapping[str, float] = {"structure": 0.5, "length": 1.0, "vocabulary": 0.5, "style": 1.0}
"""Level -> its value where it is fully reached; 3 in all. After one that failed the later ones are 0."""


class WritingReward(Plugin):
    """The levels of two texts, each a component, times `scale`, plus `shift`.

    Potentials: they are the value of what the team has written, so turns that change nothing earn nothing.
    """

    class Config(PluginConfig):
        scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="Factor of every level.")
        shift: float = Field(0.0, allow_inf_nan=False, description="A further component, for every text.")
        floor: float = Field(0.0, allow_inf_nan=False, description="Where a step raises PolicyFault.")

    config: Config
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing
    components: Mapping[str, ComponentKind] = dict.fromkeys((*LEVELS, "shift"), "potential")

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_report(build, "writing")
        self.weights: Mapping[str, float] = {
            **{name: value * config.scale for name, value in LEVELS.items()},
            "shift": 1.0,
        }
        self.policy_fault = config.floor

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The team's levels as shares; nothing where not every text is written yet."""
        report: WritingReport | None = report_of(view.info, "writing")
        if report is None:
            return {}
        levels: Mapping[str, Any] = report
        scores: dict[tuple[str, str], float | None] = {(TEAM, name): levels[name] for name in LEVELS}
        return {**scores, (TEAM, "shift"): self.config.shift}

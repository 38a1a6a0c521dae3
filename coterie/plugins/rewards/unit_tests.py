"""The reward sources `unit_tests` and `golden_tests`: shares of tests that a team's program passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.types import TEAM, ComponentKind
from coterie.plugins.reports import CodeReport, check_report, report_of


class TestShares(Plugin):
    """The base of sources that read the report `code`."""

    __test__ = False  # or pytest collects it, as every class named Test*

    class Config(PluginConfig):
        floor: float = Field(0.0, allow_inf_nan=False, description="Where a step raises PolicyFault.")

    config: Config
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_report(build, "code")
        self.policy_fault = config.floor


class UnitTests(TestShares):
    """The share of the tests that the team may see and that its program passes."""

    components: Mapping[str, ComponentKind] = {"unit_tests": "potential"}
    weights: Mapping[str, float] = {"unit_tests": 1.0}

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The team's score; nothing where no program was judged."""
        report: CodeReport | None = report_of(view.info, "code")
        if report is None or not report["visible_total"]:
            return {}
        return {(TEAM, "unit_tests"): report["visible_passed"] / report["visible_total"]}


class GoldenTests(TestShares):
    """The hidden tests: their share for the team, and what the role that wrote the program earns.

    AT-GRPO (arXiv 2510.11062): the team earns the share of hidden tests that pass; the coder .1 for a program
    that builds, .1 for one that runs, and .8 times that share.
    """

    class Config(TestShares.Config):
        role: str = Field("coder", description="The role that writes the program.")

    config: Config
    components: Mapping[str, ComponentKind] = {
        "golden_tests": "potential",
        "builds": "potential",
        "runs": "potential",
        "golden": "potential",
    }
    weights: Mapping[str, float] = {"golden_tests": 1.0, "builds": 0.1, "runs": 0.1, "golden": 0.8}
    per_role: Sequence[str] = ("builds", "runs", "golden")

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        roles = list(build.run.team.roles)
        if config.role not in roles:
            raise ConfigError(
                f"the team has no role '{config.role}', which would earn the scores of its program",
                path=f"{build.path}.role",
                fix=f"name the role that writes the program; {did_you_mean(config.role, roles)}",
            )

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The scores of the team and of the role that wrote the program; nothing where none was judged."""
        report: CodeReport | None = report_of(view.info, "code")
        if report is None:
            return {}
        share = report["passed"] / report["total"] if report["total"] else 0.0
        scores: dict[tuple[str, str], float | None] = {(TEAM, "golden_tests"): share}
        if self.config.role in view.actions:
            of_role = {"builds": float(report["builds"]), "runs": float(report["runs"]), "golden": share}
            scores |= {(self.config.role, name): value for name, value in of_role.items()}
        return scores

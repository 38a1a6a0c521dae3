"""The reward source `test_quality`: whether tests that a role wrote can be read, and are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.types import ComponentKind
from coterie.plugins.reports import WrittenTestsReport, check_report, report_of


class TestQuality(Plugin):
    """What the role that writes tests earns: .2 for tests that can be read, .8 for those that the reference
    passes.

    Source: the unit-test writer of AT-GRPO (arXiv 2510.11062). A problem without a sound reference has no
    score `right`; the environment counts such problems.
    """

    __test__ = False  # or pytest collects it, as every class named Test*

    class Config(PluginConfig):
        floor: float = Field(0.0, allow_inf_nan=False, description="Where a step raises PolicyFault.")

    config: Config
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing
    components: Mapping[str, ComponentKind] = {"valid": "potential", "right": "potential"}
    """`valid`: the share of tests that can be read; `right`: the share of those that the reference passes."""
    weights: Mapping[str, float] = {"valid": 0.2, "right": 0.8}
    per_role = ("valid", "right")

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_report(build, "tests")
        self.policy_fault = config.floor

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The scores of the role that wrote tests; nothing where none wrote any."""
        report: WrittenTestsReport | None = report_of(view.info, "tests")
        if report is None or report["author"] not in view.actions:
            return {}
        scores: dict[tuple[str, str], float | None] = {(report["author"], "valid"): report["valid"]}
        if report["right"] is not None:
            scores[report["author"], "right"] = report["right"]
        return scores

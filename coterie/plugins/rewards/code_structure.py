"""The reward source `code_structure`: the levels of MAGRPO's coding reward (arXiv 2508.04652)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.types import TEAM, ComponentKind
from coterie.plugins.reports import CodeReport, check_report, report_of

AUX, MAIN, SYNTAX, TESTS, CALLED, NOT_THIN, IGNORED = 0.4, 0.6, 0.5, 1.0, 0.5, 1.0, -0.5
HIGHEST = AUX + MAIN + SYNTAX + TESTS + CALLED + NOT_THIN
"""4: the paper's maximum."""


def levels(report: CodeReport) -> float:
    """The sum of the levels, in [0, 4].

    .4: the helper wrote a function `aux` that returns something; .6: the main role wrote the entry point
    (else it ends here); .5: the program parses (else it ends here); the share of tests that pass; and where a
    test passed, there is an `aux` and the entry point calls it: .5 for the call, 1 where it is no mere call,
    -.5 where no result is used. Without a helper, the parts of `aux` are left out: at most 2.1.
    """
    total = AUX * (report["team"] and report["aux"])
    if not report["main"]:
        return total
    total += MAIN
    if not report["builds"]:
        return total
    total += SYNTAX
    if not report["total"] or not report["passed"]:
        return total
    total += TESTS * report["passed"] / report["total"]
    if report["team"] and report["aux"] and report["called"]:
        total += CALLED + NOT_THIN * (not report["thin"]) + IGNORED * report["ignored"]
    return total


class CodeStructure(Plugin):
    """The levels of the team's program, times `scale`, plus `shift`.

    A potential: it is the value of what the team has made, so turns that change nothing earn nothing. Source:
    the level reward of MAGRPO (arXiv 2508.04652). What differs: all of it is read by `ast`, and tests run in
    the sandbox.
    """

    class Config(PluginConfig):
        scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="Factor of the levels.")
        shift: float = Field(0.0, allow_inf_nan=False, description="Added after it.")

    config: Config
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing
    components: Mapping[str, ComponentKind] = {"code_structure": "potential"}
    weights: Mapping[str, float] = {"code_structure": 1.0}

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_report(build, "code")
        self.policy_fault = config.shift  # no level is reached

    async def score(self, view: JointView) -> Mapping[tuple[str, str], float | None]:
        """The team's score; nothing where the program is not complete yet."""
        report: CodeReport | None = report_of(view.info, "code")
        if report is None:
            return {}
        return {(TEAM, "code_structure"): self.config.scale * levels(report) + self.config.shift}

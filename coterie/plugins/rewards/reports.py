"""The reward sources that weigh a report of the environment: on code, on written tests, on two texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import JointView
from coterie.core.types import TEAM, ComponentKind
from coterie.discovery.optional import EnvironmentDefaults, with_defaults
from coterie.plugins.reports import CodeReport, WritingReport, WrittenTestsReport

Scores = Mapping[tuple[str, str], float | None]

AUX, MAIN, SYNTAX, TESTS, CALLED, NOT_THIN, IGNORED = 0.4, 0.6, 0.5, 1.0, 0.5, 1.0, -0.5
HIGHEST = AUX + MAIN + SYNTAX + TESTS + CALLED + NOT_THIN
"""4: the paper's maximum."""
LEVELS: Mapping[str, float] = {"structure": 0.5, "length": 1.0, "vocabulary": 0.5, "style": 1.0}
"""Level of two texts -> its value where it is fully reached, 3 in all; 0 after one that failed."""


class ReportReward(Plugin):
    """The base of sources that read a report.

    Raises:
        ConfigError: the environment gives no such report.
    """

    class Config(PluginConfig):
        floor: float = Field(0.0, allow_inf_nan=False, description="Where a step raises PolicyFault.")

    config: Any
    scope: Literal["joint"] = "joint"
    concurrency = 1  # it waits for nothing
    report: ClassVar[str] = "code"
    """The name of the report."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        given = with_defaults(build.environment, EnvironmentDefaults).reports
        if self.report not in given:
            raise ConfigError(
                f"the environment gives no report '{self.report}', which this reward source weighs",
                path=build.path,
                why=f"{type(build.environment).__name__} gives {', '.join(given) or 'no reports'}",
                fix="choose an environment with this report, or remove the source",
            )
        self.policy_fault: float = config.floor

    async def score(self, view: JointView) -> Scores:
        """The scores of the step's report; none where there was nothing to report yet."""
        report = view.info.get(self.report)
        return {} if report is None else self.scores(report, view)

    def scores(self, report: Any, view: JointView) -> Scores:
        """The scores of a report."""
        raise NotImplementedError


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


class CodeStructure(ReportReward):
    """The levels of the team's program, times `scale`, plus `shift`.

    A potential: it is the value of what the team has made, so turns that change nothing earn nothing. Source:
    the level reward of MAGRPO (arXiv 2508.04652). What differs: all of it is read by `ast`, and tests run in
    the sandbox.
    """

    class Config(PluginConfig):
        scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="Factor of the levels.")
        shift: float = Field(0.0, allow_inf_nan=False, description="Added after it.")

        @property
        def floor(self) -> float:
            """No level is reached."""
            return self.shift

    components: Mapping[str, ComponentKind] = {"code_structure": "potential"}
    weights: Mapping[str, float] = {"code_structure": 1.0}

    def scores(self, report: CodeReport, view: JointView) -> Scores:
        """The team's score."""
        return {(TEAM, "code_structure"): self.config.scale * levels(report) + self.config.shift}


class UnitTests(ReportReward):
    """The share of the tests that the team may see and that its program passes."""

    components: Mapping[str, ComponentKind] = {"unit_tests": "potential"}
    weights: Mapping[str, float] = {"unit_tests": 1.0}

    def scores(self, report: CodeReport, view: JointView) -> Scores:
        """The team's score; nothing where no program was judged."""
        total = report["visible_total"]
        return {(TEAM, "unit_tests"): report["visible_passed"] / total} if total else {}


class GoldenTests(ReportReward):
    """The hidden tests: their share for the team, and what the role that wrote the program earns.

    AT-GRPO (arXiv 2510.11062): the team earns the share of hidden tests that pass; the coder .1 for a program
    that builds, .1 for one that runs, and .8 times that share.
    """

    class Config(ReportReward.Config):
        role: str = Field("coder", description="The role that writes the program.")

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

    def scores(self, report: CodeReport, view: JointView) -> Scores:
        """The scores of the team and of the role that wrote the program."""
        share = report["passed"] / report["total"] if report["total"] else 0.0
        scores: dict[tuple[str, str], float | None] = {(TEAM, "golden_tests"): share}
        if self.config.role in view.actions:
            of_role = {"builds": float(report["builds"]), "runs": float(report["runs"]), "golden": share}
            scores |= {(self.config.role, name): value for name, value in of_role.items()}
        return scores


class TestQuality(ReportReward):
    """What the role that writes tests earns: .2 for tests that can be read, .8 for those that the reference
    passes.

    Source: the unit-test writer of AT-GRPO (arXiv 2510.11062). A problem without a sound reference has no
    score `right`; the environment counts such problems.
    """

    __test__ = False  # or pytest collects it, as every class named Test*

    report = "tests"
    components: Mapping[str, ComponentKind] = {"valid": "potential", "right": "potential"}
    """`valid`: the share of tests that can be read; `right`: the share of those that the reference passes."""
    weights: Mapping[str, float] = {"valid": 0.2, "right": 0.8}
    per_role = ("valid", "right")

    def scores(self, report: WrittenTestsReport, view: JointView) -> Scores:
        """The scores of the role that wrote tests; nothing where none wrote any."""
        if report["author"] not in view.actions:
            return {}
        scores: dict[tuple[str, str], float | None] = {(report["author"], "valid"): report["valid"]}
        if report["right"] is not None:
            scores[report["author"], "right"] = report["right"]
        return scores


class WritingReward(ReportReward):
    """The levels of two texts, each a component, times `scale`, plus `shift` (MAGRPO, arXiv 2508.04652).

    Potentials: they are the value of what the team has written, so turns that change nothing earn nothing.
    """

    class Config(PluginConfig):
        scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="Factor of every level.")
        shift: float = Field(0.0, allow_inf_nan=False, description="A further component, for every text.")
        floor: float = Field(0.0, allow_inf_nan=False, description="Where a step raises PolicyFault.")

    report = "writing"
    components: Mapping[str, ComponentKind] = dict.fromkeys((*LEVELS, "shift"), "potential")

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        scaled = {name: value * config.scale for name, value in LEVELS.items()}
        self.weights: Mapping[str, float] = {**scaled, "shift": 1.0}

    def scores(self, report: WritingReport, view: JointView) -> Scores:
        """The team's levels as shares; there is a report once every text is written."""
        table: Mapping[str, Any] = report
        return {**{(TEAM, name): table[name] for name in LEVELS}, (TEAM, "shift"): self.config.shift}

"""What modes with levels share: the environment's findings, and which tests they are of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.rollout.contracts import refuse
from coterie.core.types import Finding
from coterie.discovery.members import Diagnoses, GivesFindings
from coterie.plugins.transitions.diagnosis import diagnosis_of
from coterie.plugins.transitions.revision import Revision, RevisionConfig

PASSED = "All checks passed."
FAILED = "Not all checks passed."
"""The summaries of a diagnosis, which has one text."""


def _slice(value: Any) -> Any:
    """The number of tests of `sandbox_slice`; 0: all."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "all"):
        return 0
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number n (the first n tests; -n: the last n), or 0, null or all")
    return value


class LevelsConfig(RevisionConfig):
    sandbox_slice: Annotated[int, BeforeValidator(_slice)] = Field(
        0,
        description="Which of the task's feedback tests are run: n: the first n; -n: the last n; 0, null or "
        "all: all. Rewards are not affected.",
    )


class Levels(Revision):
    """The base of the modes that tell what came of the answer.

    An environment with `findings` gives them; with `diagnose` alone its text is one finding, which passed
    where the text is empty.
    """

    Config: type[PluginConfig] = LevelsConfig
    config: LevelsConfig

    def __init__(self, config: LevelsConfig, build: Any) -> None:
        super().__init__(config, build)
        environment = build.environment
        if isinstance(environment, GivesFindings):
            return
        name = type(environment).__name__
        if not isinstance(environment, Diagnoses):
            raise ConfigError(
                "the environment can't say what came of an answer",
                path=f"{build.path}.type",
                why=f"{name} has neither `findings(state, role, tests)` nor `diagnose(state, role)`",
                fix="choose plain, expert_edits or none, or an environment that has one of them",
            )
        if config.sandbox_slice != 0:
            raise ConfigError(
                "nothing reads this",
                path=f"{build.path}.sandbox_slice",
                why=f"{name} has no `findings(state, role, tests)`, which would choose the tests",
                fix="remove it: the whole diagnosis is told",
            )

    async def findings(self, role: str, state: Any, environment: Any) -> Sequence[Finding]:
        """The environment's findings for a role.

        Raises:
            SystemFault: the environment could not check the answer.
            PluginError: it returned something else.
        """
        if not isinstance(environment, GivesFindings):
            text = await diagnosis_of(environment, state, role)
            summary = FAILED if text else PASSED
            return (
                Finding(name="diagnosis", passed=not text, summary=summary, details=(text,) * bool(text)),
            )
        with plugin_call(environment, "findings"):
            given = await environment.findings(state, role, self.config.sandbox_slice)
        if not isinstance(given, (tuple, list)) or not all(isinstance(part, Finding) for part in given):
            refuse(environment, "findings", given, "return a tuple of coterie.Finding")
        return given

"""Roles of environment `code_collab`: aux and main; solver. Their base serves `code_tests` too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import PolicyFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.names import check_name
from coterie.plugins.envs.code.sources import answered_code
from coterie.plugins.envs.code.state import CodeObservation

FORM = "Answer with the code alone, in a block that starts with ```python and ends with ```."


class CodeRole(Plugin):
    """A role that writes code. Its prompt: the problem, what it made, the feedback, what to write."""

    class Config(PluginConfig):
        system: str | None = Field(None, description="System prompt; null: the built-in one; empty: none.")
        ask: str | None = Field(
            None, description="Last lines of the prompt: what to write; null: the built-in ones."
        )

    config: Config
    omits_task = True
    role: ClassVar[str] = ""
    """The name that the role must have in the team."""
    task: ClassVar[str] = ""
    """The built-in system prompt."""
    environment: ClassVar[str] = "code_collab"

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_name(build, self.role, self.environment)

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """A system message, where there is one, and a user message."""
        seen = role_input.observation
        parts = ["Problem:", seen.prompt.strip("\n"), ""] if role_input.shows_task else []
        parts += self.shown(seen)
        parts += [*role_input.feedback, ""] if role_input.feedback else []
        parts.append(self.asked(seen) if self.config.ask is None else self.config.ask)
        system = self.task if self.config.system is None else self.config.system
        user: Message = {"role": "user", "content": "\n".join(parts)}
        return [{"role": "system", "content": system}, user] if system else [user]

    def parse(self, text: str, observation: Any) -> str:
        """The code of an answer.

        Raises:
            PolicyFault: there is none.
        """
        code = answered_code(text)
        if not code.strip():
            raise PolicyFault("there is no code in the answer")
        return code

    def shown(self, seen: Any) -> Sequence[str]:
        """What the prompt shows of earlier answers, beside the feedback."""
        return ()

    def asked(self, seen: Any) -> str:
        """The built-in last lines of the prompt."""
        raise NotImplementedError


class CodeAux(CodeRole):
    """Writes the function `aux`, which helps the main role."""

    role = "aux"
    task = (
        "You write one helper function for a team of two that solves a programming problem. At the same time "
        "the main role writes the function that the problem asks for. It can call your function and does not "
        "see it."
    )

    def asked(self, seen: CodeObservation) -> str:
        return (
            f"Write only the function aux(...), which returns data that is of use to {seen.entry_point}: the "
            f"main role guesses its arguments and result from the problem, so choose the plainest. {FORM}"
        )


class CodeMain(CodeRole):
    """Writes the entry point, which may call `aux`."""

    role = "main"
    task = (
        "You write the main function for a team of two that solves a programming problem. At the same time "
        "the helper role writes a function aux(...), which you can call and do not see."
    )

    def asked(self, seen: CodeObservation) -> str:
        return (
            f"Write only the function {signature(seen)}. Call aux(...), use what it returns, and do the "
            f"rest of the work yourself. Don't define aux.{_limit(seen)} {FORM}"
        )


class CodeSolver(CodeRole):
    """Writes the entry point alone, with the same turns as a team."""

    role = "solver"
    task = "You solve a programming problem by writing one function."

    def asked(self, seen: CodeObservation) -> str:
        return f"Write the function {signature(seen)}.{_limit(seen)} {FORM}"


def signature(seen: Any) -> str:
    """The entry point with its parameters, as the prompt has them."""
    return f"{seen.entry_point}({seen.parameters})"


def _limit(seen: CodeObservation) -> str:
    if seen.size_limit is None:
        return ""
    return f" Without comments and docstring your code may have at most {seen.size_limit} characters."

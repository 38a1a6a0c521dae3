"""Roles of environment `math`: reasoner and tool; problem solver, code executor and verifier; solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.roles import CompactRole, ProseRole
from coterie.plugins.envs.common.code import output_lines, read_program
from coterie.plugins.envs.math import answers, compact
from coterie.plugins.envs.math.state import MathObservation, MathUtterance, unfinished

_BOXED = r"Write the final answer into \boxed{}."
_PROGRAM = (
    "Write one Python program into a block that starts with ```python and ends with ```. It can't be asked "
    "anything, and has to print what you want to know."
)


class MathRole(ProseRole, CompactRole):
    """A role of environment `math`. Its prompt: the problem, what was written before, what to write."""

    class Config(ProseRole.Config):
        system: str | None = Field(
            None, description="System prompt; null: the built-in one. Not in `compact`."
        )

    game = "math"

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message in the compact rendering; a system and a user message in prose.

        Raises:
            ConfigError: the compact rendering gets feedback, which it can't show.
        """
        if role_input.observation.rendering == "compact":
            return self.compact_messages(compact.prompt(role_input.observation), role_input.feedback)
        return super().render(role_input)

    def sections(self, seen: MathObservation, shows_task: bool) -> Sequence[Sequence[str]]:
        lines = (_lines(utterance, self.role) for utterance in seen.transcript)
        return [("Problem:", seen.problem), *lines, self.remarks(seen)]

    def parse(self, text: str, observation: Any) -> Any:
        """The answer; a program where one is asked for; in the compact rendering the message, digits joined.

        Raises:
            PolicyFault: the text holds nothing of the kind.
        """
        seen: MathObservation = observation
        if seen.rendering == "compact":
            return compact.read(text, seen.writes)
        return read_program(text) if seen.writes == "program" else answers.find(text)

    def remarks(self, seen: MathObservation) -> list[str]:
        """What is to be known of the messages before, after the last of them."""
        return []

    def asked(self, seen: MathObservation) -> str:
        return _PROGRAM if seen.writes == "program" else _BOXED


def _lines(utterance: MathUtterance, role: str) -> list[str]:
    """An earlier message in a prompt, with the output of its program."""
    who = "You" if utterance.role == role else f"The {utterance.role.replace('_', ' ')}"
    lines = [f"{who} wrote:", utterance.text.strip() or "(nothing)"]
    if utterance.run is not None:
        lines += ["", f"{'Your' if who == 'You' else 'Its'} program was run.", *output_lines(utterance.run)]
    return lines


class MathReasoner(MathRole):
    """Reasons in words; its answer is the team's."""

    role = "reasoner"
    task = (
        "You are the reasoner of a team of two that solves a problem of mathematics. You reason step by "
        "step; at the same time the tool writes a program. You see each other's work in the next turn, and "
        "the team is done when your answers agree. Yours is the team's answer."
    )


class MathTool(MathRole):
    """Writes a program that prints the answer."""

    role = "tool"
    task = (
        "You are the tool of a team of two that solves a problem of mathematics. You write a Python program "
        "that computes the answer; at the same time the reasoner reasons in words. You see each other's work "
        "in the next turn, and the team is done when your answers agree."
    )

    def asked(self, seen: MathObservation) -> str:
        return f"{_PROGRAM} The last line that it prints is your answer: the number or expression alone."


class MathProblemSolver(MathRole):
    """First of three: works the problem out in words."""

    role = "problem_solver"
    task = (
        "You are the problem solver, the first of a team of three that solves a problem of mathematics. The "
        "code executor and the verifier go on from your work. Reason step by step, and say what a program "
        "should compute or check."
    )


class MathCodeExecutor(MathRole):
    """Second of three: writes a program, and goes on from its output, or repairs one that did not finish."""

    role = "code_executor"
    task = (
        "You are the code executor, the second of a team of three that solves a problem of mathematics. You "
        "check the problem solver's work by a program. The verifier goes on from your work."
    )

    def asked(self, seen: MathObservation) -> str:
        repair = "Your program did not finish: repair it, or write another one. " if seen.repairs else ""
        if not seen.last:
            return f"{repair}{_PROGRAM} You see what it prints, and act once more."
        if repair:
            return f"{repair}{_PROGRAM} It is your last one: the verifier goes on from its output."
        return f"Say what the program's output means for the problem. {_BOXED}"


class MathVerifier(MathRole):
    """Last of three: weighs the work of both; its answer is the team's."""

    role = "verifier"
    task = (
        "You are the verifier, the last of a team of three that solves a problem of mathematics. Check the "
        "work of the problem solver and of the code executor, correct what is wrong, and give the team's "
        "answer."
    )

    def remarks(self, seen: MathObservation) -> list[str]:
        """That the last try of the code executor failed too."""
        run = unfinished(seen.transcript)
        return [f"The code executor's last program did not finish ({run.problem}), so no program has "
                "confirmed its work."] if run is not None else []  # fmt: skip


class MathSolver(MathRole):
    """Alone, with the same turns as a team."""

    role = "solver"
    task = (
        "You solve a problem of mathematics over several turns. In each you see what you wrote before; where "
        "programs are run, also the output of a ```python block. You are done when you give the same answer "
        "twice in a row."
    )

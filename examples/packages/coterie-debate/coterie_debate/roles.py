"""The prompts and parsers of the debaters and the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie import Message, Plugin, PolicyFault, RoleInput
from coterie_debate.game import ARGUMENTS, SIDES


def transcript(heard: Any) -> str:
    """The rounds in words: `pro source con rhetoric`."""
    return " ".join(f"pro {pro} con {con}" for pro, con in heard)


class Debater(Plugin):
    """Argues for its side, whether or not it is right."""

    def render(self, role_input: RoleInput) -> list[Message]:
        seen: Mapping[str, Any] = role_input.observation
        stance = "right" if seen["right"] else "wrong"
        return [
            {"role": "user", "content": f"{role_input.role} {stance} {transcript(seen['heard'])}".strip()}
        ]

    def parse(self, text: str, observation: Any) -> str:
        return _one_of(text, ARGUMENTS)


class Judge(Plugin):
    """Names the side that it takes to be right."""

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": f"judge {transcript(role_input.observation['heard'])}"}]

    def parse(self, text: str, observation: Any) -> str:
        return _one_of(text, SIDES)


def _one_of(text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        raise PolicyFault(f"{text[:20]!r} is not one of {', '.join(words)}")
    return text

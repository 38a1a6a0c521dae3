"""The environment of real_exactness.py: a role writes, and longer texts earn more."""

from __future__ import annotations

from typing import Any

from measuring import Count

from coterie import Plugin


class Writing(Count):
    """Scores what was written by its length, so that siblings differ."""

    def score(self, parsed: Any) -> float:
        return float(len(parsed))


class Writer(Plugin):
    """A role that sees the turn alone."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": role_input.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text

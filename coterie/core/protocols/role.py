"""The protocol of kind `role`: prompts and parsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Message, RoleInput


@runtime_checkable
class Role(Protocol):
    """A member of the team: writes prompts and parses answers."""

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """The messages of the prompt."""

    def parse(self, text: str, observation: Any) -> Any:
        """The action that a text means: the input of `Environment.step`.

        Raises:
            PolicyFault: the text means no action; the message becomes the fault's reason. Another exception
                is logged as the parser's bug. One that no text causes, such as a NameError, ends a run where
                every output of a step raised it.
        """


@runtime_checkable
class Remembers(Protocol):
    remembers: bool
    """Whether the role's earlier prompts and answers precede the rendered messages."""

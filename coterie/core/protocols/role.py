"""The protocol of kind `role`: how a prompt is written and an answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Message, RoleInput


@runtime_checkable
class Role(Protocol):
    """A seat: how a prompt is written and an answer is read."""

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """The messages of the prompt."""

    def parse(self, text: str, observation: Any) -> Any:
        """What the text means. Raise `PolicyFault` where it means nothing; the reason is kept."""

    # Optional: vocabulary() -> Iterable[str]; remembers: bool = True makes the prompt a conversation:
    # earlier prompts and answers of this role come before the rendered messages.

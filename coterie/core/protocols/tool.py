"""The protocol of kind `tool`: functions that a role calls within one action."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tool(Protocol):
    """A function that a role can call within one action."""

    name: str

    def find(self, text: str) -> Any | None:
        """The call in a completion without its thought, or None. Never raises, whatever the text."""

    async def run(self, call: Any) -> str:
        """The result of a call: the model's next message. Bad arguments and crashes are results too.

        Raises:
            SystemFault: a failure that the call did not cause; the scores of the action are missing.
            PolicyFault: a failure that the call caused and that ends the action.
        """

    # Optional:
    # - async open(), async close().
    # - schemas: function schemas, which the chat template then shows to the model (`Codec.with_tools`).

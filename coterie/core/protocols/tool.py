"""The protocol of kind `tool`: something a role may call inside one action."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tool(Protocol):
    """Something a role may call inside one action."""

    name: str

    def find(self, text: str) -> Any | None:
        """The call in the text, or None. The text is what is said, without thoughts; any text may come."""

    async def run(self, call: Any) -> str:
        """Its result, shown to the model as the next message. Raises SystemFault for what is not the call's
        doing; what is (bad arguments, a crash) is a result. PolicyFault ends the action: the floor."""

    # Optional: async open(), async close(); schemas: function schemas, which the policy's chat template then
    # tells the model (`Codec.with_tools`).

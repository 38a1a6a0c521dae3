"""The codec of a model that reads messages and writes text, behind an endpoint without token ids."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.backends.remote.answers import BYTES_PER_TOKEN
from coterie.core.types import Call, Message, Prompt

ROLES = ("system", "user", "assistant", "tool")
_MESSAGE = 1 << 40
"""The first id of a message is at least this: its role, and the bytes of its content."""


class TextCodec:
    """Packs text into ids without loss, so that an endpoint gets the messages that a role rendered.

    An id holds a few bytes of UTF-8, which nothing trains on: about as many ids as an English text has
    tokens, and of a completion exactly as many as the server counted. So limits and metrics in tokens hold,
    exactly for completions and roughly for prompts.

    Args:
        context: most tokens of prompt and completion, by the estimate; None: the endpoint refuses what is
            too long.
    """

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, context: int | None = None) -> None:
        self.context = context

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The ids of the messages; they never continue a call, because the endpoint reads messages."""
        ids: list[int] = []
        for message in messages:
            content = _bytes(message["content"])
            ids += (_MESSAGE * (1 + ROLES.index(message["role"])) + len(content), *_packed(content))
        return Prompt(ids=tuple(ids))

    def messages(self, ids: Sequence[int]) -> list[Message]:
        """The messages of a prompt's ids."""
        messages: list[Message] = []
        at = 0
        while at < len(ids):
            role, size = divmod(ids[at], _MESSAGE)
            count = -(-size // BYTES_PER_TOKEN)
            content = _unpacked(ids[at + 1 : at + 1 + count])
            messages.append({"role": ROLES[role - 1], "content": content})
            at += 1 + count
        return messages

    def completion(self, text: str, tokens: int) -> tuple[int, ...]:
        """The ids of a text that the server counts as so many tokens; some of them may hold nothing."""
        content = _bytes(text)
        return tuple(
            _id(content[len(content) * at // tokens : len(content) * (at + 1) // tokens])
            for at in range(tokens)
        )

    def decode(self, call: Call) -> str:
        """The text of a call."""
        return _unpacked(call.token_ids)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """The ids of an answer."""
        return _packed(_bytes(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _packed(content: bytes) -> tuple[int, ...]:
    return tuple(_id(content[at : at + BYTES_PER_TOKEN]) for at in range(0, len(content), BYTES_PER_TOKEN))


def _id(part: bytes) -> int:
    return int.from_bytes(b"\x01" + part, "big")


def _unpacked(ids: Sequence[int]) -> str:
    """The text of ids; the leading byte of each only says where it begins."""
    parts = (index.to_bytes((index.bit_length() + 7) // 8, "big")[1:] for index in ids)
    return b"".join(parts).decode("utf-8", "surrogatepass")

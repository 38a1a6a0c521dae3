"""What a remote call gives: an answer as a JSON table, with its usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, as the server counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    """Hidden reasoning included, where the server counts it."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a remote call."""

    body: dict[str, Any]
    usage: Usage | None = None
    """None: the server did not count."""
    version: str = ""
    """The version of the model that answered, where the server names it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a call may use, before it is sent."""

    usage: Usage
    """An estimate for the limits; `output_tokens` is the most that it may generate."""
    most_input: int
    """An upper bound of the prompt's tokens, for the budget."""

    @property
    def most(self) -> Usage:
        return Usage(self.most_input, self.usage.output_tokens)


BYTES_PER_TOKEN = 4
"""Of English text, for estimates."""
FORMAT_TOKENS = 16
"""Upper bound of a chat format's own tokens, per message."""


def expected(texts: list[str], most_output: int) -> Expected:
    """The expectation of a call with these messages: a token has at least one byte, and about four."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    around = FORMAT_TOKENS * (len(texts) + 1)
    return Expected(Usage(-(-size // BYTES_PER_TOKEN) + len(texts) * 4, most_output), size + around)

"""The input of an engine: messages, prompts, sampling settings and requests."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.types.keys import Key

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": ...}."""


def encodable(text: str) -> str:
    """The text with U+FFFD for what UTF-8 can't encode, lone surrogates: no tokenizer takes them."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of a role. The defaults sample from the whole distribution."""

    temperature: float = 1.0
    """0 is greedy, for evaluation only."""
    top_p: float = 1.0
    top_k: int = 0
    """0 disables it."""
    max_new_tokens: int = 64
    """Limit per call."""
    stop: tuple[str, ...] = ()
    """Strings that end a call, besides the tokenizer's end-of-turn tokens. Each must be a single token."""

    @property
    def filtered(self) -> bool:
        """Whether `top_p` or `top_k` removes tokens from the distribution."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation for an engine to run."""

    key: Key
    """Key of the call. Engines order a batch by it."""
    policy: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    """64 bits. All random draws of the call derive from it, in whichever batch it runs."""
    continues: bool = False
    """As in `Prompt`."""
    version: int | None = None
    """Version of the policy's weights that draws all tokens; None: the newest, as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """An encoded prompt."""

    ids: tuple[int, ...]
    continues: bool = False
    """Whether `ids` start with the previous call's prompt ids and sampled ids, verbatim."""
    thinking: bool = False
    """Whether the chat template opened a thought, which the completion then continues."""

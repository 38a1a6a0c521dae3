"""What engines are asked and what roles are told: messages, prompts, sampling settings, requests."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.types.keys import Key

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": ...}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a role's tokens are drawn. The defaults truncate nothing (invariant 4)."""

    temperature: float = 1.0
    """0 means greedy (evaluation only)."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    """Strings that end a call besides the tokenizer's end-of-turn tokens; each must be one token."""

    @property
    def filtered(self) -> bool:
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an engine is asked."""

    key: Key
    """Of the call; orders rows of a batch and keys the randomness."""
    policy: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    """64-bit; every draw of this call derives from it, whatever the batch."""
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids of a prompt."""

    ids: tuple[int, ...]
    continues: bool = False
    """The ids start with the previous call's prompt and sampled ids, verbatim."""
    thinking: bool = False
    """The template opened a thought: the completion goes on with it."""

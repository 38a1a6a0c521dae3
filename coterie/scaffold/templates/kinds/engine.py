"""An engine: what generates tokens, for all policies of a run.

A table of logits: the row of everything written so far gives the next word. The weights are a dict from
contexts (token ids) to rows of logits; a context without a row draws each word with the same probability.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from coterie import (
    Call,
    Codec,
    ConfigError,
    EngineContext,
    Plugin,
    Register,
    Request,
    Weights,
    hookimpl,
    uniforms,
)


def word_id(word: str) -> int:
    """The token of a word. 0 is `<eos>`, which ends an answer."""
    return crc32(word.encode()) if word != "<eos>" else 0


class ExampleNameTokenizer:
    """Words as tokens: as much of a Hugging Face tokenizer as chat formats use."""

    eos_token, eos_token_id = "<eos>", 0
    bos_token = bos_token_id = unk_token_id = chat_template = None
    all_special_ids = (0,)
    added_tokens_decoder: Mapping[int, Any] = {}

    def __init__(self) -> None:
        self.words = {0: "<eos>"}

    def __len__(self) -> int:
        return 2**32

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        words = text.split()
        self.words.update({word_id(word): word for word in words})
        return [word_id(word) for word in words]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **options: Any) -> str:
        return " ".join(self.words.get(token, "<unk>") for token in ids if token or not skip_special_tokens)


class ExampleNameEngine(Plugin):
    """Draws words of the environment's and the roles' vocabulary, one token a word."""

    async def open(self, ctx: EngineContext) -> None:
        tokenizer = ExampleNameTokenizer()
        words = {word for text in ctx.vocabulary for word in text.split()}
        self.tokens = [0, *sorted(set(tokenizer.encode(" ".join(words))))]
        self.chat = ctx.chat.codec(tokenizer, None)  # the run's chat format makes prompts and reads answers
        self.loaded: dict[str, Weights] = {}

    def codec(self, policy: str) -> Codec:
        return self.chat

    # Called after every update of a policy. The trainer owns the weights: copy what it may still change.
    async def load_weights(self, weights: Weights) -> None:
        self.loaded[weights.policy] = weights

    # Calls overlap. A request gets the same tokens in whatever order and company it comes, so every draw is
    # of its own seed. SystemFault: the engine failed, and what depends on the call is missing.
    async def generate(self, request: Request) -> Call:
        weights, sampling = self.loaded[request.policy], request.sampling
        if sampling.filtered or sampling.stop:
            raise ConfigError(
                "this engine has no top_p, top_k and stop", path="sampler.sampling", fix="leave them out"
            )
        drawn: list[int] = []
        logprobs: list[float] = []
        seeds = np.array([request.seed % 2**64], dtype=np.uint64)
        while len(drawn) < sampling.max_new_tokens and 0 not in drawn:
            row = (weights.module or {}).get((*request.prompt_ids, *drawn), np.zeros(len(self.tokens)))
            scaled = row / (sampling.temperature or 1.0)  # 0 is greedy, with the log-probs of temperature 1
            scaled = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
            below = np.exp(scaled).cumsum() <= uniforms(seeds, len(drawn))[0]
            column = min(int(below.sum()), len(row) - 1) if sampling.temperature else int(row.argmax())
            drawn.append(self.tokens[column])
            logprobs.append(min(float(scaled[column]), 0.0))
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=tuple(drawn),
            logprobs=tuple(logprobs),
            version=weights.version,
            finish="stop" if drawn[-1] == 0 else "length",
            continues=request.continues,
        )

    async def close(self) -> None:
        pass


@hookimpl
def register_engines(register: Register) -> None:
    register("example_name", ExampleNameEngine)

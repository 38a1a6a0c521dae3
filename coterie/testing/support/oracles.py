"""An engine that lets a script write a share of a model's answers, so that a tiny model's team meets every
level of a reward: for smoke runs and tests, never for results."""

from __future__ import annotations

import random
from collections.abc import Callable

from pydantic import Field

from coterie.backends.engines.hf import HFEngine
from coterie.core.types import Call, Request
from coterie.plugins.functions import FunctionReference, load_function

Script = Callable[[Request, str, random.Random], str]
"""(request, text of the prompt, a generator keyed by the request) -> answer."""


class OracleEngine(HFEngine):
    """Engine `hf`, of whose answers a script writes a share.

    Which answers, and what the script draws, is keyed by the request's seed. The log-probabilities of the
    script's tokens are 0, and not those of the model.
    """

    class Config(HFEngine.Config):
        play: FunctionReference = Field(description="`module:function` (request, prompt, random) -> answer.")
        share: float = Field(0.75, ge=0, le=1, description="Of the answers.")

    config: Config

    def __init__(self, config: Config | None = None, build: object = None) -> None:
        super().__init__(config, build)
        self._play: Script = load_function(self.config.play, "engine.play")

    async def generate(self, request: Request) -> Call:
        """The script's answer, cut at the request's limit, or the model's."""
        draws = random.Random(request.seed)
        if draws.random() >= self.config.share:
            return await super().generate(request)
        self._row(request)  # refuses what the model would refuse
        codec = self.codec(request.policy)
        text = self._play(request, codec.decode(_of_prompt(request)), draws)
        ids = codec.encode_completion(text)
        limit = min(request.sampling.max_new_tokens, self._room(request))
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=ids[:limit],
            logprobs=(0.0,) * len(ids[:limit]),
            version=self.served.at(request.policy, request.version).version,
            finish="stop" if len(ids) <= limit else "length",
            continues=request.continues,
        )

    def _room(self, request: Request) -> int:
        return max(1, self.served.at(request.policy, request.version).context - len(request.prompt_ids))


def _of_prompt(request: Request) -> Call:
    """The prompt as a call, so that a codec can decode it."""
    ids = request.prompt_ids
    return Call(prompt_ids=(), token_ids=ids, logprobs=(0.0,) * len(ids), version=0, finish="length")

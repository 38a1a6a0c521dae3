"""The fields of a request that the engine sets itself: `engine.fields`, `engine.omit` can't change them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from coterie.backends.remote.request_fields import LIMITS, further_fields, omitted_fields

_LIMIT = "set sampler.sampling.max_new_tokens; engine.limit_field chooses the limit's name"
_BRANCHES = "set sampler.branches: each branch is a request of its own, with a seed of its own"
_MESSAGES = "the prompts of team.roles make it"
_TEXT = "remove it: the engine reads a whole answer at once"
_LOGPROBS = "remove it; engine.api=completions asks for token ids and their log-probs"
SET_BY_ENGINE = {
    "model": "set policies.NAME.model",
    "messages": _MESSAGES,
    "prompt": _MESSAGES,
    **dict.fromkeys((*LIMITS, "max_output_tokens", "max_new_tokens"), _LIMIT),
    **dict.fromkeys(("n", "best_of", "use_beam_search"), _BRANCHES),
    **{name: f"set sampler.sampling.{name}" for name in ("temperature", "top_p", "top_k", "stop")},
    "seed": "set seed, the run's: every request has a seed of its own from it",
    **dict.fromkeys(("stream", "stream_options", "echo"), _TEXT),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"), _LOGPROBS),
}
"""Field -> the setting that is meant instead."""
NEEDED = ("model", "messages", "prompt", "return_token_ids")
"""Fields without which there is no answer that the engine can read."""


def _further(fields: Any, info: ValidationInfo) -> Any:
    return further_fields(fields, info, SET_BY_ENGINE, "the engine")


def _omitted(names: Any, info: ValidationInfo) -> Any:
    return omitted_fields(names, info, NEEDED, "engine.limit_field")


Fields = Annotated[dict[str, Any], BeforeValidator(_further)]
"""Further fields of a request's body."""
Omitted = Annotated[list[str], BeforeValidator(_omitted)]
"""Names of fields that are left out of a request's body."""

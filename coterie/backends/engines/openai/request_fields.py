"""The fields of a request that the engine sets itself: `engine.fields`, `engine.omit` can't change them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from coterie.backends.remote.secrets import NOT_REPEATED, holds_key, path_of
from coterie.core.errors import ConfigError

_LIMIT = "set sampler.sampling.max_new_tokens; engine.limit_field chooses the limit's name"
_BRANCHES = "set sampler.branches: each branch is a request of its own, with a seed of its own"
_MESSAGES = "the prompts of team.roles make it"
_KEY = "set api_key: ${NAME}, or a header with ${NAME}"
_TEXT = "remove it: the engine reads a whole answer at once"
_LOGPROBS = "remove it; engine.api=completions asks for token ids and their log-probs"
SET_BY_ENGINE = {
    "model": "set policies.NAME.model",
    "messages": _MESSAGES,
    "prompt": _MESSAGES,
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"), _LIMIT),
    **dict.fromkeys(("n", "best_of", "use_beam_search"), _BRANCHES),
    **{name: f"set sampler.sampling.{name}" for name in ("temperature", "top_p", "top_k", "stop")},
    "seed": "set seed, the run's: every request has a seed of its own from it",
    **dict.fromkeys(("stream", "stream_options", "echo"), _TEXT),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"), _LOGPROBS),
}
"""Field -> the setting that is meant instead."""
NEEDED = ("model", "messages", "prompt", "return_token_ids")
"""Fields without which there is no answer that the engine can read."""
LIMITS = ("max_tokens", "max_completion_tokens")
_CREDENTIAL = re.compile(r"(x[-_])?api[-_]?key|authorization|password|secret|(access|auth)[-_]token", re.I)

_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
"""An id, as `user` and `prompt_cache_key` may be."""


def _further(fields: Any, info: ValidationInfo) -> Any:
    """Accept fields that the engine doesn't set. An error never repeats a value: it may be a key."""
    path = path_of(info, "fields")
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError("fields is a table of field names and values", path=path, why=NOT_REPEATED)
    for name, value in (fields or {}).items():
        lower = str(name).strip().lower()
        if lower in SET_BY_ENGINE:
            raise ConfigError(
                f"the engine sets the field '{name}' itself",
                path=f"{path}.{name}",
                why="a second value would override the run's settings, and the budget's bound with them",
                fix=SET_BY_ENGINE[lower],
            )
        if _holds_key({name: value}):
            where = path if holds_key(str(name)) else f"{path}.{name}"
            raise ConfigError("a field of the request holds a key", path=where, why=NOT_REPEATED, fix=_KEY)
    return fields


def _holds_key(value: Any) -> bool:
    """Whether a JSON value has a text in the form of a key, or a table with a key by its name."""
    if isinstance(value, Mapping):
        named = any(_CREDENTIAL.fullmatch(str(name).strip()) for name in value)
        return named or any(map(_holds_key, [*map(str, value), *value.values()]))
    if isinstance(value, list):
        return any(map(_holds_key, value))
    return isinstance(value, str) and holds_key(_UUID.sub("", value))


def _omitted(names: Any, info: ValidationInfo) -> Any:
    for name in names if isinstance(names, list) else ():
        if name in NEEDED:
            raise ConfigError(
                f"a request without the field '{name}' has no answer",
                path=path_of(info, "omit"),
                fix=f"remove {name} from the list",
            )
        if name in LIMITS:
            raise ConfigError(
                "a request without a limit may generate, and cost, more than was reserved for it",
                path=path_of(info, "omit"),
                fix="set engine.limit_field=max_completion_tokens where the endpoint refuses max_tokens",
            )
    return names


Fields = Annotated[dict[str, Any], BeforeValidator(_further)]
"""Further fields of a request's body."""
Omitted = Annotated[list[str], BeforeValidator(_omitted)]
"""Names of fields that are left out of a request's body."""

"""What engines for language models share: the checks of a request, and their codecs without their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from coterie.core.protocols import Codec, EngineContext
    from coterie.core.types import Request


class TensorCodecs:
    """A base of engines that play models with a tokenizer: their codecs, without the models."""

    async def codecs(self, ctx: EngineContext) -> dict[str, Codec]:
        """By policy: the codec of its tokenizer, bounded by its context; without those that can't be read."""
        from coterie.backends.models.policy import of_tensors
        from coterie.backends.models.sizes import blueprint

        made: dict[str, Codec] = {}
        for name, config in of_tensors(ctx.policies).items():
            try:
                known = blueprint({name: config}, vocabulary=ctx.vocabulary)
            except UserError:
                continue
            if known.tokenizer is not None:
                made[name] = ctx.chat.codec(known.tokenizer, known.contexts[name])
        return made


def config_path(request: Request) -> str:
    """The path of the configuration that a faulty prompt is reported at."""
    return f"team.roles.{request.key.role}" if request.key.role else f"policies.{request.policy}"


def checked_limit(request: Request, context: int) -> int:
    """Most tokens to draw, at least 1: prompt and limit together fit the context.

    Raises:
        ConfigError: the prompt is empty, or leaves no room for a token.
    """
    length, path = len(request.prompt_ids), config_path(request)
    if length == 0:
        raise ConfigError(
            "the prompt is empty: there is nothing to continue",
            path=path,
            fix="make the role render some text",
        )
    if length >= context:
        raise ConfigError(
            f"prompt of {length} tokens does not fit the context of {context} tokens",
            path=path,
            why="a prompt and at least one new token must fit",
            fix="shorten what the role renders (history, observation), use a longer context, or set "
            "team.overflow=floor or truncate_oldest",
        )
    return max(1, min(request.sampling.max_new_tokens, context - length))


class StopTokens:
    """The tokens that end a policy's answers: its codec's, and the request's stop strings.

    Args:
        codec: gives a policy's codec.
        tokenizers: by policy; a policy's is there once its codec is.
    """

    def __init__(self, codec: Callable[[str], Codec], tokenizers: Mapping[str, Any]) -> None:
        self._codec, self._tokenizers = codec, tokenizers
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    def of(self, request: Request) -> tuple[int, ...]:
        """The ids, sorted.

        Raises:
            ConfigError: a stop string is not one token.
        """
        policy, strings = request.policy, request.sampling.stop
        if (policy, strings) not in self._known:
            ids = set(self._codec(policy).stop_ids)
            path = config_path(request)
            ids |= {stop_token(string, self._tokenizers[policy], policy, path) for string in strings}
            self._known[policy, strings] = tuple(sorted(ids))
        return self._known[policy, strings]


def stop_token(string: str, tokenizer: Any, policy: str, path: str) -> int:
    """The token of a stop string.

    Args:
        path: of the role that stops on it, for the message.

    Raises:
        ConfigError: it is not one token.
    """
    token_ids = tokenizer.encode(string, add_special_tokens=False)
    if len(token_ids) != 1 or token_ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"the stop string {string!r} is not one token of policy '{policy}'",
            path="sampler.sampling.stop",
            why=f"{path} stops on it; it becomes {tokenizer.convert_ids_to_tokens(token_ids)}",
            fix="stop on a string that is one token, or cut the text in the role's parser",
        )
    return int(token_ids[0])

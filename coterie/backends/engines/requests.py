"""What engines for language models share: codecs, stop tokens, checks of a request, warnings."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import Plugin
from coterie.core.types import Call, Request

if TYPE_CHECKING:
    from coterie.core.protocols import Codec, EngineContext

log = logging.getLogger("coterie")


class TensorEngine(Plugin):
    """Base of the engines that play models with a tokenizer: their codecs, stop tokens and warnings.

    An engine sets `_context` and `_configs` in `open`, and `_tokenizers` where weights bring one.
    """

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._context: EngineContext | None = None
        self._configs: dict[str, Any] = {}
        """By policy: its table."""
        self._codecs: dict[str, Codec] = {}
        self._tokenizers: dict[str, Any] = {}
        self._stops: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
        """By policy and stop strings: the tokens that end an answer."""
        self._warned: set[str] = set()

    @property
    def _opened(self) -> EngineContext:
        if self._context is None:
            raise RuntimeError("the engine is not open")
        return self._context

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

    def codec(self, policy: str) -> Codec:
        """The policy's codec; available before the weights are loaded."""
        if policy not in self._codecs:
            from coterie.backends.models.loading import load_tokenizer

            ctx, config = self._opened, self._configs[policy]
            if policy not in self._tokenizers:
                self._tokenizers[policy] = load_tokenizer(config, policy=policy, vocabulary=ctx.vocabulary)
            self._codecs[policy] = ctx.chat.codec(self._tokenizers[policy], self._length_of(policy))
        return self._codecs[policy]

    def _length_of(self, policy: str) -> int | None:
        """The policy's longest context in tokens; None: no weights say it yet."""
        raise NotImplementedError

    def stops_of(self, request: Request) -> tuple[int, ...]:
        """`stop_ids` of a request. Raises as that does."""
        policy, strings = request.policy, request.sampling.stop
        if (policy, strings) not in self._stops:
            codec = self.codec(policy)  # first: it loads the tokenizer
            self._stops[policy, strings] = stop_ids(request, codec, self._tokenizers[policy])
        return self._stops[policy, strings]

    def _warn_once(self, warning: str) -> None:
        """Log each warning once, although weights are loaded repeatedly."""
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning("%s", warning)


def call_of(
    request: Request,
    version: int,
    token_ids: tuple[int, ...],
    logprobs: tuple[float, ...],
    finish: Literal["stop", "length", "abort"],
    version_runs: tuple[tuple[int, int], ...] = (),
) -> Call:
    """The call of a request, by what an engine drew for it; see `Call` for the values."""
    return Call(
        prompt_ids=request.prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs,
        version=version,
        finish=finish,
        continues=request.continues,
        version_runs=version_runs,
    )


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


def stop_ids(request: Request, codec: Codec, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end a request's answer, sorted: the codec's, and those of its stop strings.

    Raises:
        ConfigError: a stop string is not one token.
    """
    ids = set(codec.stop_ids)
    for string in request.sampling.stop:
        token_ids = tokenizer.encode(string, add_special_tokens=False)
        if len(token_ids) != 1 or token_ids[0] == tokenizer.unk_token_id:
            raise ConfigError(
                f"the stop string {string!r} is not one token of policy '{request.policy}'",
                path="sampler.sampling.stop",
                why=f"{config_path(request)} stops on it; it becomes "
                f"{tokenizer.convert_ids_to_tokens(token_ids)}",
                fix="stop on a string that is one token, or cut the text in the role's parser",
            )
        ids.add(int(token_ids[0]))
    return tuple(sorted(ids))


def on_device(device: Any) -> str:
    """What to warn of where an engine in the run's process generates on this torch device, the trainer's too.

    Returns:
        "" where they don't get into each other's way: a CPU with a core for each thread of both.
    """
    return on_gpus([device.index or 0]) if device.type == "cuda" else _on_cores()


def on_gpus(gpus: Sequence[int]) -> str:
    """What to warn of where both compute on these GPUs."""
    which = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
    return (
        f"schedule.max_staleness: generation and updates share {which}: each slows the other down, so that a "
        "step takes about as long as both one after the other, and the memory must hold both. What still "
        "overlaps is the waiting of episodes for environments, tools and judges. Give the engine a GPU of "
        "its own (engine.type=vllm, engine.process=own, engine.devices), or set schedule.max_staleness=0"
    )


def _on_cores() -> str:
    """Threads of both, as OpenMP has them, beside the cores."""
    import torch

    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if 2 * threads <= cores:
        return ""
    return (
        f"schedule.max_staleness: the engine generates while the trainer updates, each with {threads} "
        f"threads, on {cores} cores: threads that wait in turn make both several times slower. Set "
        f"OMP_NUM_THREADS={max(cores // 2, 1)} in the shell that starts the run"
    )

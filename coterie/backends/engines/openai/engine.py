"""The engine of models behind an endpoint with OpenAI's protocol, for frozen policies and evaluations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.backends.engines.openai.settings import OpenAIConfig, RemotePolicy, check_remote
from coterie.backends.engines.requests import call_of
from coterie.backends.models.policy import declared
from coterie.backends.remote.answers import BYTES_PER_TOKEN, Answer, Expected, Usage, expected
from coterie.backends.remote.calls import RemoteCalls
from coterie.backends.remote.openai_wire import client_of, completion_of, posted, sent_message
from coterie.backends.remote.secrets import key_of, secrets_in
from coterie.core.plugins import Plugin
from coterie.core.types import Call, Message, Prompt, Request, Sampling, Weights

if TYPE_CHECKING:
    from coterie.core.protocols import Codec, EngineContext

log = logging.getLogger("coterie")
SEEDS = 1 << 63
"""Seeds are sent as non-negative 64-bit integers."""
ROLES = ("system", "user", "assistant", "tool")
_MESSAGE = 1 << 40
"""The first id of a message is at least this: its role, and the bytes of its content."""


class MessageCodec:
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


class OpenAIEngine(Plugin):
    """Sends each request to an endpoint; see `docs/remote.md`.

    `chat`: the role's messages go to /chat/completions as they are, and text comes back, whose ids and
    log-probs (0) are stand-ins: nothing can be trained on them. `completions`: token ids go to /completions
    and come back with their log-probs.

    Requests with different seeds are different samples. A greedy request has no seed, so that equal ones are
    sent once. Whether the endpoint follows a seed is its own matter; the cache repeats its answers in any
    case.
    """

    Config = OpenAIConfig
    Policy = RemotePolicy
    config: OpenAIConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._path = str(build.path) if build is not None else "engine"
        self._folder: Path | None = None
        self._client: Any = None
        self._calls: RemoteCalls | None = None
        self._policies: dict[str, RemotePolicy] = {}
        self._codecs: dict[str, Codec] = {}
        self._versions: dict[str, int] = {}

    def use_run_folder(self, folder: Path) -> None:
        """Store the cache, the budget and the usage in a run's folder; called before `open`."""
        self._folder = folder

    async def open(self, ctx: EngineContext) -> None:
        """Make the client; nothing is sent yet.

        Raises:
            ConfigError: a policy that an endpoint can't play, or a key that is not set.
            UserError: the database of the cache does not work where it has to.
            MissingExtra: the SDK is not installed.
        """
        settings = self.config
        for name, policy in ctx.policies.items():
            check_remote(policy, f"policies.{name}", settings.api)
        self._policies = declared(ctx.policies, RemotePolicy)
        for name, policy in self._policies.items():
            self._codecs[name] = self._codec(name, policy, ctx)
        key = None if settings.key is None else key_of(settings.key, f"{self._path}.api_key")
        if settings.api_key is None and "api_key" in settings.model_fields_set:
            log.warning(
                "%s.api_key is empty: %s; name a variable, ${NAME}, or remove the setting",
                self._path, "no key is sent" if key is None else f"{settings.key} is used",
            )  # fmt: skip
        headers = secrets_in(settings.headers, f"{self._path}.headers")
        url = secrets_in({"base_url": settings.url}, self._path)["base_url"]
        self._client = client_of(url, key, headers, "engine=openai")
        self._calls = RemoteCalls(settings, endpoint=url, name="engine", path=self._path, folder=self._folder)
        await self._calls.open(
            {str(policy.model): f"policies.{name}.model" for name, policy in self._policies.items()}
        )

    async def close(self) -> None:
        """Let the requests that were sent finish, and log what all have used."""
        if self._calls is not None:
            await self._calls.close()
            self._calls = None
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def load_weights(self, weights: Weights) -> None:
        """Note the version: the weights are the endpoint's own."""
        self._versions[weights.policy] = weights.version

    def codec(self, policy: str) -> Codec:
        return self._codecs[policy]

    async def codecs(self, ctx: EngineContext) -> dict[str, Codec]:
        policies = declared(ctx.policies, RemotePolicy)
        return {name: self._codec(name, policy, ctx) for name, policy in policies.items()}

    async def generate(self, request: Request) -> Call:
        """Generate one call.

        Raises:
            SystemFault: no answer after all attempts, or one that can't be used.
            UserError: a wrong key, an unknown model, or a spent budget: the run stops.
        """
        calls, policy = self._calls, self._policies[request.policy]
        if calls is None:
            raise RuntimeError("the engine is not open")
        api, sampling, codec = self._api(policy), request.sampling, self._codecs[request.policy]
        body: dict[str, Any] = {"model": str(policy.model), **self._sampling(sampling, request.seed, api)}
        if isinstance(codec, MessageCodec):
            messages = codec.messages(request.prompt_ids)
            body["messages"] = [sent_message(message) for message in messages]
            most = expected([message["content"] for message in messages], sampling.max_new_tokens)
        else:
            count = len(request.prompt_ids)
            body |= {"prompt": list(request.prompt_ids), "return_token_ids": True, "logprobs": 0}
            most = Expected(Usage(count, sampling.max_new_tokens), count)
        body |= self.config.fields
        table = {"api": api, **body, "sample": request.seed if sampling.temperature > 0 else None}
        for name in self.config.omit:
            body.pop(name, None)
        send = partial(posted, self._client, api, body, self._path, f"policies.{request.policy}.model")
        return self._call(request, codec, api, await calls.call(table, send, most))

    # --------------------------------------------------------------------------------------- its parts

    def _api(self, policy: RemotePolicy) -> str:
        if self.config.api != "auto":
            return self.config.api
        return "chat" if policy.tokenizer is None else "completions"

    def _codec(self, name: str, policy: RemotePolicy, ctx: EngineContext) -> Codec:
        context = getattr(policy, "context", None)
        if self._api(policy) == "chat":
            return MessageCodec(context)
        from coterie.backends.models.loading import load_tokenizer

        source = policy.model_copy(update={"model": policy.tokenizer or policy.model})
        tokenizer = load_tokenizer(source, policy=name, vocabulary=ctx.vocabulary)
        return ctx.chat.codec(tokenizer, context)

    def _sampling(self, sampling: Sampling, seed: int, api: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            self.config.limit_field if api == "chat" else "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "n": 1,
        }
        if sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            fields["top_k"] = sampling.top_k
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        if sampling.temperature > 0:
            fields["seed"] = seed % SEEDS
        return fields

    def _call(self, request: Request, codec: Codec, api: str, answer: Answer) -> Call:
        completion, limit = completion_of(answer.body, api), request.sampling.max_new_tokens
        ids, logprobs = completion.token_ids, completion.logprobs
        if isinstance(codec, MessageCodec):
            counted = answer.usage.output_tokens if answer.usage is not None else 0
            if not counted:
                whole = len(codec.encode_completion(completion.text))
                counted = limit if completion.finish == "length" else max(1, whole)
            ids = codec.completion(completion.text, max(1, min(counted, limit)))
            logprobs = (0.0,) * len(ids)
        return call_of(request, self._versions.get(request.policy, 0), ids, logprobs, completion.finish)

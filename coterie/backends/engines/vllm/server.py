"""The interface between the engine `vllm` and one running vLLM; imports neither vLLM nor torch at its top.

A server is one vLLM with the weights of one base model: in this process (`in_process`) or in processes of its
own. `base.make_servers` chooses the class by the settings, and the engine treats all of them alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from coterie.core.errors import SystemFault, UserError


class ServerLost(SystemFault):
    """The server can't go on: its process died, or a sync left it half-way. `restart` revives it."""

    @property
    def sent_cause(self) -> BaseException | None:
        """What caused it, for another process: in a class without vLLM, which that process never imports."""
        cause = self.__cause__
        if cause is None or type(cause).__name__ == "EngineDeadError":
            return None
        known = isinstance(cause, UserError | SystemFault)
        return cause if known else RuntimeError(f"{type(cause).__name__}: {cause}")


class Adapter(NamedTuple):
    """One version of a policy's LoRA adapter, in PEFT's format on a disk that the server reads."""

    name: str
    """Unique per version, e.g. `planner@7`."""
    id: int
    """Unique per version, from 1."""
    path: str
    """Its folder: `adapter_config.json` and `adapter_model.safetensors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How the tokens of one request are drawn."""

    seed: int
    """64 bits. All draws of the request derive from it, whatever else is in the batch."""
    limit: int
    """Most tokens to draw, at least 1; prompt and limit together fit the context."""
    stops: tuple[int, ...] = ()
    """Tokens that end the request; the stop token is part of the output."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0


class VersionSpan(NamedTuple):
    """The tokens [start, stop) of an output, which one version of the base weights drew."""

    version: int
    start: int
    stop: int


class Output(NamedTuple):
    """The result of a request."""

    token_ids: tuple[int, ...]
    """The stop token included."""
    logprobs: tuple[float, ...]
    """Under the whole distribution at the sampling temperature (greedy: at temperature 1)."""
    finish: Literal["stop", "length", "abort"]
    spans: tuple[VersionSpan, ...]
    """In order; several where a sync came between two tokens. Versions are those of the base weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What a server is made from; picklable."""

    name: str
    """Of the base, for messages: the first policy that plays on it."""
    model: str
    """A folder with `config.json`, or a hub id."""
    revision: str | None = None
    """Of a hub id."""
    stored: bool = False
    """Whether `model` has the weights. False: they are random until the first `sync`."""
    dtype: str = "float32"
    context: int = 512
    """Longest prompt plus completion, in tokens."""
    tied: bool = False
    """Whether the model's head is its embedding."""
    adapters: int = 0
    """Most adapters of one batch, versions counted; 0: the server takes none."""
    adapter_rank: int = 0
    """Largest rank, one that vLLM knows (`settings.RANKS`); 0 without adapters."""
    beside_updates: bool = False
    """Whether the trainer updates while requests are in flight (`schedule.max_staleness`)."""
    share: float = 1.0
    """Share of the settings' memory that this server may take: one of N servers on a device has 1/N."""
    replica: int = 0
    ways: Mapping[str, str] | None = None
    """Where a process elsewhere sends the base weights itself: how, by replica; others get them through Ray's
    object store. None: they are given to `sync`."""
    outside: str = ""
    """How a process elsewhere sends the weights to this server: `nccl` or `ipc`; "": none does."""
    settings: Any = field(default=None)
    """The engine's `VLLMConfig`."""

    @property
    def who(self) -> str:
        """The server, for messages."""
        return f"the vLLM of '{self.name}'"

    @property
    def log(self) -> str:
        """Whose log has the output of its processes."""
        return f"vllm-{self.name}-{self.replica}"


class Outside:
    """Stands, as the tensors of `VLLMServer.sync`, for those that another process sends to vLLM itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        """Set once vLLM can take them."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def sent(self) -> None:
        """Wait until vLLM has all of them.

        Raises:
            Exception: what `end` was given.
        """
        self.begun.set()
        await self._ended

    def end(self, error: BaseException | None) -> None:
        """They were sent, or that failed."""
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


class VLLMServer(Protocol):
    """One vLLM. All methods are called on the event loop; none blocks it."""

    async def open(self) -> None:
        """Start. Raises UserError where the settings or the machine don't allow it."""

    async def generate(self, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None) -> Output:
        """Draw for one request, which joins the running batch at once. A cancelled call is aborted.

        Raises:
            ServerLost: the server died before the last token.
            SystemFault: the request failed, and the server goes on.
        """

    async def add_adapter(self, adapter: Adapter) -> None:
        """Load an adapter; requests may name it from then on. Raises SystemFault if vLLM refuses it."""

    async def remove_adapter(self, adapter_id: int) -> None:
        """Forget an adapter; no request in flight uses it. Nothing happens where it isn't loaded."""

    async def sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace all base weights; no later request reads keys and values of the old ones.

        Requests in flight go on with the new weights; their outputs have several spans. Their keys and values
        are computed again, or with `kv: keep` stay those of the old weights.

        Args:
            named_tensors: every tensor by its name in a checkpoint, once (no second name of a tied tensor);
                read to the end before `sync` returns. Names and shapes have been checked. Replicas that
                get the same weights at the same time get the same object.

        Raises:
            ServerLost: the sync failed half-way; `alive` is False until `restart`.
        """

    async def restart(self) -> None:
        """Start again as `open` does, without adapters; requests in flight raise ServerLost."""

    async def close(self) -> None:
        """Stop; requests in flight raise ServerLost. A second call does nothing."""

    async def sleep(self) -> None:
        """Free device memory: weights go to the host's, the KV cache is forgotten. Requests have ended."""

    async def wake(self) -> None:
        """Undo `sleep`."""

    @property
    def alive(self) -> bool: ...

    @property
    def output(self) -> str:
        """Where to read what it prints, for a message: `see ` and this."""

    @property
    def version(self) -> int:
        """Of the base weights that it has; -1: no sync sent them."""


def sampling_params(params: Params) -> Any:
    """vLLM's `SamplingParams`, with every field that a model's folder could set."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=0.0,
        seed=params.seed % 2**63,  # torch's generators take no more, and -1 means no seed to vLLM
        max_tokens=params.limit,
        stop_token_ids=list(params.stops),
        ignore_eos=True,  # the stops are the whole truth
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def prompt(ids: tuple[int, ...], salt: int | None) -> dict[str, Any]:
    """vLLM's `TokensPrompt`.

    Args:
        salt: the number of syncs before the request, where old keys and values may be in the prefix cache
            (`engine.kv: keep`): it enters the hash of a prompt's first block, and so of all its blocks, which
            no prompt of another number finds then. A version may come twice; this number doesn't. None:
            every sync empties the cache.

    A request that vLLM preempts, or starts after the sync that it was sent before, may find the blocks of
    requests with its number: those of the weights that it was sent to, which is what `keep` is.
    """
    tokens: dict[str, Any] = {"prompt_token_ids": list(ids)}
    return tokens if salt is None else {**tokens, "cache_salt": str(salt)}


def lora_request(adapter: Adapter | None) -> Any:
    """vLLM's `LoRARequest`; None: the base alone."""
    from vllm.lora.request import LoRARequest

    return None if adapter is None else LoRARequest(adapter.name, adapter.id, adapter.path)


def output(result: Any) -> Output:
    """The output of a finished request."""
    completion = result.outputs[0]
    spans = tuple(
        VersionSpan(version_number(span.version), span.start, span.end)
        for span in completion.weight_versions or ()
    )
    finish = completion.finish_reason
    return Output(
        tuple(completion.token_ids),
        tuple(completion.logprobs.logprobs) if completion.logprobs is not None else (),
        finish if finish in ("stop", "length") else "abort",
        spans,
    )


def version_number(label: str) -> int:
    """The version behind vLLM's label of it; -1: weights that no sync sent."""
    return int(label) if label.lstrip("-").isdigit() else -1


T = TypeVar("T")


def weight_call(llm: Any, call: str, argument: Any) -> Awaitable[Any]:
    """One of the calls to an `AsyncLLM` (docs.vllm.ai/en/latest/training/weight_transfer).

    Args:
        call: `init`, `start`, `update` (once or more), `finish`.
        argument: the dictionary of `init` and `update`; the version of `finish`, or None.
    """
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
    from vllm.distributed.weight_transfer.clients import _json_safe_update_payload

    work: Awaitable[Any]
    if call == "init":
        work = llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=argument))
    elif call == "start":
        work = llm.start_weight_update()
    elif call == "update":
        # Handles of shared memory are Python objects, which only pass as pickled bytes.
        request = WeightTransferUpdateRequest(update_info=_json_safe_update_payload(argument))
        work = llm.update_weights(request)
    else:
        work = llm.finish_weight_update(argument)
    return work


class WeightClient:
    """The four calls under vLLM's names, which its own senders make from a thread beside the event loop.

    Args:
        make: makes one of `weight_call`'s calls with its argument, and waits for its end.
    """

    def __init__(self, make: Callable[[str, Any], None]) -> None:
        self._make = make

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._make("init", init_info)

    def start_weight_update(self) -> None:
        self._make("start", None)

    def update_weights(self, update_info: Any) -> None:
        self._make("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._make("finish", weight_version)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run a function that may never return if the other side dies; its thread does not hold up the exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    threading.Thread(target=run, daemon=True, name="coterie-transfer").start()
    return await asyncio.wrap_future(future)

"""What crosses to vLLM: requests and outputs in its types, and the four calls that replace its weights.

vLLM is imported when they are made. Its calls: docs.vllm.ai/en/latest/training/weight_transfer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from coterie.backends.engines.vllm.server import Adapter, Output, Params, VersionSpan


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
    """One of the calls to an `AsyncLLM`: `init`, `start`, `update` (once or more), `finish`.

    Args:
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

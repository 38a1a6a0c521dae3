"""vLLM's four calls that replace its weights, by short names, and a thread for what waits for them.

Documented at docs.vllm.ai/en/latest/training/weight_transfer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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

"""vLLM's four calls that replace its weights, by short names.

Documented at docs.vllm.ai/en/latest/training/weight_transfer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any


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

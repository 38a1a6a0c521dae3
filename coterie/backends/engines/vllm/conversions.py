"""Requests and outputs in vLLM's types; vLLM is imported when they are made."""

from __future__ import annotations

from typing import Any

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

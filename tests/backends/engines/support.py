"""Tiny models with far from uniform distributions, and waves of concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from coterie.backends.engines.rows import BatchRow, Drawn
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Key, Request, Sampling

VOCABULARY = 50


def tiny(kind: str = "qwen3", *, seed: int = 0, scale: float = 4.0, **settings: Any) -> Any:
    """A random model; the scale makes its distributions far from uniform."""
    import transformers

    if kind == "gpt2":
        sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    else:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
        }
    if kind in ("qwen3", "llama", "mistral"):
        sizes["head_dim"] = 12
    if kind == "mistral":
        sizes["sliding_window"] = None
    name = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral", "gpt2": "GPT2"}[kind]
    sizes |= {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1} | settings
    if kind == "llama":
        sizes["hidden_size"] = 32
    config = getattr(transformers, f"{name}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.mul_(scale)
                elif "bias" in parameter_name:
                    parameter.normal_(std=0.3)
                else:
                    parameter.uniform_(0.5, 1.5)  # norms that are told apart from ones
    return model.float().eval()


def rows(
    groups: Sequence[tuple[int, int]],
    *,
    limit: int = 12,
    seed: int = 0,
    stops: tuple[int, ...] = (),
    temperature: float | Sequence[float] = 1.0,
    **more: Any,
) -> list[BatchRow]:
    """Rows of random prompts, one (length, siblings) per prompt; rows get the temperatures in turn."""
    rng = np.random.default_rng(seed)
    cycle = [temperature] if isinstance(temperature, float) else list(temperature)
    made: list[BatchRow] = []
    for length, siblings in groups:
        prompt = tuple(rng.integers(2, VOCABULARY, length).tolist())
        for _ in range(siblings):
            made.append(
                BatchRow(
                    prompt_ids=prompt,
                    seed=int(rng.integers(2**63)),
                    limit=limit,
                    stops=stops,
                    temperature=cycle[len(made) % len(cycle)],
                    **more,
                )
            )
    return made


def worst_logprob(model: Any, rows: Sequence[BatchRow], drawn: Sequence[Drawn]) -> float:
    """Largest difference from the log-probs of the model's own forward over prompt and tokens."""
    worst = 0.0
    for row, result in zip(rows, drawn, strict=True):
        ids = torch.tensor([row.prompt_ids + result.token_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].float()
        logprobs = torch.log_softmax(logits / (row.temperature or 1.0), dim=-1)
        expected = logprobs.gather(1, torch.tensor(result.token_ids)[:, None])[:, 0]
        worst = max(worst, (expected - torch.tensor(result.logprobs)).abs().max().item())
    return worst


def request(
    prompt: Sequence[int],
    *,
    seed: int = 0,
    policy: str = "p",
    branch: int = 0,
    task: str = "t",
    **sampling: Any,
) -> Request:
    return Request(
        key=Key(task).of_branch("solver", branch).of_call(0),
        policy=policy,
        prompt_ids=tuple(prompt),
        sampling=Sampling(**sampling),
        seed=seed,
    )


def context(
    policies: dict[str, Any],
    chat: Any = None,
    vocabulary: Sequence[str] = ("a", "b"),
    deterministic: Literal["auto"] | bool = True,
) -> EngineContext:
    return EngineContext(
        policies=policies,
        chat=chat
        or SimpleNamespace(codec=lambda tokenizer, context: SimpleNamespace(stop_ids=frozenset({1}))),
        active_rollouts=ActiveRollouts(),
        deterministic=deterministic,
        vocabulary=tuple(vocabulary),
    )


def wave(ctx: EngineContext, engine: Any, requests: Sequence[Request]) -> list[Call]:
    """Generate all requests at the same time, each in an active rollout, in the running loop's order."""
    return wait(awave(ctx, engine, requests))


async def awave(ctx: EngineContext, engine: Any, requests: Sequence[Request]) -> list[Call]:
    async def play(request: Request) -> Call:
        ctx.active_rollouts.start()
        try:
            return await engine.generate(request)
        finally:
            ctx.active_rollouts.stop()

    return list(await asyncio.gather(*[play(request) for request in requests]))


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)

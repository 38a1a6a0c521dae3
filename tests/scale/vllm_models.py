"""Tiny models, adapters, and an engine `vllm` on them, for tests that run vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import peft
import torch

from coterie.backends.engines.vllm.engine import VLLMEngine
from coterie.backends.engines.vllm.settings import VLLMConfig, VLLMPolicy
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Key, Request, Sampling, Weights

VOCABULARY, CONTEXT = 53, 512
TOLERANCE = 1e-5
"""Of a log-prob in fp32 after a sync."""
LORA = ["planner", "worker", "frozen"]
"""Two adapters and their frozen base."""
LONG = tuple(2 + index * 7 % 50 for index in range(300))
"""A prompt of more than two of vLLM's blocks (128 tokens on a CPU), so that a second request reuses them."""


def module(*, tied: bool, seed: int = 0) -> Any:
    """A random Qwen3 whose distributions are far from uniform; its vocabulary is a multiple of nothing."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    return model


def adapted(base: Any, ranks: dict[str, int], seed: int = 0) -> Any:
    """A PeftModel with an adapter of each rank on all linear layers; none of them is zero."""
    wrapped: Any = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, rank in ranks.items():
            settings = peft.LoraConfig(
                r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            if wrapped is None:
                wrapped = peft.get_peft_model(base, settings, adapter_name=name)
            else:
                wrapped.add_adapter(name, settings)
            step(adapter_parameters(wrapped, name), seed=rank)
    return wrapped.eval()


def adapter_parameters(wrapped: Any, adapter: str) -> list[Any]:
    return [value for name, value in wrapped.named_parameters() if f".{adapter}." in name]


def step(parameters: Sequence[Any], *, seed: int, size: float = 0.2) -> None:
    """Change weights in place, as an optimiser does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


class Playing:
    """An open engine and the modules of its policies.

    Args:
        modules: by policy, the module and the adapter (None: none) that it plays.
        ahead: steps that are played beside the one that is due, pinned to their versions.
    """

    def __init__(
        self,
        modules: dict[str, tuple[Any, str | None]],
        trains: dict[str, str],
        *,
        ahead: int = 0,
        **settings: Any,
    ):
        self.modules, self.versions = modules, dict.fromkeys(modules, 0)
        self.engine = VLLMEngine(VLLMConfig(**{"kv_gib": 0.75, "max_batch": 64, **settings}))
        self.rollouts = ActiveRollouts()
        chat = SimpleNamespace(codec=lambda tokenizer, context: SimpleNamespace(stop_ids=frozenset({1})))
        policies = {
            # Policies with one module have one `model`; its tokenizer is never asked for.
            name: VLLMPolicy(model={"init": "qwen3", "mlp_size": self._number(name)}, train=trains[name])
            for name in modules
        }
        self.context = EngineContext(
            policies=policies,
            chat=chat,
            active_rollouts=self.rollouts,
            deterministic=True,
            vocabulary=("a", "b"),
            ahead=ahead,
        )

    def _number(self, name: str) -> int:
        plain = [id(getattr(m, "base_model", m)) for m, _ in self.modules.values()]
        return 1 + plain.index(id(getattr(self.modules[name][0], "base_model", self.modules[name][0])))

    async def open(self) -> None:
        await self.engine.open(self.context)
        for policy in self.modules:
            await self.load(policy)

    async def load(self, policy: str, version: int | None = None) -> None:
        """Hand over the policy's present weights under the next version."""
        self.versions[policy] = self.versions[policy] + 1 if version is None else version
        played, adapter = self.modules[policy]
        tokenizer = SimpleNamespace(model_max_length=CONTEXT, unk_token_id=None)
        await self.engine.load_weights(
            Weights(
                policy=policy,
                version=self.versions[policy],
                module=played,
                adapter=adapter,
                tokenizer=tokenizer,
            )
        )

    async def update(self, policy: str, *, size: float = 0.2) -> None:
        """Change the policy's trained weights and load them."""
        self.change(policy, size=size)
        await self.load(policy)

    def change(self, policy: str, *, size: float = 0.2) -> None:
        played, adapter = self.modules[policy]
        parameters = list(played.parameters()) if adapter is None else adapter_parameters(played, adapter)
        step(parameters, seed=self.versions[policy], size=size)

    async def wave(self, requests: Sequence[Request]) -> list[Call]:
        """All requests at once, each from an active rollout."""

        async def play(request: Request) -> Call:
            self.rollouts.start()
            try:
                return await self.engine.generate(request)
            finally:
                self.rollouts.stop()

        return list(await asyncio.gather(*[play(request) for request in requests]))

    def gap(self, requests: Sequence[Request], calls: Sequence[Call]) -> float:
        """Largest difference of a log-prob from the trainer's own forward over prompt and tokens."""
        return max(
            (self.expected(request, call) - torch.tensor(call.logprobs)).abs().max().item()
            for request, call in zip(requests, calls, strict=True)
        )

    def expected(self, request: Request, call: Call) -> Any:
        """The module's log-probs of the call's tokens under the whole distribution at its temperature."""
        played, adapter = self.modules[request.policy]
        ids = torch.tensor([request.prompt_ids + call.token_ids])
        with torch.no_grad():
            if not hasattr(played, "peft_config"):
                logits = played(input_ids=ids).logits
            elif adapter is None:
                with played.disable_adapter():
                    logits = played(input_ids=ids).logits
            else:
                played.set_adapter(adapter)
                logits = played(input_ids=ids).logits
        chosen = logits[0, len(request.prompt_ids) - 1 : -1].float() / (request.sampling.temperature or 1.0)
        return chosen.log_softmax(-1).gather(1, torch.tensor(call.token_ids)[:, None])[:, 0]


async def until(true: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until a condition comes true."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)


def request(policy: str, prompt: Sequence[int], number: int = 0, **sampling: Any) -> Request:
    return Request(
        key=Key("task").of_branch("solver", number).of_call(0),
        policy=policy,
        prompt_ids=tuple(prompt),
        sampling=Sampling(**{"max_new_tokens": 12, **sampling}),
        seed=(2**61 - 1) * (number + 1) % 2**64,
    )


def mixed(policies: Sequence[str], **sampling: Any) -> list[Request]:
    """Requests of all policies in turn: short and long prompts, all kinds of sampling."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7},
        {"temperature": 1.5},
        {"top_p": 0.8},
        {"top_k": 5, "temperature": 1.5},
        {"temperature": 0.0},
    ]
    made = []
    for index, kind in enumerate(kinds):
        for policy in policies:
            prompt = LONG if index % 2 else LONG[: 5 + index]
            made.append(request(policy, prompt, len(made), **{**kind, **sampling}))
    return made


def again(requests: Sequence[Request], **changes: Any) -> list[Request]:
    return [replace(request, **changes) for request in requests]

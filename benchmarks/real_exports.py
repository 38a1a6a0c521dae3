"""Exported adapters in other programs: the text of Coterie's engine, of transformers + PEFT, and of vLLM."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import Count
from real_exactness import CONTEXT, NEW, Served, generated, load, prompts, request

from coterie import Plugin


class Writing(Count):
    """Scores what was written by its length, so that siblings differ."""

    def score(self, parsed: Any) -> float:
        return float(len(parsed))


class Writer(Plugin):
    """A role that sees the turn alone."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": role_input.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text


def adapter_run(folder: Path, out: Path, train: str = "lora") -> Any:
    """A run of two steps that trains an adapter; rewards are the lengths of answers, so that it changes."""
    import coterie

    config = {
        "env": {"type": "real_exports:Writing"},
        "team": {
            "order": ["one"],
            "max_turns": 1,
            "roles": {"one": {"type": "real_exports:Writer", "policy": "p"}},
        },
        "policies": {
            "p": {
                "model": str(folder),
                "train": train,
                "dtype": "float32",
                "context": CONTEXT,
                "optimizer": {"learning_rate": 1e-2},
            }
        },
        "sampler": {"branches": 4, "sampling": {"max_new_tokens": 8}},
        "algorithm": "at_grpo",
        "engine": {"type": "hf"},
        "trainer": "torch",
        "trackers": {},
        "schedule": {"steps": 2, "tasks_per_step": 1, "record_every": 0, "evaluate_every": 0},
    }
    return coterie.train(config, out=out)


def exported(folder: Path, scratch: Path) -> tuple[Path, Path]:
    """(adapter, merged): what `coterie export` writes of a LoRA run, without and with --merge."""
    from coterie.api.export import export

    run = adapter_run(folder, scratch / "run").folder
    return export(run, "p", scratch / "adapter"), export(run, "p", scratch / "merged", merge=True)


def text_in_transformers(folder: Path, adapter: Path | None, asked: Sequence[Sequence[int]]) -> list[str]:
    """Greedy texts of plain transformers, with PEFT where there is an adapter."""
    from transformers import AutoTokenizer

    model = load(folder, "float32")
    if adapter is not None:
        import peft

        model = peft.PeftModel.from_pretrained(model, str(adapter)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.decode(generated(model, prompt)) for prompt in asked]


def text_in_coterie(folder: Path, adapter: Path, asked: Sequence[Sequence[int]]) -> list[str]:
    """Greedy texts of engine `hf` with the exported adapter."""
    import peft
    from transformers import AutoTokenizer

    module = peft.PeftModel.from_pretrained(load(folder, "float32"), str(adapter), adapter_name="p").eval()

    async def run() -> list[Any]:
        served = Served("lean", folder, "float32", {"p": (module, "p")})
        await served.open()
        try:
            return await served.calls(
                [request("p", prompt, number, 0.0) for number, prompt in enumerate(asked)]
            )
        finally:
            await served.engine.close()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.decode(call.token_ids) for call in asyncio.run(run())]


def text_in_vllm(folder: Path, adapter: Path | None, asked: Sequence[Sequence[int]]) -> list[str]:
    """Greedy texts of plain vLLM, without any part of Coterie; its LoRA where there is an adapter."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora = {} if adapter is None else {"enable_lora": True, "max_lora_rank": 16, "max_loras": 1}
    llm = LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=CONTEXT,
        kv_cache_memory_bytes=2**29,
        seed=0,
        **lora,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, skip_special_tokens=False)
    outputs = llm.generate(
        [{"prompt_token_ids": list(prompt)} for prompt in asked],
        sampling,
        use_tqdm=False,
        lora_request=None if adapter is None else LoRARequest("p", 1, str(adapter)),
    )
    return [output.outputs[0].text for output in outputs]


def export_case(folder: Path, scratch: Path, *, vllm: bool = True) -> dict[str, Any]:
    """The texts of an exported adapter in each program, and whether all are equal."""
    adapter, merged = exported(folder, scratch)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    asked = prompts(config["vocab_size"])
    texts = {
        "base, transformers": text_in_transformers(folder, None, asked),
        "coterie": text_in_coterie(folder, adapter, asked),
        "transformers + peft": text_in_transformers(folder, adapter, asked),
        "merged, transformers": text_in_transformers(merged, None, asked),
    }
    if vllm:
        texts["vllm, lora"] = text_in_vllm(folder, adapter, asked)
        texts["vllm, merged"] = text_in_vllm(merged, None, asked)
    changed = texts["base, transformers"] != texts["coterie"]
    equal = {name: made == texts["transformers + peft"] for name, made in texts.items() if "base" not in name}
    return {"equal": equal, "changed": changed, "met": changed and all(equal.values())}

"""Engine `vllm`: what a sync of all weights costs requests that it finds half-way, by `engine.kv`.

    python benchmarks/kv_in_flight.py [--prompts 256 1024] [--requests 16] [--repeats 5]

A vLLM in processes of its own draws for all requests, each with a prompt of its own; once every one has
tokens, a sync replaces all weights. *sync* is the call itself; *first* and *all* are the times from its
begin to the next token of the first and of the last request. `recompute` and `keep` take turns on the same
vLLM, and figures are medians over the turns. The model (0.9 M parameters, random) is small: what is
computed again grows with the model, and so does what a sync has to send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import transformers
from measuring import machine
from rich.console import Console
from rich.table import Table

from coterie.backends.engines.vllm.own_process import OwnProcessServer
from coterie.backends.engines.vllm.server import Params, ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig

RESULTS = Path(__file__).resolve().parent / "results" / "kv_in_flight.json"
MODES = ("recompute", "keep")
WORDS, NEW, BEGUN = 512, 400, 4
"""Of the vocabulary; most tokens of a request; tokens that each has when the sync begins."""


def model(context: int) -> Any:
    """A random Qwen3."""
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=WORDS,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )
    )


class Watched:
    """An open server, whose tokens are seen as they come."""

    def __init__(self, server: OwnProcessServer) -> None:
        self.server, self.version = server, 0
        self.tokens: dict[str, list[float]] = {}
        """By request: when its tokens came."""
        core = server.llm.engine_core
        received = core.get_output_async

        async def seen() -> Any:
            outputs = await received()
            now = time.perf_counter()
            for output in outputs.outputs:
                self.tokens.setdefault(output.request_id, []).extend([now] * len(output.new_token_ids))
            return outputs

        core.get_output_async = seen

    async def turn(self, kv: str, weights: list[Any], prompts: list[tuple[int, ...]]) -> dict[str, float]:
        """Seconds of a sync while prompts are answered, and to the next token of first and last."""
        server = self.server
        settings = server.spec.settings.model_copy(update={"kv": kv})
        server.spec = replace(server.spec, settings=settings)
        self.tokens.clear()
        tasks = [
            asyncio.ensure_future(server.generate(prompt, Params(seed=number, limit=NEW), None))
            for number, prompt in enumerate(prompts)
        ]
        while len(self.tokens) < len(prompts) or min(map(len, self.tokens.values())) < BEGUN:
            await asyncio.sleep(0.002)
        begin, self.version = time.perf_counter(), self.version + 1
        await server.sync(iter(weights), self.version)
        synced = time.perf_counter()
        while len(after := self._after(synced)) < len(prompts):
            assert not any(task.done() for task in tasks), "a request ended before its next token"
            await asyncio.sleep(0.002)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.2)  # vLLM has aborted them
        return {"sync": synced - begin, "first": min(after) - begin, "all": max(after) - begin}

    def _after(self, moment: float) -> list[float]:
        """By request with one: when its first token after a moment came."""
        later = [[came for came in times if came > moment] for times in self.tokens.values()]
        return [times[0] for times in later if times]


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each length of prompts and each mode."""
    context = max(options.prompts) + NEW
    made, rows = model(context), list[dict[str, Any]]()
    weights = [(name, tensor.detach()) for name, tensor in made.named_parameters()]
    with tempfile.TemporaryDirectory() as folder:
        made.config.architectures = [type(made).__name__]
        made.config.save_pretrained(folder)
        settings = VLLMConfig(process="own", kv_gib=0.5)
        spec = ServerSpec(name="bench", model=folder, context=context, tied=True, settings=settings)
        server = OwnProcessServer(spec)
        try:
            await server.open()
            await server.sync(iter(weights), 0)
            watched, draws = Watched(server), random.Random(0)
            for length in options.prompts:
                turns: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
                for number in range(options.repeats + 1):
                    for mode in MODES if number % 2 else MODES[::-1]:
                        prompts = [
                            tuple(draws.choices(range(2, WORDS), k=length)) for _ in range(options.requests)
                        ]
                        measured = await watched.turn(mode, weights, prompts)
                        if number:  # the first warms up
                            turns[mode].append(measured)
                for mode in MODES:
                    medians = {
                        part: statistics.median(turn[part] for turn in turns[mode])
                        for part in ("sync", "first", "all")
                    }
                    rows.append({"kv": mode, "prompt": length, **medians, "turns": turns[mode]})
        finally:
            await server.close()
    return rows


def table(rows: list[dict[str, Any]], requests: int) -> Table:
    """Seconds by length of the prompts and mode."""
    shown = Table(title=f"{requests} requests in flight: seconds from the begin of a sync (medians)")
    for name in ("prompt", "kv", "sync", "first next token", "all have one"):
        shown.add_column(name, justify="right")
    for row in rows:
        seconds = [f"{row[part]:.3f}" for part in ("sync", "first", "all")]
        shown.add_row(str(row["prompt"]), row["kv"], *seconds)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[256, 1024], help="tokens of a prompt")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each mode")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    rows = asyncio.run(measure(options))
    Console(width=110).print(table(rows, options.requests))
    result = {
        "command": " ".join(["python", "benchmarks/kv_in_flight.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(before, 2)},
        "requests": options.requests,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

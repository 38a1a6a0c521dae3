"""Speed and memory at scale: what Coterie adds to the engines and trainers that it drives.

    make scale-venv
    python benchmarks/scale.py [--only vllm] [--pairs 5]      # with the Python of that venv

- vllm: tokens per second of a run's rollouts with vLLM, over those of the same requests sent by themselves.
- memory, lora, bookkeeping, plan: see scale_memory.py, which runs these four without vLLM.

A section is one function that returns its results. Each has a bar, and the script exits with 1 where one
isn't met. The results go to results/scale.json, a section at a time: a call replaces those that it ran.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # idle threads of OpenMP spin on the cores that others need
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whatever is installed

import scale_memory
from measuring import Section, run_sections

RESULTS = scale_memory.RESULTS

EPISODES, TURNS = 64, 4
GAME = {
    "team.max_turns": TURNS,
    "policies.shared.model.context": 256,
    "policies.shared.warm_start": None,
    "sampler.branches": 1,
    "algorithm": {"type": "reinforce_pp"},
    "sampler.sampling.max_new_tokens": 32,
    "schedule.tasks_per_step": EPISODES,
    "schedule.record_every": 0,
}
"""The quickstart's model with random weights, and its game in episodes of 4 turns of two roles."""


class Recorded:
    """The requests of a rollout, by episode and in order, as the facade over vLLM got them."""

    def __init__(self) -> None:
        self.episodes: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
        self.tokens = 0

    def clear(self) -> None:
        self.episodes.clear()
        self.tokens = 0

    def listen(self, replicas: Any, server: Any) -> None:
        """Record what reaches the server, with the key by which it was routed."""
        run = replicas.run

        async def listening(key: Any, send: Any) -> Any:
            async def recording(chosen: Any) -> Any:
                return await send(_Recorder(chosen, self, key))

            return await run(key, recording)

        replicas.run = listening


class _Recorder:
    """A server that notes its requests."""

    def __init__(self, server: Any, recorded: Recorded, key: Any) -> None:
        self._server, self._recorded, self._key = server, recorded, key

    async def generate(self, prompt_ids: Any, params: Any, adapter: Any) -> Any:
        episode = self._key.task, self._key.epoch, self._key.chain
        self._recorded.episodes[episode].append((prompt_ids, params))
        output = await self._server.generate(prompt_ids, params, adapter)
        self._recorded.tokens += len(output.token_ids)
        return output


async def forget_prefixes(server: Any) -> None:
    """Empty the prefix cache, so that a replay doesn't find the recording's prompts."""
    if hasattr(server, "reset_prefix_cache"):
        server.reset_prefix_cache()
    else:
        await server.llm.reset_prefix_cache()


async def replay(server: Any, episodes: dict[Any, list[tuple[Any, Any]]]) -> int:
    """Send each episode's requests one after the other, all episodes at once; returns the tokens.

    The order within an episode is that of the run, because a prompt contains the answers before it. Nothing
    is computed between two requests, so no run can be faster but by chance.
    """

    async def one(requests: list[tuple[Any, Any]]) -> int:
        return sum([len((await server.generate(*request, None)).token_ids) for request in requests])

    return sum(await asyncio.gather(*(one(requests) for requests in episodes.values())))


async def vllm_pairs(process: str, pairs: int) -> dict[str, Any]:
    """Tokens per second of a run's rollouts, and of the same requests sent to the facade by themselves."""
    from coterie.api.open_run import open_run
    from coterie.compose import compose
    from coterie.recipes import load

    settings = [f"{path}={json.dumps(value)}" for path, value in GAME.items()]
    settings += ["engine.type=vllm", f"engine.process={process}", "engine.kv_gib=0.5"]
    run = compose(load("quickstart", overrides=settings))
    await open_run(run)
    try:
        (base,) = run.engine.loaded_bases.values()  # type: ignore[attr-defined]
        (server,) = base.replicas.servers
        recorded = Recorded()
        recorded.listen(base.replicas, server)
        await _played(run, server, recorded)  # vLLM's first steps are slow
        pairs_ = []
        for _ in range(pairs):
            run.state.step += 1  # other tasks; all rollouts of a pair have the same ones, and the same seeds
            wall, processor = {"run": 0.0, "replay": 0.0}, {"run": 0.0, "replay": 0.0}
            for kind in ("run", "replay", "replay", "run"):  # so that a drift of the machine cancels
                work = _played(run, server, recorded) if kind == "run" else _replayed(server, recorded)
                begun = time.process_time()
                wall[kind] += await work
                processor[kind] += time.process_time() - begun
            row = {name: 2 * recorded.tokens / took for name, took in wall.items()}
            row["share"] = wall["replay"] / wall["run"]
            if process == "inside":  # elsewhere vLLM's part is missing from this process's time
                row["share_of_processor_time"] = processor["replay"] / processor["run"]
            pairs_.append(row)
        return {
            **{name: round(statistics.median(pair[name] for pair in pairs_), 4) for name in pairs_[0]},
            "pairs": [{name: round(value, 4) for name, value in pair.items()} for pair in pairs_],
            "tokens": recorded.tokens,
            "calls": sum(map(len, recorded.episodes.values())),
        }
    finally:
        await run.close()


async def _played(run: Any, server: Any, recorded: Recorded) -> float:
    """Seconds of a step's rollouts, whose requests are recorded."""
    await forget_prefixes(server)
    recorded.clear()
    began = time.perf_counter()
    await run.play(run.jobs(1, EPISODES))
    return time.perf_counter() - began


async def _replayed(server: Any, recorded: Recorded) -> float:
    """Seconds of the recorded requests alone."""
    await forget_prefixes(server)
    began = time.perf_counter()
    tokens = await replay(server, recorded.episodes)
    took = time.perf_counter() - began
    if tokens != recorded.tokens:
        raise RuntimeError(f"the replay drew {tokens} tokens, the run {recorded.tokens}")
    return took


def vllm(options: argparse.Namespace) -> dict[str, Any]:
    """vLLM through Coterie against the same request stream replayed through the facade alone."""
    import torch
    import vllm as library

    on_gpu = torch.cuda.is_available()
    inside = asyncio.run(vllm_pairs("inside", options.pairs))
    own = asyncio.run(vllm_pairs("own", options.pairs))
    bar = 0.9 if on_gpu else 0.8
    return {
        "bar": f"a run's tokens per second are at least {bar:.0%} of the replay's, inside and own",
        "met": min(inside["share"], own["share"]) >= bar,
        "ratio": min(inside["share"], own["share"]),
        "episodes": EPISODES,
        "turns": TURNS,
        "model": "the quickstart's, 0.66 M random parameters: the smaller the model, the more overhead shows",
        "vllm": library.__version__,
        "inside": inside,
        "own": own,
    }


SECTIONS: dict[str, Section] = {"vllm": vllm, **scale_memory.SECTIONS}


if __name__ == "__main__":
    sys.exit(run_sections(SECTIONS, __doc__ or "", RESULTS))

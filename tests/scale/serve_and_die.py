"""A run with a vLLM of its own process: sync over a way of transfer, check, and wait to be killed."""

import asyncio
import json
import sys

from coterie.backends.engines.vllm import own_process
from coterie.backends.engines.vllm.arguments import ServerPlacement
from tests.scale.vllm_models import Playing, mixed, module


async def main(transfer: str) -> None:
    own_process.place = lambda *_: ServerPlacement((), transfer, pickled=transfer == "ipc")
    playing = Playing({"p": (module(tied=True, seed=2), None)}, {"p": "full"}, process="own", kv_gib=0.25)
    await playing.open()
    requests, gaps = mixed(["p"]), []
    for _ in range(2):
        await playing.update("p", size=0.05)
        calls = await playing.wave(requests)
        gaps.append(playing.gap(requests, calls))
        assert {call.version for call in calls} == {playing.versions["p"]}
    (server,) = playing.engine.served["p"].base.replicas.servers
    print(json.dumps({"gaps": gaps, "pids": server.pids}), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

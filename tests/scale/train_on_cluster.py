"""A whole run on a cluster whose GPUs aren't there: weights go by vLLM's NCCL classes, over a TCP store.

Its arguments: the folder of the run, `cluster.updates`, and the plugin file (`plugin_of`) of every process.
"""

import json
import sys
from pathlib import Path

import ray

import coterie
from coterie import load_plugin_file

RUN = [
    "schedule.steps=2", "schedule.tasks_per_step=4", "schedule.evaluate_every=0", "schedule.record_every=0",
    "policies.*.warm_start.steps=20", "policies.*.warm_start.batch=128", "engine.type=vllm",
    "engine.kv_gib=0.25", "cluster.replica_cpus=0.5", "cluster.worker_cpus=0.5", "cluster.workers=1",
    "cluster.weights=nccl",
]  # fmt: skip
PLUGIN = '''
"""Lets a process without a GPU send weights, and writes down which."""

import os
from pathlib import Path

import coterie
from coterie.backends.engines.vllm import direct
from coterie.backends.executors.ray import direct_weights

make_sender, fulfil = direct.make_sender, direct_weights.Holder.fulfil


def make(*arguments):
    import fake_transfer

    fake_transfer.register()
    return make_sender(*arguments)


async def noted(self, order):
    await fulfil(self, order)
    with Path(RECORD).open("a") as file:
        file.write(f"{os.getpid()} {order.policy} {order.version}\\n")


direct.make_sender, direct_weights.Holder.fulfil, direct_weights.has_gpu = make, noted, lambda: True


@coterie.hookimpl
def register_roles(register):
    """Registers nothing: a plugin file needs a hook."""
'''


def plugin_of(folder: Path) -> Path:
    """Write the plugin file; it records into `sent.txt` beside it."""
    file = folder / "without_gpus.py"
    file.write_text(PLUGIN.replace("RECORD", repr(str(folder / "sent.txt"))))
    return file


def main(out: Path, updates: str, plugin: Path) -> None:
    load_plugin_file(plugin)
    ray.init(address="local", num_cpus=8, num_gpus=4, include_dashboard=False, log_to_driver=False)
    overrides = [*RUN, f"cluster.updates={updates}"]
    coterie.train("quickstart", overlays=["per_role", "ray"], overrides=overrides, out=out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    gaps = [value for row in rows for name, value in row.items() if name.endswith("/mismatch_max")]
    lines = [line.split() for line in (plugin.parent / "sent.txt").read_text().splitlines()]
    sent = sorted({(policy, int(version)) for _, policy, version in lines})
    print(
        json.dumps({"steps": len(rows), "gaps": gaps, "sent": sent, "senders": len({n for n, *_ in lines})})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

"""A whole run on a cluster whose GPUs aren't there: weights go by vLLM's NCCL classes, over a TCP store."""

import json
import sys
from pathlib import Path

import fake_transfer
import ray

import coterie
from coterie.backends.executors.ray import holder
from tests.ray_cluster import local_cluster  # noqa: F401  # the same settings of Ray

RUN = [
    "schedule.steps=2", "schedule.tasks_per_step=4", "schedule.evaluate_every=0", "schedule.record_every=0",
    "policies.*.warm_start.steps=20", "policies.*.warm_start.batch=128", "engine.type=vllm",
    "engine.kv_gib=0.25", "cluster.replica_cpus=0.5", "cluster.worker_cpus=0.5", "cluster.workers=1",
    "cluster.weights=nccl",
]  # fmt: skip


def main(out: Path) -> None:
    fake_transfer.register()
    holder.has_gpu = lambda: True
    sent: list[tuple[str, int]] = []
    fulfil = holder.Holder.fulfil

    async def noted(self: holder.Holder, order: holder.Order) -> None:
        await fulfil(self, order)
        sent.append((order.policy, order.version))

    holder.Holder.fulfil = noted
    ray.init(address="local", num_cpus=8, num_gpus=4, include_dashboard=False, log_to_driver=False)
    coterie.train("quickstart", overlays=["per_role", "ray"], overrides=RUN, out=out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    gaps = [value for row in rows for name, value in row.items() if name.endswith("/mismatch_max")]
    print(json.dumps({"steps": len(rows), "gaps": gaps, "sent": sent}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A run whose trackers meet every fault at once; a process of its own, since its end is what is tested."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import coterie
from coterie.core.training import metrics_writer
from tests.backends.trackers.servers import Bias, Traces, flow, hanging, later, serving

PLUGINS = "tests.backends.trackers.plugins"


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    metrics_writer.CLOSE_SECONDS = 7.0
    with ExitStack() as stack:
        trackers = {"first": {"type": f"{PLUGINS}:Lines"}}
        short = {"timeout": 1}
        for fault in ("500", "401", "hang"):
            status = int(fault) if fault.isdecimal() else 0
            answering = hanging() if not status else serving(lambda *_, status=status: (status, b"{}"))
            url = stack.enter_context(answering)
            trackers[f"wandb_{fault}"] = {"type": "wandb", "entity": "team", "base_url": url, **short}
            trackers[f"mlflow_{fault}"] = {"type": "mlflow", "tracking_uri": url, "retries": 1, **short}
            place = {"project": "team/small", "create_project": False, "server": url}
            trackers[f"weave_{fault}"] = {"type": "weave", "retries": 0, **place, **short}
        # Servers that hang, or answer 500, once the run has begun.
        url = stack.enter_context(serving(later(Bias(), "/file_stream", 0)))
        trackers["wandb_later"] = {"type": "wandb", "entity": "team", "base_url": url, **short}
        url = stack.enter_context(serving(later(flow, "/log-batch", 500)))
        trackers["mlflow_later"] = {"type": "mlflow", "tracking_uri": url, "retries": 0, **short}
        url = stack.enter_context(serving(later(Traces(), "/calls/complete", 500)))
        place = {"project": "team/small", "create_project": False, "server": url}
        trackers["weave_later"] = {"type": "weave", "retries": 0, **place, **short}
        trackers["hangs"] = {"type": f"{PLUGINS}:Hangs"}
        trackers["hangs_at_once"] = {"type": f"{PLUGINS}:HangsAtOnce"}
        trackers["fails_once"] = {"type": f"{PLUGINS}:FailsOnce"}
        trackers["last"] = {"type": "tensorboard", "log_episodes": 2}
        coterie.train(
            "tests/recipes/matrix.yaml",
            overrides=["schedule.steps=4", f"trackers={trackers!r}"],
            out=folder,
        )
        print(f"ended at {time.time()}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

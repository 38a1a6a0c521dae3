"""What trackers cost a step of the quickstart: all of them, each with episodes, at most 1 %.

    python benchmarks/tracking.py [--steps 20] [--episodes 4]

The quickstart is trained with each tracker of a library, each with `log_episodes`, and with all four. Two
costs are taken, both in seconds of computing: what the loop's thread does for trackers, for which a step
waits, and what the trackers' own threads do beside it, with Python's lock in common. Writing `metrics.jsonl`
is no tracker's. What they take to open is left out: a run loads its model meanwhile. W&B is offline, MLflow
has a database file, Weave a server on this machine. Print a table, and write results/tracking.json. Exit with
1 where the loop's share is too large.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from measuring import Clocks, machine

import coterie
from coterie.api.rows import read_metrics
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.training.metrics_writer import MetricsWriter, TrackerThread

RESULTS = Path(__file__).resolve().parent / "results" / "tracking.json"
MOST = 0.01
"""Of the time of a step."""
LIBRARIES = ("tensorboard", "wandb", "mlflow", "weave")
SETTINGS = ["schedule.evaluate_every=0", "schedule.checkpoint_every=0", "policies.shared.warm_start=null"]


class Accepts(BaseHTTPRequestHandler):
    """Answers every request of Weave's client."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = b'{"min_required_weave_python_version": "0.0.1"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None: ...


def tables(names: tuple[str, ...], episodes: int, folder: Path, url: str) -> dict[str, dict[str, Any]]:
    """The table of each tracker."""
    own: dict[str, dict[str, Any]] = {
        "tensorboard": {},
        "wandb": {"mode": "offline"},
        "mlflow": {"tracking_uri": f"sqlite:///{folder}/store.db"},
        "weave": {"project": "team/small", "create_project": False, "server": url},
    }
    return {name: {"type": name, "log_episodes": episodes, **own[name]} for name in names}


def measured(names: tuple[str, ...], steps: int, episodes: int, url: str) -> dict[str, Any]:
    """Train some steps; seconds a step of the loop and of the trackers' threads."""
    clocks = Clocks(time.thread_time, loop=0.0, file=0.0)
    threads = {"seconds": 0.0}
    originals = MetricsWriter.write, MetricsWriter.episodes, MetricsLog.append, TrackerThread._call

    def call(self: TrackerThread, method: str, step: int, arguments: tuple[Any, ...]) -> None:
        begin = time.thread_time()
        originals[3](self, method, step, arguments)
        if method.startswith("track") and step > 1:  # the first brings imports
            threads["seconds"] += time.thread_time() - begin

    MetricsWriter.write = clocks.clocked("loop", originals[0])  # type: ignore[method-assign]
    MetricsWriter.episodes = clocks.clocked("loop", originals[1])  # type: ignore[method-assign]
    MetricsLog.append = clocks.clocked("file", originals[2])  # type: ignore[method-assign]
    TrackerThread._call = call  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            trackers = tables(names, episodes, Path(scratch), url)
            overrides = [*SETTINGS, f"schedule.steps={steps}", f"trackers={trackers!r}"]
            coterie.train("quickstart", overrides=overrides, out=Path(scratch) / "run")
            rows = read_metrics(Path(scratch) / "run" / "metrics.jsonl")
    finally:
        MetricsWriter.write, MetricsWriter.episodes = originals[:2]  # type: ignore[method-assign]
        MetricsLog.append, TrackerThread._call = originals[2:]  # type: ignore[method-assign]
    lost = [name for row in rows for name in row if name.endswith("/lost")]
    assert not lost, f"rows are lost: {lost}"
    step = statistics.median(row["time/step"] for row in rows)
    loop, computing = (clocks["loop"] - clocks["file"]) / steps, threads["seconds"] / max(steps - 1, 1)
    return {"trackers": list(names), "step_seconds": step, "loop_seconds": loop, "thread_seconds": computing,
            "share": loop / step, "thread_share": computing / step}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Accepts)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    os.environ.setdefault("WANDB_API_KEY", "k" * 40)  # of the server on this machine
    cases = [(), *((name,) for name in LIBRARIES), LIBRARIES]
    results = [measured(names, options.steps, options.episodes, url) for names in cases]
    print("| trackers | a step, s | the loop, ms | of a step | their threads, ms |\n|---|---|---|---|---|")
    for result in results:
        names, step = ", ".join(result["trackers"]) or "none", result["step_seconds"]
        loop, beside = result["loop_seconds"] * 1e3, result["thread_seconds"] * 1e3
        print(f"| {names} | {step:.2f} | {loop:.2f} | {result['share']:.2%} | {beside:.2f} |")
    facts = {
        "command": " ".join(["python", "benchmarks/tracking.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(load, 2)},
        "episodes": options.episodes,
        "cases": results,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(0 if all(result["share"] <= MOST for result in results) else 1)


if __name__ == "__main__":
    main()

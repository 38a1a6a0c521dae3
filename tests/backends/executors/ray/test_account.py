"""One run, one account: chat models, budgets, limits, keys and bounds of a run on a Ray cluster."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import coterie
from coterie import TEAM, Composed, Plugin, PluginConfig, UserError
from coterie.backends.remote import secrets
from coterie.core.protocols import Program
from tests.backends.chat_models.server import score
from tests.backends.executors.ray.test_cluster import Watched, cluster
from tests.backends.remote.server import MODEL, OpenAIServer
from tests.test_resume import MATRIX, rollouts, rows, same, weights

__all__ = ["cluster"]
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

HERE, ROOT = "tests.backends.executors.ray.test_account", Path(__file__).parents[4]
KEY = f"sk-{uuid.uuid4().hex}"
"""Nobody else on this machine has it."""
STEPS = ["schedule.steps=3", "schedule.evaluate_every=0", "schedule.checkpoint_every=1"]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key in this process, which is none of the next test's."""
    factory = logging.getLogRecordFactory()
    monkeypatch.setattr(secrets, "replacements", {})
    monkeypatch.setenv("A_KEY", KEY)
    yield
    logging.setLogRecordFactory(factory)


def coached(url: str, *more: str) -> list[str]:
    """A run whose team is scored by a coach at a loopback server."""
    judge = {"type": "openai", "model": MODEL, "base_url": url, "api_key": "${A_KEY}", "backoff": 0.02}
    return [
        f"chat_models.judge={json.dumps(judge)}",
        "rewards={environment: {}, coach: {type: coach, model: judge}}",
        *STEPS, *more,
    ]  # fmt: skip


def on_ray(folder: Path, *overrides: str, **others: Any) -> Any:
    return coterie.train(
        MATRIX, overlays=["ray"], overrides=["cluster.workers=3", *overrides], out=folder, **others
    )


def usage(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "remote" / "usage-judge.json").read_text())


def test_calls_limits_and_usage_are_those_of_one_process(cluster, tmp_path, caplog):
    """Equal requests of three hosts are sent once; the rate is that of the run, and so is what is written."""
    caplog.set_level(logging.INFO, logger="coterie.usage")
    with OpenAIServer(answer=score, delay=0.05) as server:
        settings = coached(server.url, "chat_models.judge.concurrency=2")
        coterie.train(MATRIX, overrides=settings, out=tmp_path / "local")
        alone, server.asked = server.asked, []
        server.at_once = 0
        on_ray(tmp_path / "ray", *settings, "chat_models.judge.requests_per_minute=240")
        there, times = server.asked, [asked.at for asked in server.asked]
        assert server.at_once == 2
    same(tmp_path / "local", tmp_path / "ray")
    bodies = [sorted(json.dumps(asked.body, sort_keys=True) for asked in side) for side in (alone, there)]
    assert bodies[0] == bodies[1] and len(set(bodies[0])) == len(bodies[0]) == 10
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in there)
    # A bucket of 4 that leaks 3.93 a second: 10 requests take 6 / 3.93 s; with one a host, no time.
    assert times[-1] - times[0] > 1
    here, away = usage(tmp_path / "local"), usage(tmp_path / "ray")
    for table in (here["this_process"], away["this_process"]):
        table["from_before"] = table.pop("cached") + table.pop("joined")  # which, depends on time
    assert here == away
    assert caplog.text.count("judge: 96 calls: ") == 2, "the usage is told as in one process"


def test_a_budget_is_one_over_all_hosts_and_over_a_resume(cluster, tmp_path):
    with OpenAIServer(answer=score) as server:
        budget = "chat_models.judge.budget={calls: 5}"
        with pytest.raises(UserError, match="the budget is spent: 5 calls") as error:
            on_ray(tmp_path / "run", *coached(server.url, budget))
        assert error.value.path == "chat_models.judge.budget"
        assert len(server.asked) == 5
        more = ["chat_models.judge.budget={calls: 50}", "cluster.workers=1"]
        coterie.train(resume=tmp_path / "run", overrides=more)
        assert len(server.paid) == len(set(server.paid)) == 10
    assert usage(tmp_path / "run")["total"]["calls"] == 10, "a resumed run knows what it has spent"


class Ends(Plugin):
    """A reward source that ends its process once, while it holds the only slot of the run."""

    class Config(PluginConfig):
        mark: str

    scope = "joint"
    components = {"alive": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view: Any) -> Any:
        mark = Path(self.config.mark)
        if view.task.id.endswith("1") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {(TEAM, "alive"): 0.0}


def test_the_death_of_a_host_loses_no_slot_and_pays_nothing_twice(cluster, tmp_path, monkeypatch, caplog):
    watched = Watched(monkeypatch)
    ends = f"rewards.ends={{type: '{HERE}:Ends', mark: {tmp_path / 'mark'}, concurrency: 1}}"
    with OpenAIServer(answer=score, delay=0.1) as server:
        settings = coached(server.url, ends, "rewards.coach.concurrency=2")
        on_ray(tmp_path / "ray", *settings)
        assert len(watched.hosts) == 4 and "another one plays its" in caplog.text
        assert len(server.paid) == len(set(server.paid)) == len(server.asked) == 10
        coterie.train(MATRIX, overrides=settings, out=tmp_path / "local")
    kept = [{k: v for k, v in row.items() if not k.startswith("cluster/")} for row in rows(tmp_path / "ray")]
    assert kept == rows(tmp_path / "local") and weights(tmp_path / "ray") == weights(tmp_path / "local")
    assert rollouts(tmp_path / "ray") == rollouts(tmp_path / "local")


@pytest.mark.long
def test_a_dead_account_ends_the_run_by_name_and_a_resume_goes_on(cluster, tmp_path, monkeypatch):
    watched = Watched(monkeypatch)
    with OpenAIServer(answer=score) as server:
        settings = coached(server.url)
        kill = watched.at(1, lambda: os.kill(watched.executors[0].account.host.pid, signal.SIGKILL))
        with pytest.raises(UserError, match="the process of the run's account is gone") as error:
            on_ray(tmp_path / "ray", *settings, "cluster.workers=1", progress=kill)
        assert "--resume" in error.value.fix
        coterie.train(resume=tmp_path / "ray")
        assert len(server.paid) == len(set(server.paid))
        coterie.train(MATRIX, overrides=settings, out=tmp_path / "local")
    same(tmp_path / "local", tmp_path / "ray")


class Slow(Plugin):
    """A reward source that notes when its calls, and the programs that it runs, began and ended."""

    class Config(PluginConfig):
        notes: str
        sandbox: Annotated[Any, Composed("sandbox")]

    scope = "joint"
    weights = {}
    policy_fault = 0.0

    @property
    def components(self) -> Any:
        return {self.build.name: "increment"}

    async def score(self, view: Any) -> Any:
        began = time.time()
        await asyncio.sleep(0.02)
        self._note("calls", began, time.time())
        code = "import time\nprint(time.time())\ntime.sleep(0.1)\nprint(time.time())"
        if self.build.name == "programs":
            self._note(
                "programs", *map(float, (await self.config.sandbox.run(Program(code=code))).stdout.split())
            )
        return {(TEAM, self.build.name): 0.0}

    def _note(self, what: str, began: float, ended: float) -> None:
        with Path(self.config.notes).open("a") as file:  # a short line is written at once
            file.write(json.dumps([self.build.name, what, os.getpid(), began, ended]) + "\n")


def most_at_once(spans: list[tuple[float, float]]) -> int:
    events = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    now, most = 0, 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def test_a_bound_holds_over_all_hosts(cluster, tmp_path):
    """Of three hosts, two calls of a source at once, and two programs."""
    notes = tmp_path / "notes"
    slow = f"type: '{HERE}:Slow', notes: {notes}"
    sources = f"rewards={{environment: {{}}, calls: {{{slow}, concurrency: 2}}, programs: {{{slow}}}}}"
    sandbox = "sandbox={type: local, workers: 2}"
    on_ray(tmp_path / "run", sources, sandbox, "schedule.steps=1", "schedule.evaluate_every=0")
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    for source, what in (("calls", "calls"), ("programs", "programs")):
        spans = [(began, ended) for *names, _, began, ended in lines if names == [source, what]]
        hosts = {pid for name, kind, pid, *_ in lines if (name, kind) == (source, what)}
        assert len(spans) == 64 and len(hosts) == 3
        assert most_at_once(spans) == 2
    free = [(began, ended) for *names, _, began, ended in lines if names == ["programs", "calls"]]
    assert most_at_once(free) > 2, "without a small bound there are more"


DRIVER = """
import json, os, sys, time
from pathlib import Path
import coterie

folder, url = sys.argv[1:]
key = os.environ["A_KEY"]
judge = {"type": "openai", "model": "tiny-1", "base_url": url, "api_key": "${A_KEY}", "backoff": 0.02}
report = {}

def everything():
    import ray
    from ray._private import state
    state.actors()  # connects
    accessor = state.state._global_state_accessor
    tables = [accessor.get_actor_table(None, None), accessor.get_job_table(), accessor.get_node_table(),
              accessor.get_worker_table()]
    yield from ((f"table {n}", repr(table).encode() + b"".join(r for r in table if isinstance(r, bytes)))
                for n, table in enumerate(tables))
    gcs = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    for space in (None, b"fun", b"job", b"session", b"cls", b"actor", b"runtime_env"):
        for name in gcs.internal_kv_keys(b"", space):
            yield f"kv {name}", name + (gcs.internal_kv_get(name, space) or b"")

def look(done, expected, row):
    processes, having = 0, []
    for process in Path("/proc").iterdir():
        try:
            environ = (process / "environ").read_bytes() if process.name.isdigit() else b""
        except OSError:
            continue
        if process.name != str(os.getpid()):
            processes += b"RAY_TMPDIR=" + os.environ["RAY_TMPDIR"].encode() in environ
            having += [(process / "cmdline").read_text()] if key.encode() in environ else []
    parts = dict(everything())
    shown = [name for name, content in parts.items() if key.encode() in content]
    report.update(processes=processes, having=having, shown=shown, parts=len(parts),
                  actors=parts["table 0"].count(b"AccountHost") > 0)

coterie.train("plan_path", scale="smoke", overlays=["ray"], progress=look, out=folder, overrides=[
    "engine=openai", "trainer=none", "policies.shared.train=none", "policies.shared.warm_start=null",
    "policies.shared.model=tiny-1", f"engine.base_url={url}", "engine.api_key=${A_KEY}",
    "engine.backoff=0.02",
    f"chat_models.judge={json.dumps(judge)}", "rewards.coach={type: coach, model: judge}",
    "schedule.steps=1", "schedule.evaluate_every=0", "schedule.max_missing=1", "cluster.workers=2"])
assert os.environ["A_KEY"] == key, "the run's process keeps it"
print(json.dumps(report))
"""


def content(file: Path) -> bytes:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:  # of a process of Ray that ends meanwhile
        return b""
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw


class Echoes(OpenAIServer):
    """A server that refuses every other request of the coach, with its key."""

    async def _respond(self, asked: Any, writer: Any) -> bool:
        limit = asked.body.get("max_tokens") or asked.body.get("max_completion_tokens")
        if limit == 1024 and len(self.asked) % 2:
            return await self._refuse(asked, "400", writer)
        return await super()._respond(asked, writer)


def test_a_key_is_nowhere_on_the_cluster(tmp_path):
    """With an engine and a coach behind an endpoint whose errors and answers repeat the key."""
    session = tempfile.mkdtemp(prefix="key", dir="/tmp")  # a socket's path is short
    environment = {
        **os.environ,
        "RAY_TMPDIR": session,
        "RAY_ADDRESS": "local",
        "A_KEY": KEY,
        "OPENAI_LOG": "debug",
    }
    faults = ("500", "400", "truncated")
    try:
        with Echoes(answer=lambda body: f"R {KEY}", faults=faults, echo_key=True) as server:
            done = subprocess.run(
                [sys.executable, "-c", DRIVER, str(tmp_path / "run"), server.url],
                env=environment, capture_output=True, text=True, timeout=200, cwd=ROOT,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
            assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in server.asked)
        report = json.loads(done.stdout.splitlines()[-1])
        assert report["processes"] >= 5 and report["having"] == []
        assert report["actors"] and report["parts"] > 4 and report["shown"] == []
        places = (session, str(tmp_path))  # `os.walk` leaves out what is removed meanwhile
        files = [Path(at, name) for place in places for at, _, names in os.walk(place) for name in names]
        files = [file for file in files if file.is_file()]
        assert any(file.name.startswith("worker") for file in files), "logs of Ray's processes"
        having = [file for file in files if KEY.encode() in content(file)]
        assert having == []
        records = b"".join(content(file) for file in tmp_path.rglob("*.gz"))
        assert b"answered 400" in records and b"Bearer ${A_KEY}" in records, (
            "errors that repeat it have travelled"
        )
        assert KEY not in done.stdout + done.stderr
        written = (tmp_path / "run" / "remote").iterdir()
        assert {"usage-engine.json", "usage-judge.json", "engine.sqlite", "judge.sqlite"} <= {
            f.name for f in written
        }
    finally:
        shutil.rmtree(session, ignore_errors=True)

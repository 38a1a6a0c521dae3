"""`coterie check`: targets, isolation, exit codes, JSON, watching."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.main import cli
from coterie.testing.checking.apart import check_apart
from coterie.testing.checking.hangs import innermost, stacks_of

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
import asyncio, os, sys
import coterie
from coterie import Plugin, PolicyFault

class Good(Plugin):
    scope, components, weights, policy_fault = "action", {"brief": "potential"}, {}, 0.0
    async def score(self, view):
        return {(view.role, "brief"): 1.0}

class Waits(Good):
    async def score(self, view):
        await asyncio.sleep(1000)

class Opens(Good):
    async def open(self):
        await asyncio.sleep(1000)

    async def close(self):
        pass

class Dies(Good):
    async def score(self, view):
        print("out of memory", file=sys.stderr)
        os._exit(7)

class Prints(Good):
    async def score(self, view):
        print("\\x1b[31mhello")
        return {(view.role, "brief"): 1.0}

class Negative(Good):
    async def score(self, view):
        return {(view.role, "brief"): float("nan")}

@coterie.hookimpl
def register_rewards(register):
    for cls in (Dies, Waits, Opens, Prints, Negative):
        register(f"checked_{cls.__name__.lower()}", cls)
    register("function", Good)
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "checked_plugin.py"
    path.write_text(PLUGIN)
    return path


def test_each_component_is_reported_whatever_the_others_do(plugin):
    outcome = check_apart(str(plugin), timeout=4)
    results = {result.name: result for result in outcome.results}
    assert not outcome.ok
    names = ("dies", "negative", "opens", "prints", "waits")
    assert list(results) == ["checked_plugin", *(f"checked_{name}" for name in names), "function"]
    dies, waits, prints = (results[f"checked_{name}"] for name in ("dies", "waits", "prints"))
    assert "exit code 7" in dies.broken[0].what and "out of memory" in dies.broken[0].what
    assert "scores" in dies.broken[0].promise and dies.kept
    line = PLUGIN.splitlines().index("        await asyncio.sleep(1000)") + 1
    assert waits.broken[0].what == f"has not returned after 2 s ({plugin}, line {line})"
    assert waits.broken[0].where == "Waits.score" and waits.broken[0].fix.startswith("bound its loops")
    opens = results["checked_opens"].broken[0]  # which has more time, and is ended with its process
    assert opens.what == "Opens.open: has not returned after 4 s"
    assert opens.where.endswith(", in open") and str(plugin) in opens.where
    assert prints.ok and any("printed" in note for note in prints.notes)
    assert "already registered by coterie" in results["checked_plugin"].broken[0].what
    assert results["function"].ok, "what lost its name is checked too"
    negative = results["checked_negative"].broken[0]
    assert negative.example.startswith("check_reward(build('reward', 'checked_plugin:Negative'")
    assert "episodes=1" in negative.example and "turns=1" in negative.example


def test_exit_codes_and_json():
    run = CliRunner().invoke
    kept = run(cli, ["check", "loss:ppo_clip", "--json"])
    assert kept.exit_code == 0, kept.output
    table = json.loads(kept.output)
    assert table["ok"] and [part["name"] for part in table["components"]] == ["ppo_clip"]
    assert "grad is the derivative of the value" in table["components"][0]["kept"]
    unknown = run(cli, ["check", "loss:ppo_clipp"])
    assert unknown.exit_code == 2 and "did you mean 'ppo_clip'" in unknown.output
    assert run(cli, ["check", "ppo_clip", "--watch", "--json"]).exit_code == 2


def test_watching_checks_again_and_ends_with_ctrl_c(tmp_path):
    path = tmp_path / "watched.py"
    path.write_text("import coterie\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", "check", str(path), "--watch"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None

    def until_it_waits() -> str:
        lines = []
        for line in process.stdout:
            if "Ctrl-C ends" in line:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(process.communicate())

    try:
        assert "it implements no hook" in until_it_waits()
        path.write_text("import coterie\n@coterie.hookimpl\ndef register_rewards(register): ...\n")
        os.utime(path, (time.time() + 9, time.time() + 9))
        assert "1 component: 1 ok" in until_it_waits()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and errors == "stopped\n"
    finally:
        process.kill()


def test_the_innermost_frame_of_the_plugin_is_named():
    import coterie

    ours = Path(coterie.__file__).parent / "testing" / "checks" / "reward.py"
    text = (
        "Thread 0x1 (most recent call first):\n"
        f'  File "{os.__file__.replace("os.py", "socket.py")}", line 1 in recv\n'
        '  File "/home/a/plugin/http.py", line 7 in get\n'
        '  File "/home/a/plugin/reward.py", line 9 in score\n'
        f'  File "{ours}", line 3 in check\n'
    )
    assert innermost(stacks_of(text)) == "/home/a/plugin/http.py:7, in get"
    assert innermost(stacks_of("Thread 0x1 (most recent call first):\n")) == ""

"""What holds on a real SandboxFusion server: forged verdicts, threads, a restart, HumanEval. By hand, not in
CI.

    python benchmarks/sandbox_fusion.py --label root --serve ./serve.sh --commit 469de08

The script starts the server by the command, kills it in the middle of some runs and starts it again 10 s
later. Results of several labels (ways to start the server) are collected in results/sandbox_fusion.json.
docs/sandbox_fusion.md says how to start a server, and has the table. Hostile candidates attack every process
that they reach: use a machine, a container or a user that nobody else needs.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gzip
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from coterie.backends.sandboxes.fusion import SandboxFusion  # noqa: E402
from coterie.backends.sandboxes.local import LocalSandbox  # noqa: E402
from coterie.core.errors import ConfigError  # noqa: E402
from coterie.core.protocols import Judged, Limits, Program, Verdict  # noqa: E402
from tests.backends.sandboxes import forging  # noqa: E402

LIMITS = Limits(cpu_seconds=5, wall_seconds=20)
HONEST = Judged(candidate="def f(n):\n    return n + 1\n", tests="assert f(1) == 2", calls=("f",))
THREADS = (
    "import threading\nthreads = [threading.Thread(target=print, args=(n,)) for n in range(8)]\n"
    "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
)


class Server:
    """A server that a command starts; it is killed with its process group, but for runs that left it."""

    def __init__(self, command: str, url: str) -> None:
        self.command, self.url = command, url
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            shell=True,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(300):
            try:
                if httpx.get(f"{self.url}/v1/ping", trust_env=False).text == '"pong"':
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise SystemExit(f"{self.command} does not answer at {self.url}")

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", required=True, help="how the server is started, in words")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--serve", required=True, help="shell command that starts the server")
    parser.add_argument("--commit", required=True, help="the server's commit, or its image tag")
    parser.add_argument("--runs", type=int, default=500, help="judged runs with forging candidates")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--problems", type=int, default=164, help="problems of HumanEval (COTERIE_TEST_DATA)")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "sandbox_fusion.json")
    args = parser.parse_args()
    server = Server(args.serve, args.url)
    server.start()
    try:
        row = asyncio.run(measure(server, args))
    finally:
        server.kill()
    table = json.loads(args.results.read_text()) if args.results.exists() else {"rows": {}}
    table |= {"server": args.commit, "kernel": platform.release(), "cpus": os.cpu_count()}
    table["rows"][args.label] = row
    args.results.write_text(json.dumps(table, indent=1) + "\n")
    show(table)


async def measure(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """Everything on one server."""
    row: dict[str, Any] = {}
    config = SandboxFusion.Config(url=args.url, concurrency=args.concurrency, limits=LIMITS)
    sandbox = SandboxFusion(config)
    await sandbox.open()
    try:
        row["missing"] = [protection.name for protection in sandbox.report() if not protection.active]
        row["threads"] = (await sandbox.run(Program(code=THREADS))).ok
        try:
            await sandbox.judge(HONEST)
        except ConfigError as error:
            row["judge"] = f"refused: {error.why}"
            return row
        row["judge"] = "verdicts"
        row["forging"] = await forge(sandbox, args)
        row["restart"] = await restart(sandbox, server)
        row["human_eval"] = await human_eval(sandbox, args.problems)
    finally:
        await sandbox.close()
    return row


async def forge(sandbox: SandboxFusion, args: argparse.Namespace) -> dict[str, Any]:
    """Forging candidates, and wrong and honest ones beside them."""
    tests = forging.TESTS.format(secret=secrets.token_hex(8))
    cheats = forging.programs(args.url)
    cases = []
    for number in range(args.runs):
        code = cheats[number // 5 % len(cheats)].code if number % 5 == 0 else forging.WRONG
        wrong = Judged(candidate=code, tests=tests, calls=("f",))
        cases.append(HONEST if number % 5 in (2, 4) else wrong)
    began = time.perf_counter()
    verdicts = await asyncio.gather(*map(sandbox.judge, cases), return_exceptions=True)
    done = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    pairs = list(zip(cases, verdicts, strict=True))
    return {
        "runs": len(cases),
        "hostile": sum(case is not HONEST and case.candidate != forging.WRONG for case in cases),
        "forged": sum(case is not HONEST and isinstance(v, Verdict) and v.passed > 0 for case, v in pairs),
        "honest": sum(case is HONEST for case in cases),
        "honest_passed": sum(case is HONEST and isinstance(v, Verdict) and v.ok for case, v in pairs),
        "lost": len(cases) - len(done),
        "warnings": sum(bool(verdict.warning) for verdict in done),
        "seconds": round(time.perf_counter() - began, 1),
    }


async def restart(sandbox: SandboxFusion, server: Server, pause: float = 10.0) -> dict[str, Any]:
    """The server is killed while runs are in flight, and started again after `pause` seconds."""
    runs = [Program(code=f"import time\ntime.sleep(1)\nprint({number})") for number in range(40)]

    async def break_it() -> None:
        await asyncio.sleep(2.0)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(pause)
        await asyncio.to_thread(server.start)

    began = time.perf_counter()
    breaking = asyncio.create_task(break_it())
    results = await asyncio.gather(*map(sandbox.run, runs), return_exceptions=True)
    await breaking
    good = [
        number for number, ran in enumerate(results)
        if not isinstance(ran, BaseException) and ran.ok and ran.stdout == f"{number}\n"
    ]  # fmt: skip
    seconds = round(time.perf_counter() - began, 1)
    faults = sorted({str(ran)[:200] for ran in results if isinstance(ran, Exception)})
    return {
        "pause": pause,
        "runs": len(runs),
        "lost": len(runs) - len(good),
        "seconds": seconds,
        "faults": faults,
    }


async def human_eval(sandbox: SandboxFusion, count: int) -> dict[str, Any]:
    """Canonical solutions and wrong ones: the verdicts there and in sandbox `local`."""
    folder = os.environ.get("COTERIE_TEST_DATA")
    if not folder:
        return {"skipped": "COTERIE_TEST_DATA is not set"}
    with gzip.open(Path(folder) / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines][:count]
    cases = [
        case_of(problem, code)
        for problem in problems
        for code in (problem["canonical_solution"], "    return None\n")
    ]
    local = LocalSandbox(LocalSandbox.Config(limits=LIMITS))
    await local.open()
    try:
        expected = await asyncio.gather(*map(local.judge, cases))
    finally:
        await local.close()
    verdicts = await asyncio.gather(*map(sandbox.judge, cases))
    outcomes = [[(verdict.passed, verdict.total) for verdict in both] for both in (expected, verdicts)]
    return {
        "programs": len(cases),
        "equal": sum(a == b for a, b in zip(*outcomes, strict=True)),
        "passed": sum(verdict.ok for verdict in verdicts),
    }


def case_of(problem: dict[str, str], solution: str) -> Judged:
    """A problem: what its prompt defines is in the candidate and may be called by its tests."""
    defined = ast.parse(problem["prompt"] + "    pass\n").body
    calls = tuple(node.name for node in defined if isinstance(node, ast.FunctionDef))
    tests = f"{problem['test']}\ncheck({problem['entry_point']})\n"
    return Judged(candidate=problem["prompt"] + solution, tests=tests, calls=calls)


def show(table: dict[str, Any]) -> None:
    """Print the table of all labels."""
    console = Table("server", "judge", "forged", "honest", "threads", "restart", "HumanEval", box=None)
    for label, row in table["rows"].items():
        cells = [label, row["judge"].partition(":")[0]]
        if "forging" in row:
            f, r, h = row["forging"], row["restart"], row["human_eval"]
            cells += [f"{f['forged']} of {f['runs']} ({f['hostile']} hostile)"]
            cells += [f"{f['honest_passed']} of {f['honest']}", "run" if row["threads"] else "fail"]
            cells += [
                f"{r['pause']:g} s: {r['lost']} of {r['runs']} lost",
                f"{h['equal']} of {h['programs']}",
            ]
        else:
            cells += ["-", "-", "run" if row["threads"] else "fail", "-", "-"]
        console.add_row(*cells)
    Console(width=160).print(console)


if __name__ == "__main__":
    main()

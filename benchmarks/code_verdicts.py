"""Whether the sandboxes `local` and `sandbox_fusion` judge code alike. By hand, not in CI.

    python benchmarks/code_verdicts.py --data HumanEval.jsonl.gz [--url http://HOST:8080]

Judge every reference of HumanEval and of our cooperative problems, and six mutants of each of 20 problems of
each set (return None, off by one, syntax error, endless loop, exit, recursion bomb) at a second of CPU time,
by both. Without --url a server that speaks SandboxFusion's protocol is started here. Print a table, and write
results/code_verdicts.json. Exit with 1 where a verdict differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from coterie.backends.data.sets.forms import humaneval  # noqa: E402
from coterie.backends.data.shipped import Cooperative  # noqa: E402
from coterie.backends.sandboxes.fusion import SandboxFusion  # noqa: E402
from coterie.backends.sandboxes.local import LocalSandbox  # noqa: E402
from coterie.core.protocols import Limits, Verdict  # noqa: E402
from coterie.plugins.envs.code.judging import CodeJudge, whole_program  # noqa: E402
from coterie.plugins.envs.code.problem import CodeProblem, problem_of  # noqa: E402
from coterie.plugins.envs.code.sources import kept_code  # noqa: E402
from tests.backends.sandboxes.fusion_server import FusionServer  # noqa: E402
from tests.plugins.envs.code.mutants import SECONDS, mutants  # noqa: E402

MUTATED = 20
"""Problems of each set whose mutants are judged."""
Programs = list[tuple[str, CodeProblem, str]]
"""(name, problem, program)."""


def asked(problems: dict[str, CodeProblem]) -> tuple[Programs, Programs]:
    """The references of all problems, and the mutants of some."""
    references = [(name, p, whole_program(p, kept_code(p.solution))) for name, p in problems.items()]
    step = max(1, len(problems) // MUTATED)
    some = {name: problems[name] for name in list(problems)[::step][:MUTATED]}
    changed = [
        (f"{name}, {kind}", p, whole_program(p, code))
        for name, p in some.items()
        for kind, code in mutants(p).items()
    ]
    return references, changed


async def judged(sandbox: Any, programs: Programs, limits: Limits | None) -> list[Verdict]:
    """The verdicts, in order."""
    await sandbox.open()
    try:
        judge = CodeJudge(sandbox, limits)
        return list(await asyncio.gather(*(judge.judge(p, code, p.tests) for _, p, code in programs)))
    finally:
        await sandbox.close()


def compared(url: str, programs: Programs, limits: Limits | None) -> dict[str, Any]:
    """How many verdicts are alike, and those that differ; seconds of each sandbox."""
    verdicts, seconds = {}, {}
    for name, sandbox in (
        ("local", LocalSandbox(LocalSandbox.Config(workers=2), None)),
        ("sandbox_fusion", SandboxFusion(SandboxFusion.Config(url=url, concurrency=2), None)),
    ):
        begin = time.perf_counter()
        verdicts[name] = asyncio.run(judged(sandbox, programs, limits))
        seconds[name] = round(time.perf_counter() - begin, 1)
    pairs = list(zip(programs, verdicts["local"], verdicts["sandbox_fusion"], strict=True))
    different = [
        {"name": name, "local": [a.passed, a.total], "sandbox_fusion": [b.passed, b.total]}
        for (name, _, _), a, b in pairs
        if (a.passed, a.total) != (b.passed, b.total)
    ]
    passed = sum(verdict.ok for verdict in verdicts["local"])
    return {"programs": len(pairs), "passed": passed, "different": different, "seconds": seconds}


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The address of a server; one that is started here where none is given."""
    if url is not None:
        yield url
        return
    with FusionServer() as started:
        yield started.url


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="HumanEval.jsonl.gz")
    parser.add_argument("--url", help="a SandboxFusion server [one that is started here]")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "code_verdicts.json")
    options = parser.parse_args()
    rows = [json.loads(line) for line in gzip.decompress(options.data.read_bytes()).splitlines()]
    source = Cooperative(Cooperative.Config(), None)
    ours = [record for split in ("train", "val", "test") for record in source.records(split)]
    sets = {
        "HumanEval": {row["task_id"]: problem_of(humaneval(row, index)) for index, row in enumerate(rows)},
        "cooperative": {record["id"]: problem_of(record) for record in ours},
    }
    found: dict[str, Any] = {}
    with server(options.url) as url:
        for name, problems in sets.items():
            references, changed = asked(problems)
            found[f"{name}, references"] = compared(url, references, None)
            found[f"{name}, mutants"] = compared(url, changed, Limits(cpu_seconds=SECONDS))
    print("| programs | judged | pass | verdicts that differ |\n|---|---|---|---|")
    for name, row in found.items():
        print(f"| {name} | {row['programs']} | {row['passed']} | {len(row['different'])} |")
    facts = {
        "command": "python benchmarks/code_verdicts.py --data HumanEval.jsonl.gz"
        + " --url URL" * bool(options.url),
        "server": "given" if options.url else "tests/backends/sandboxes/fusion_server.py",
        "python": platform.python_version(),
        "sets": found,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(1 if any(row["different"] for row in found.values()) else 0)


if __name__ == "__main__":
    main()

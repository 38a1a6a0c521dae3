"""Honest programs in sandbox `local` and under plain CPython, side by side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Program, Ran, Verdict
from tests.backends.sandboxes import honest_functions, honest_programs
from tests.backends.sandboxes.honest_functions import FAMILIES, LIMITED, in_one_process
from tests.backends.sandboxes.plainly import Plain, run_plainly


class Compared(NamedTuple):
    """One program, and whether the sandbox did what plain CPython does."""

    family: str
    part: str
    """`program`, `judged`, `limit` (of docs/sandbox.md) or `HumanEval`."""
    agrees: bool
    passed: bool
    """Plainly: the exit code is 0."""
    detail: str = ""


def programs(count: int) -> list[tuple[str, Program]]:
    names = [*honest_programs.FAMILIES]
    return [
        (names[k % len(names)], honest_programs.program(names[k % len(names)], k // len(names)))
        for k in range(count)
    ]


def judged(count: int, problems: int) -> list[tuple[str, str, Judged]]:
    """Generated cases, and of each of the HumanEval problems the canonical and a mutated solution."""
    cases = [("judged", *pair) for pair in honest_functions.families([*FAMILIES], count)]
    cases += [("limit", name, honest_functions.case(name, 0)) for name in LIMITED]
    every = honest_functions.human_eval()
    for index, problem in enumerate(every[:: max(1, len(every) // max(problems, 1))][:problems]):
        cases.append(("HumanEval", "canonical", honest_functions.human_eval_case(problem)))
        cases.append(("HumanEval", "mutated", honest_functions.human_eval_case(problem, seed=index)))
    return cases


def compare(whole: Sequence[tuple[str, Program]], cases: Sequence[tuple[str, str, Judged]]) -> list[Compared]:
    """Run everything in both ways."""
    alone = [program for _, program in whole]
    alone += [Program(code=in_one_process(case)) for _, _, case in cases]
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        plain = list(pool.map(run_plainly, alone))
    ran, verdicts = asyncio.run(_in_local([program for _, program in whole], [case for _, _, case in cases]))
    out = []
    for (family, _), done, expected in zip(whole, ran, plain, strict=False):
        out.append(Compared(family, "program", *_same(done, expected)))
    for (part, family, _), verdict, expected in zip(cases, verdicts, plain[len(whole) :], strict=True):
        passed = expected.exit_code == 0
        detail = "" if verdict.ok == passed else f"judged {verdict.ok}: {verdict.failures[:1]}"
        out.append(Compared(family, part, verdict.ok == passed, passed, detail))
    return out


async def _in_local(
    whole: Sequence[Program], cases: Sequence[Judged]
) -> tuple[Sequence[Ran], Sequence[Verdict]]:
    sandbox = LocalSandbox(LocalSandbox.Config())
    await sandbox.open()
    try:
        ran = await asyncio.gather(*map(sandbox.run, whole))
        return ran, await asyncio.gather(*map(sandbox.judge, cases))
    finally:
        await sandbox.close()


def _same(done: Ran, expected: Plain) -> tuple[bool, bool, str]:
    """Whether exit code, stdout, files and the last line of stderr are equal; passed; what differs."""
    last = [text.splitlines()[-1:] for text in (done.stderr, expected.stderr)]
    pairs = {
        "exit code": (done.exit_code, expected.exit_code),
        "stdout": (done.stdout, expected.stdout),
        "files": (dict(done.files), dict(expected.files)),
        "stderr": (last[0], last[1]),
    }
    differs = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return not differs, expected.exit_code == 0, str(differs)[:300] if differs else ""

"""Make the mutants, run the tests that judge them, and say which were killed."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.long.mutants.covering import Reach, file_of, name
from tests.long.mutants.sites import Site, mutated
from tests.long.tree import copy_tree, environment

WORKERS = 2
PARTS = 16
"""Parts of the test suite in the traced run: small enough that both workers end at about the same time."""
SOUND = 20
"""Of so many mutants, the tests of one are also run without it: they must pass."""
HARMLESS = (0, 5)
"""Codes of pytest: the tests pass, or none has the name that it had in the traced run."""
OUTCOMES = {0: "survived", 5: "survived", -1: "timeout"}
T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """What the tests make of a mutant: `killed`, `survived` or `timeout`; a timeout kills too."""

    outcome: str
    killer: str = ""
    """The name of the test that failed first; "" where the tests could not even be imported."""
    tests: int = 0
    """How many tests were to judge it; none: no test runs its line."""

    @property
    def killed(self) -> bool:
        return self.outcome != "survived"


@dataclass(frozen=True)
class Trial:
    """A mutant, and the tests that judge it."""

    site: Site
    tests: Sequence[str]
    seconds: float
    """What these tests cost without a mutant."""
    longest: float
    """What the dearest of them costs."""
    killer: str = ""
    """The name of the test that is known to kill it."""


class Worker:
    """A copy of the tree with a warm process in it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.tree = folder, copy_tree(folder / "tree", root)
        self._times = itertools.count(1_000_000_000)
        self.process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.long.mutants.warm"],
            cwd=self.tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(self.tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )

    def ask(
        self,
        what: str,
        tests: Sequence[str] = (),
        limit: float = 900,
        test_limit: float = 300,
        **more: object,
    ) -> dict[str, Any]:
        """Have the warm process do a job (`warm.child` says which there are); a dead one is replaced once."""
        files = list(dict.fromkeys(file_of(test) for test in tests))
        job = {"what": what, "tests": list(tests), "files": files, "skip": [], "folder": str(self.folder)}
        line = json.dumps(job | {"limit": limit, "test_limit": test_limit, **more})
        for _ in range(2):
            answer = self._answer(line)
            if answer is not None:
                return answer
            self.close()
            self.process = self._started()
        raise RuntimeError(f"the process that runs the tests has died twice: {line[:1000]}")

    def _answer(self, line: str) -> dict[str, Any] | None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else None

    def judge(self, trial: Trial) -> Verdict:
        if not trial.tests:
            return Verdict("survived")
        file = self.tree / trial.site.path
        source, times = file.read_bytes(), file.stat()
        file.write_bytes(mutated(source, trial.site))
        # Byte code is kept by a file's time and size: no two contents may share a time.
        moment = next(self._times)
        os.utime(file, (moment, moment))
        try:
            return self._verdict(trial)
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _verdict(self, trial: Trial) -> Verdict:
        """A test kills if it fails a second time, alone: what fails by chance says nothing of the mutant."""
        tests, count = list(trial.tests), len(trial.tests)
        limits = 60 + 8 * trial.seconds, max(20.0, 10 * trial.longest)
        known = [test for test in tests if name(test) == trial.killer]
        if known and self.ask("judge", known, *limits)["code"] not in HARMLESS:
            return Verdict("killed", trial.killer, count)
        while tests:
            answer = self.ask("judge", tests, *limits)
            if not answer["failed"]:
                return Verdict(OUTCOMES.get(answer["code"], "killed"), "", count)
            first = answer["failed"][0]
            if self.ask("judge", [first], *limits)["code"] not in HARMLESS:
                return Verdict("killed", name(first), count)
            tests.remove(first)
        return Verdict("survived", "", count)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)


class Judges:
    """Workers that take mutants from one queue. A context manager."""

    def __init__(self, folder: Path, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.root, self.say = root, say
        self.workers = [Worker(folder / f"worker{number}", root) for number in range(WORKERS)]

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.close()

    def reach(self, skip: Sequence[str] = ()) -> Reach:
        """Run the suite once, without the tests named in `skip`, to see which test runs which lines."""
        files = sorted((self.root / "tests").rglob("test_*.py"))
        names = [file.relative_to(self.root).as_posix() for file in files if file.parent.name != "long"]
        parts = self._shared(
            [names[index::PARTS] for index in range(PARTS)],
            lambda worker, part: worker.ask("trace", files=part, skip=list(skip)),
        )
        self.say(f"traced {sum(len(part.get('tests', ())) for part in parts)} tests")
        broken = [part["code"] for part in parts if part["code"] not in (0, 1, 5)]
        assert not broken, f"pytest ended with {broken} on the tree without a mutant"
        return Reach(parts, self.root)

    def verdicts(self, sites: Sequence[Site], reach: Reach, killers: Sequence[str] = ()) -> list[Verdict]:
        """Of each site's mutant; `killers` are the tests to begin with, one a site."""
        killers = killers or [""] * len(sites)
        trials = [trial(site, reach, killer) for site, killer in zip(sites, killers, strict=True)]
        false = [verdict for verdict in self._judged(unbroken(trials[::SOUND], self.root)) if verdict.killed]
        assert not false, f"tests fail without a mutant: {false}"
        verdicts = self._judged(trials)
        unsure = self._failing({verdict.killer for verdict in verdicts if verdict.killer}, trials)
        again = [index for index, verdict in enumerate(verdicts) if verdict.killer in unsure]
        kept = [without(trials[index], unsure, reach) for index in again]
        for index, verdict in zip(again, self._judged(kept), strict=True):
            verdicts[index] = verdict
        return verdicts

    def _judged(self, trials: Sequence[Trial]) -> list[Verdict]:
        number = itertools.count(1)

        def judged(worker: Worker, trial: Trial) -> Verdict:
            verdict = worker.judge(trial)
            self.say(f"{next(number)}/{len(trials)} {verdict.outcome:8} {described(trial.site)}")
            return verdict

        return self._shared(trials, judged)

    def _failing(self, killers: set[str], trials: Sequence[Trial]) -> set[str]:
        """The killers that fail on the tree without a mutant too: nothing follows from these."""
        tests = sorted({test for trial in trials for test in trial.tests if name(test) in killers})
        halves = [tests[index :: len(self.workers)] for index in range(len(self.workers))]
        answers = self._shared(
            [half for half in halves if half], lambda worker, half: worker.ask("check", half)
        )
        return {name(test) for answer in answers for test in answer["failed"]}

    def _shared(self, items: Iterable[Any], work: Callable[[Worker, Any], T]) -> list[T]:
        """The work on every item, by whichever worker is free."""
        free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def run(item: Any) -> T:
            worker = free.get()
            try:
                return work(worker, item)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(run, items))


def trial(site: Site, reach: Reach, killer: str = "") -> Trial:
    return timed(site, reach.judges(site, killer), reach, killer)


def unbroken(trials: Sequence[Trial], root: Path) -> list[Trial]:
    """The trials of mutants that change nothing."""
    texts = [(root / trial.site.path).read_bytes()[trial.site.start : trial.site.end] for trial in trials]
    return [
        replace(trial, site=replace(trial.site, operator="nothing", replacement=text.decode()), killer="")
        for trial, text in zip(trials, texts, strict=True)
    ]


def without(trial: Trial, names: set[str], reach: Reach) -> Trial:
    return timed(trial.site, [test for test in trial.tests if name(test) not in names], reach)


def timed(site: Site, tests: Sequence[str], reach: Reach, killer: str = "") -> Trial:
    longest = max((reach.times[test] for test in tests), default=0.0)
    return Trial(site, tests, reach.together(tests), longest, killer)


def described(site: Site) -> str:
    text = " ".join(site.text.split())
    short = text if len(text) <= 80 else text[:77] + "..."
    return f"{site.path}:{site.lines[0]} {site.qualname or 'module'} [{site.operator}] {short}"

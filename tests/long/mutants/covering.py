"""Which tests run which lines of the package, and which of them judge a mutant."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.long.mutants.sites import Site

PACKAGE = "coterie"
SHARED = "file:"
"""Prefix of the context in which a file's shared fixtures are made: their lines count for all its tests."""
SECONDS = 15.0
"""What the tests that judge one mutant may take together, by what they cost in the traced run."""
MOST = 300
"""How many tests judge one mutant at most."""
SLOW = 3.0
"""A test that costs more seconds than this, traced, judges no mutant."""


class Cost:
    """What work costs: the processor's seconds, or a quarter of the wall's where it mostly waits.

    Other programs on the machine hardly change it, so the same tests are chosen whatever else is running.
    """

    def __init__(self) -> None:
        self.begin = os.times()

    def seconds(self) -> float:
        now = os.times()
        return max(sum(now[:4]) - sum(self.begin[:4]), (now.elapsed - self.begin.elapsed) / 4)


class Tracing:
    """A pytest plugin: coverage, with the running test as its context, and what each test costs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{root}/{PACKAGE}/*"], messages=False
        )
        self.coverage.start()
        self.costs: dict[str, float] = defaultdict(float)
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        with self._context(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope != "module":
            return (yield)
        with self._context(SHARED + file_of(self._test), after=self._test):
            return (yield)

    @contextmanager
    def _context(self, name: str, after: str = "") -> Iterator[None]:
        self.coverage.switch_context(name)
        cost = Cost()
        try:
            yield
        finally:
            self.coverage.switch_context(after)
            seconds = cost.seconds()
            self.costs[name] += seconds
            self.costs[after] -= seconds

    def reach(self, passed: list[str]) -> dict[str, Any]:
        """What `Reach` holds, of the tests that passed."""
        self.coverage.stop()
        masks = {test: 1 << index for index, test in enumerate(passed)}
        for test in passed:
            shared = SHARED + file_of(test)
            masks[shared] = masks.get(shared, 0) | masks[test]
        data, counts = self.coverage.get_data(), Counter[str]()
        lines: dict[str, dict[str, str]] = {}
        for file in data.measured_files():
            path = Path(file).relative_to(self.root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                counts.update(contexts)
                mask = 0
                for context in contexts:
                    mask |= masks.get(context, 0)
                lines.setdefault(path, {})[str(line)] = f"{mask:x}"
        return {
            "tests": passed,
            "seconds": [self.costs[test] for test in passed],
            "shared": {
                context.removeprefix(SHARED): seconds
                for context, seconds in self.costs.items()
                if context.startswith(SHARED)
            },
            "counts": [counts[test] for test in passed],
            "lines": lines,
        }


class Reach:
    """The tests, what each costs, how many lines each runs, and which tests run a line, as a bit mask."""

    def __init__(self, parts: Iterable[Mapping[str, Any]], root: Path) -> None:
        self.tests: list[str] = []
        self.seconds: list[float] = []
        self.counts: list[int] = []
        self.shared: dict[str, float] = {}
        """file -> what its tests' shared fixtures cost."""
        self.masks: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for part in parts:
            for path, lines in part["lines"].items():
                for line, mask in lines.items():
                    self.masks[path][int(line)] |= int(mask, 16) << len(self.tests)
            self.tests += part["tests"]
            self.seconds += part["seconds"]
            self.counts += part["counts"]
            self.shared |= part["shared"]
        self.times = {
            test: seconds + self.shared.get(file_of(test), 0.0)
            for test, seconds in zip(self.tests, self.seconds, strict=True)
        }
        """test -> what it costs alone."""
        self.skip: set[str] = set()
        """Names of tests that judge nothing."""
        self._sources = {path: (root / path).read_text(encoding="utf-8").splitlines() for path in self.masks}

    def slow(self) -> list[str]:
        """The names of the slow tests."""
        return sorted({name(test) for test, seconds in self.times.items() if seconds > SLOW})

    def judges(self, site: Site, first: str = "") -> list[str]:
        """The tests that judge the site's mutant: the fast ones first, then those that run few lines.

        `first` is the name of a test that is chosen in any case, where it reaches the mutant.
        """
        mask = self._mask(site)
        reaching = [index for index in range(len(self.tests)) if mask >> index & 1]
        indices = [index for index in reaching if self._name(index) not in self.skip]
        indices.sort(key=lambda index: (self._name(index) != first, *self._cost(index)))
        chosen: list[str] = []
        for index in indices[:MOST]:
            if chosen and self.together([*chosen, self.tests[index]]) > SECONDS:
                break
            chosen.append(self.tests[index])
        return self._by_file(chosen)

    def together(self, tests: Sequence[str]) -> float:
        """What the tests cost together."""
        shared = sum(self.shared.get(file, 0.0) for file in {file_of(test) for test in tests})
        return shared + sum(self.times[test] - self.shared.get(file_of(test), 0.0) for test in tests)

    def _by_file(self, tests: list[str]) -> list[str]:
        """File after file, so that what a file's tests share is made once; the fast files first."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            files[file_of(test)].append(test)
        return [
            test
            for file in sorted(files, key=lambda file: self.together(files[file]))
            for test in files[file]
        ]

    def _name(self, index: int) -> str:
        return name(self.tests[index])

    def _cost(self, index: int) -> tuple[int, int, str]:
        """Times in steps of a factor of two, so that the order hardly depends on the machine's load."""
        step = math.floor(math.log2(max(self.times[self.tests[index]], 0.02) / 0.02))
        return step, self.counts[index], self.tests[index]

    def _mask(self, site: Site) -> int:
        if site.names:
            return next(filter(None, (self._users(name) for name in site.names)), 0)
        return self._between(site.path, *site.lines) or self._between(site.path, *site.statement)

    def _between(self, path: str, first: int, last: int) -> int:
        mask = 0
        for line in range(first, last + 1):
            mask |= self.masks[path].get(line, 0) if path in self.masks else 0
        return mask

    def _users(self, name: str) -> int:
        """The tests that run a line which names it."""
        word, mask = re.compile(rf"\b{re.escape(name)}\b"), 0
        for path, text in self._sources.items():
            for number, tests in self.masks[path].items():
                if tests and 0 < number <= len(text) and word.search(text[number - 1]):
                    mask |= tests
        return mask


def name(test: str) -> str:
    """A test's name without its file: `test_x[param]`."""
    return test.partition("::")[2]


def file_of(test: str) -> str:
    return test.partition("::")[0]

"""Which tests run which lines of the package, and which of them judge a mutant."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
"""What the tests that judge one mutant may take together, by the times of the traced run."""
MOST = 300
"""How many tests judge one mutant at most."""
SLOW = 4.0
"""A test that takes more seconds than this, traced, judges no mutant."""


class Tracing:
    """A pytest plugin: coverage, with the running test as its context."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{root}/{PACKAGE}/*"], messages=False
        )
        self.coverage.start()
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
        with self._context(SHARED + self._test.partition("::")[0], after=self._test):
            return (yield)

    @contextmanager
    def _context(self, name: str, after: str = "") -> Iterator[None]:
        self.coverage.switch_context(name)
        try:
            yield
        finally:
            self.coverage.switch_context(after)

    def reach(self, passed: list[str], seconds: Mapping[str, float]) -> dict[str, Any]:
        """What `Reach` holds, of the tests that passed."""
        self.coverage.stop()
        masks = {test: 1 << index for index, test in enumerate(passed)}
        for test in passed:
            shared = SHARED + test.partition("::")[0]
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
            "seconds": [seconds[test] for test in passed],
            "counts": [counts[test] for test in passed],
            "lines": lines,
        }


class Reach:
    """The tests, what each takes, how many lines each runs, and which tests run a line, as a bit mask."""

    def __init__(self, parts: Iterable[Mapping[str, Any]], root: Path) -> None:
        self.tests: list[str] = []
        self.seconds: list[float] = []
        self.counts: list[int] = []
        self.masks: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for part in parts:
            for path, lines in part["lines"].items():
                for line, mask in lines.items():
                    self.masks[path][int(line)] |= int(mask, 16) << len(self.tests)
            self.tests += part["tests"]
            self.seconds += part["seconds"]
            self.counts += part["counts"]
        self.times = dict(zip(self.tests, self.seconds, strict=True))
        self.skip: set[str] = set()
        """Names of tests that judge nothing."""
        self._sources = {path: (root / path).read_text(encoding="utf-8").splitlines() for path in self.masks}

    def slow(self) -> list[str]:
        """The names of the slow tests."""
        return sorted({name(test) for test, seconds in self.times.items() if seconds > SLOW})

    def judges(self, site: Site, first: str = "") -> list[str]:
        """The tests that judge the site's mutant: the fast ones first, then those that run few lines.

        `first` is the name of the test that killed the same mutant elsewhere; where it is among those that
        reach the mutant, it goes first.
        """
        mask = self._mask(site)
        reaching = [index for index in range(len(self.tests)) if mask >> index & 1]
        indices = [index for index in reaching if self._name(index) not in self.skip]
        indices.sort(key=lambda index: (self._name(index) != first, *self._cost(index)))
        chosen, total = [], 0.0
        for index in indices[:MOST]:
            total += self.seconds[index]
            if chosen and total > SECONDS:
                break
            chosen.append(self.tests[index])
        return chosen

    def _name(self, index: int) -> str:
        return name(self.tests[index])

    def _cost(self, index: int) -> tuple[int, int, str]:
        """Times in steps of a factor of two, so that the order hardly depends on the machine's load."""
        step = math.floor(math.log2(max(self.seconds[index], 0.02) / 0.02))
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
                if tests and number <= len(text) and word.search(text[number - 1]):
                    mask |= tests
        return mask


def name(test: str) -> str:
    """A test's name without its file: `test_x[param]`."""
    return test.partition("::")[2]

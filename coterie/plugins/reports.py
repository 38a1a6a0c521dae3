"""Reports of environments on what a team made: the plain data in `Step.info` that reward sources weigh.

An environment names its reports in `reports`; `Step.info[name]` has one where there is something to report. A
reward source of scope `joint` asks for a report by name, so any environment that gives it can be scored.
"""

from __future__ import annotations

from typing import TypedDict


class CodeReport(TypedDict):
    """`info["code"]`: the team's program, once the role that completes it has acted."""

    team: bool
    """Whether a helper role writes `aux`."""
    aux: bool
    """The helper wrote a function `aux` that returns something."""
    main: bool
    """The main role wrote the entry point, and it returns something (a program: there is code)."""
    builds: bool
    """There is code, and imports, given helpers, `aux` and the entry point parse together."""
    runs: bool
    """The program could be loaded, and at least one test was reached; of a program that reads stdin, at least
    one case ended with exit code 0."""
    passed: int
    """Hidden tests that it passed, of `total`."""
    total: int
    visible_passed: int
    """Tests that the team may see and that it passed, of `visible_total`."""
    visible_total: int
    called: bool
    """The entry point reaches a call of the helper's `aux`."""
    thin: bool
    """The entry point does nothing but call `aux`."""
    ignored: bool
    """The entry point calls `aux` and uses no result of it."""


class WrittenTestsReport(TypedDict):
    """`info["tests"]`: the tests that a role wrote."""

    author: str
    """The role."""
    count: int
    """Tests that can be read."""
    valid: float
    """Share of what it wrote that can be read as tests and run; 0 for none."""
    right: float | None
    """Share of its tests that the reference solution passes; None without a reference solution."""


class WritingReport(TypedDict):
    """`info["writing"]`: two texts, measured. Values are shares in [0, 1], 0 after a failed level."""

    structure: float
    length: float
    vocabulary: float
    style: float

"""A process that has imported everything but the package, and forks a child for every call of pytest.

    python -m tests.long.mutants.warm        # in the tree's folder; one JSON object a line, in and out

Importing torch and its kind takes seconds; the tests that judge a mutant often take less than one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = (
    "numpy", "pydantic", "pluggy", "click", "rich", "ruamel.yaml", "httpx", "tenacity", "jinja2",
    "hypothesis", "xdist.plugin", "pytest_timeout", "coverage", "torch", "transformers", "peft",
    "safetensors", "datasets", "pyarrow", "mcp", "matplotlib.pyplot",
)  # fmt: skip
OPTIONS = ("-n0", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0")


class Watch:
    """Runs the wanted tests in the order given, and keeps which passed and which failed."""

    def __init__(self, wanted: list[str], skip: set[str]) -> None:
        self.wanted = {test: index for index, test in enumerate(wanted)}
        self.skip = skip
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid.partition("::")[2] not in self.skip]
        if self.wanted:
            items[:] = [item for item in items if item.nodeid in self.wanted]
            items.sort(key=lambda item: self.wanted[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def child(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job's tests in this process: `code` is pytest's, `failed` the tests that failed, in order.

    `what` is `judge` (stop at the first that fails), `check` (run them all) or `trace` (run all tests of the
    files, and note the lines that each runs). Whole files are collected, as names in brackets may hold
    characters that the command line takes for its own.
    """
    watch, plugins = Watch(job["tests"], set(job["skip"])), []
    options = [*OPTIONS, f"--basetemp={job['folder']}/temp", f"--timeout={job['test_limit']}"]
    if job["what"] == "judge":
        options.append("-x")
    if job["what"] == "trace":
        from tests.long.mutants.covering import Tracing

        plugins.append(Tracing(Path.cwd()))
    code = int(pytest.main([*options, *job["files"]], plugins=[watch, *plugins]))
    answer = {"code": code, "failed": watch.failed}
    for tracing in plugins:
        answer |= tracing.reach(watch.passed)
    return answer


def forked(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job in a child; one that takes more than `limit` seconds is killed and gives code -1."""
    folder = Path(job["folder"])
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        status = 1
        with contextlib.suppress(BaseException):
            result.write_text(json.dumps(child(job)), encoding="utf-8")
            status = 0
        os._exit(status)
    ended = False
    while not ended and time.monotonic() - begin < job["limit"]:
        ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        time.sleep(0 if ended else 0.01)
    with contextlib.suppress(ProcessLookupError):  # also what the child has started and left
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return {"code": -1, "failed": [], "wall": time.monotonic() - begin}
    answer = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"code": 1, "failed": []}
    return {**answer, "wall": time.monotonic() - begin}


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # the children then share the libraries' pages
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

"""docs/reading.md: its files take part in a step, and no file of the core that does is left out."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.support import TABULAR, anew

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
LIST, _, HELPERS = PAGE.partition("## Helpers")
ORDER = re.findall(r"^\| \d+ \| `([\w/.]+)` \|", LIST, re.MULTILINE)


def helpers() -> list[str]:
    """Every file that a group of helpers names."""
    return [
        f"coterie/{room}/{name}"
        for room, names in re.findall(r"^\| `([\w/]+)` \| ([^|]+) \|", HELPERS, re.MULTILINE)
        for name in re.findall(r"`(\w+\.py)`", names)
    ]


def files_that_ran(tmp_path: Path, *arguments: str) -> set[str]:
    """The files of the package of which a function runs in `coterie run ...`."""
    files, package = set(), f"{ROOT}/coterie/"

    def called(frame, event, _):
        code = frame.f_code
        # Functions alone: the bodies of modules and classes run when they are imported.
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(package):
            files.add(code.co_filename.removeprefix(f"{ROOT}/"))

    before = sys.gettrace()
    threading.settrace(called)
    sys.settrace(called)
    try:
        done = anew("run", *arguments, "--out", tmp_path / "run")
    finally:
        sys.settrace(before)
        threading.settrace(before)
    assert done.exit_code == 0, done.output
    return files


def test_the_list_is_short_and_its_files_exist():
    assert 10 <= len(ORDER) <= 20 and len(set(ORDER)) == len(ORDER)
    assert not [path for path in (*ORDER, *helpers()) if not (ROOT / path).is_file()]


def test_a_reward_becomes_an_advantage_in_at_most_five_files():
    match = re.search(r"A reward becomes an advantage in files (\d+) to (\d+)\.", PAGE)
    assert match
    chain = ORDER[int(match[1]) - 1 : int(match[2])]
    assert len(chain) <= 5
    assert chain[0].endswith("rewards.py") and chain[-1].endswith("groups.py")


def test_every_file_of_the_core_is_on_the_page_once():
    core = {path.relative_to(ROOT).as_posix() for path in (ROOT / "coterie" / "core").rglob("*.py")}
    core = {path for path in core if not path.endswith("/__init__.py")}
    named = [path for path in (*ORDER, *helpers()) if path.startswith("coterie/core/")]
    assert sorted(named) == sorted(core)


def test_every_file_of_the_core_that_runs_in_a_step_is_on_the_page(tmp_path):
    ran = files_that_ran(tmp_path, str(TABULAR), "schedule.steps=1")
    core = {path for path in ran if path.startswith("coterie/core/") and not path.endswith("/__init__.py")}
    assert "coterie/core/loop.py" in core
    assert not sorted(core - {*ORDER, *helpers()})


@pytest.mark.torch
def test_every_file_of_the_list_takes_part_in_a_step_of_the_quickstart(tmp_path):
    for library in ("torch", "transformers", "peft"):
        pytest.importorskip(library)
    small = "{init: qwen3, hidden_size: 16, layers: 1, heads: 1, head_dim: 16, mlp_size: 16, context: 64}"
    ran = files_that_ran(
        tmp_path,
        "quickstart",
        "schedule={steps: 1, tasks_per_step: 2}",
        "sampler.branches=4",
        f"policies.shared.model={small}",
        "policies.shared.warm_start={steps: 1, batch: 4, warmup_steps: 0}",
    )
    ran |= of_components()
    assert not [path for path in ORDER if path not in ran]


def of_components() -> set[str]:
    """Files of the quickstart's components: an algorithm that only names its pieces has no function."""
    from coterie.discovery import plugins
    from coterie.recipes import load

    config = load("quickstart").config
    chosen = {"estimator": config.algorithm["type"], "loss": config.loss["type"]}
    targets = [plugins().registry.load(kind, name) for kind, name in chosen.items()]
    return {target.__module__.replace(".", "/") + ".py" for target in targets}

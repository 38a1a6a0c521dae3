"""Without namespaces: what is closed, that what `check` lists as open is open, and that nothing else is."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import site
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coterie.backends.sandboxes.inside import landlock
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.backends.sandboxes.pool import is_hidden
from coterie.backends.sandboxes.protections import left_open, protections
from coterie.core.errors import SystemFault
from coterie.core.protocols import Program
from tests.backends.sandboxes.support import LIMITS, inside

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "sandbox.md"
STRANGER = 12345
"""The id of an ordinary user, if the tests run as root; each mode has another."""


class Mode(NamedTuple):
    """A way to run without namespaces."""

    python: str
    """`ours`, one that other users can read (`public`) or can't (`private`)."""
    user: bool
    """Whether the host process is an ordinary user."""
    without: tuple[str, ...]
    hello: dict[str, Any]
    """What the worker reports."""
    wrapper: tuple[str, ...] = ()


_ROOT: dict[str, Any] = {"users": True, "processes": True, "apart": True}
_USER: dict[str, Any] = {"users": False, "processes": False, "bounded": True, "reads": "all"}
MODES = {
    "root": Mode("public", False, (), {**_ROOT, "reads": "all"}),
    "root without Landlock": Mode("public", False, ("landlock",), {**_ROOT, "reads": "all", "landlock": 0}),
    "root whose Python is private": Mode("private", False, (), {**_ROOT, "reads": "capability"}),
    "root whose Python is private, without Landlock": Mode(
        "private", False, ("landlock",), {**_ROOT, "reads": "preloaded", "landlock": 0}
    ),
    "root that can't change its user": Mode(  # a user namespace that maps only root
        "ours",
        False,
        (),
        {"users": False, "reads": "all", "apart": True, "bounded": False},
        ("unshare", "-Ur"),
    ),
    "ordinary user": Mode("public", True, (), {**_USER, "apart": True}),
    "ordinary user without Landlock": Mode(
        "public", True, ("landlock",), {**_USER, "apart": False, "landlock": 0}
    ),
    "ordinary user without a filter": Mode("public", True, ("filter",), {**_USER, "seccomp": False}),
}
SHOWN_BY = {
    "names of files": {"names_of_files"},
    "files for all": {"names_of_files", "files_for_all", "list_of_processes"},
    "shared folders": {"shared_folders"},
    "files of the user": {
        "names_of_files", "files_for_all", "list_of_processes", "shared_folders", "private_files",
        "other_folders",
    },
    "other processes": {"environment_of_another", "memory_of_another"},
    "forged verdicts": {"module_of_the_tests", "text_of_the_tests"},
    "counts by user": {"fork_bomb_while_others_end"},
    "processes of root": {"fork_bomb_while_others_end"},
    "system calls": {
        "connection_to_the_trainer", "sockets", "limits_of_the_trainer", "priority_of_the_trainer",
        "modes_and_times", "notices_of_changes",
    },
    "times of processes": {"times_of_processes"},
    "locks": {"locks"},
    "disk": {"disk"},
    "lost workers": {"outlives_a_lost_worker"},
}  # fmt: skip
"""The programs of outside.py that succeed where this is open."""


def _has_landlock() -> bool:
    """Whether the kernel has it; the worker's own trial of our rules must come to the same."""
    there = landlock.version() >= landlock.LEAST
    assert there == any(row.name == "Landlock" and row.active for row in _here())
    return there


@functools.cache
def _here() -> tuple[Any, ...]:
    async def go(sandbox: LocalSandbox) -> tuple[Any, ...]:
        return sandbox.report()

    return inside(go, namespaces="off")


def _private(python: str) -> bool:
    """Whether a folder above this Python is closed to other users."""
    path = Path(python).resolve()
    return any(not folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)


@functools.cache
def _python(kind: str) -> str:
    """A Python that can import Coterie: one that other users can (`public`), or can't (`private`), read."""
    ours = sys.executable
    if kind == "ours":
        return ours
    if kind == "private":
        if os.getuid() != 0 or not _private(ours):
            pytest.skip("the Python of these tests can be read by every user")
        return ours
    if os.getuid() != 0:
        return ours
    for python in (ours, "/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(python).exists() and not _private(python):
            tried = [python, "-c", "import coterie.backends.sandboxes.local"]
            as_stranger: dict[str, Any] = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
            if not subprocess.run(
                tried, env=_environment(), cwd="/", capture_output=True, **as_stranger
            ).returncode:
                return python
    pytest.skip("no Python here can import Coterie as another user")


def _environment() -> dict[str, str]:
    packages = [str(ROOT), *site.getsitepackages()]
    secret = {"COTERIE_API_KEY": "of-the-trainer"}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(packages), "PYTHONSAFEPATH": "1", **secret}


def attacked(mode: Mode, folder: Path) -> dict[str, Any]:
    """What outside.py prints in this mode."""
    if mode.wrapper and not _namespaces():
        pytest.skip("this host forbids user namespaces")
    if not mode.user and os.getuid() != 0:
        pytest.skip("these tests don't run as root")
    as_user: dict[str, Any] = {}
    folder.chmod(0o755)
    if mode.user and os.getuid() == 0:
        user = STRANGER + [*MODES.values()].index(mode)  # the kernel counts processes by user
        as_user = {"user": user, "group": user, "extra_groups": []}
        os.chown(folder, user, user)
    order = json.dumps({"without": mode.without, "folder": str(folder)})
    script = str(Path(__file__).with_name("outside.py"))
    done = subprocess.run(
        [*mode.wrapper, _python(mode.python), script, order],
        env=_environment(), cwd="/", capture_output=True, text=True, timeout=100, **as_user,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "log": done.stderr}


@pytest.mark.parametrize("name", MODES)
def test_what_check_lists_as_open_is_open_and_nothing_else_is(name: str) -> None:
    """One test a mode, since all its programs run in one process (outside.py)."""
    mode = MODES[name]
    if "landlock" not in mode.without and not _has_landlock():
        pytest.skip("this host has no Landlock")
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:  # pytest's folders are closed to others
        outcome = attacked(mode, Path(folder))
    harmed = {program for program, harm in outcome["harm"].items() if harm}
    shown = set().union(*(SHOWN_BY[row] for row in outcome["open"]))
    assert harmed == shown, (harmed ^ shown, outcome["harm"], outcome["log"])
    _it_reports_what_was_tried(mode, outcome)
    _imports_work_or_a_warning_says_why_not(outcome)
    _a_verdict_that_may_be_forged_says_so(outcome)


def _it_reports_what_was_tried(mode: Mode, outcome: dict[str, Any]) -> None:
    hello = outcome["hello"]
    assert {key: hello[key] for key in mode.hello} == mode.hello
    assert hello["hidden"] and bool(hello["landlock"]) == ("landlock" not in mode.without)
    active = {row["name"] for row in outcome["protections"] if row["active"]}
    assert ("user of its own" in active, "process count" in active) == (hello["users"],) * 2
    assert ("Landlock" in active) == bool(hello["landlock"])


def _imports_work_or_a_warning_says_why_not(outcome: dict[str, Any]) -> None:
    if outcome["hello"]["reads"] == "preloaded":
        assert "ModuleNotFoundError" in outcome["imported"]
        assert "only what workers have imported" in outcome["log"]
    else:
        assert outcome["imported"] == "imported\n" and outcome["honest"]
        assert "only what workers" not in outcome["log"]


def _a_verdict_that_may_be_forged_says_so(outcome: dict[str, Any]) -> None:
    if outcome["hello"]["apart"]:
        assert outcome["warnings"] == [""]
    else:
        (warning,) = outcome["warnings"]
        assert "can't be kept apart" in warning
        assert outcome["log"].count("can't be kept apart") == 1


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare(1)")
def test_judge_refuses_where_the_sides_can_not_be_kept_apart_and_run_works() -> None:
    code = (
        "import asyncio, os\nfrom coterie.backends.sandboxes.local import LocalSandbox\n"
        "from coterie.core.errors import ConfigError\n"
        "from coterie.core.protocols import Judged, Program\n"
        "async def go():\n"
        "    LocalSandbox.without = ('landlock',)\n"
        "    s = LocalSandbox(LocalSandbox.Config(workers=1))\n"
        "    await s.open()\n    print((await s.run(Program(code='print(6 * 7)'))).stdout)\n"
        "    try: await s.judge(Judged(candidate='', tests='assert True', calls=()))\n"
        "    except ConfigError as error: print(error)\n    await s.close()\n"
        "asyncio.run(go())"
    )
    forbid = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"]
    done = subprocess.run([*forbid, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("42\n"), done.stderr
    for part in ("verdicts could be forged", "one user", "namespaces: off", "sandbox.namespaces"):
        assert part in done.stdout, done.stdout + done.stderr


# ----------------------------------------------------------------------------------------- the host's process


def test_our_process_is_hidden_while_a_sandbox_without_namespaces_is_open() -> None:
    async def go() -> list[bool]:
        boxes = [LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces="off")) for _ in "12"]
        seen = [is_hidden()]
        for step in (boxes[0].open, boxes[1].open, boxes[0].close, boxes[0].close, boxes[1].close):
            await step()
            seen.append(is_hidden())
        return seen

    assert asyncio.run(go()) == [False, True, True, True, True, False]


def test_our_process_is_not_hidden_after_a_failure_nor_with_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def state(_: LocalSandbox) -> bool:
        return is_hidden()

    if _namespaces():
        assert inside(state, namespaces="required") is False
    monkeypatch.setattr("coterie.backends.sandboxes.pool.WORKER_CODE", "raise SystemExit")
    with pytest.raises(SystemFault, match="no worker"):
        inside(state, namespaces="off")
    assert not is_hidden()


def _namespaces() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "-Ur", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _namespaces(), reason="this host forbids user namespaces")
def test_workers_with_namespaces_start_while_our_process_is_hidden() -> None:
    async def go(_: LocalSandbox) -> str:
        beside = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces="required"))
        await beside.open()
        try:
            return (await beside.run(Program(code="print('here')"))).stdout
        finally:
            await beside.close()

    assert inside(go, namespaces="off") == "here\n"


# ----------------------------------------------------------------------------------------------- the folders


def test_a_program_leaves_no_folder_and_no_process() -> None:
    mark = f"left{os.getpid()}"
    code = (
        f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\n"
        "os.makedirs('/'.join(['d'] * 300))\nos.mkdir('closed', 0o300)\nopen('closed/file', 'w').close()\n"
        "if os.fork() == 0: os.setsid()\ntime.sleep(99)"
    )

    async def go(sandbox: LocalSandbox) -> tuple[list[str], list[str]]:
        assert sandbox.pool is not None
        limits = LIMITS.model_copy(update={"wall_seconds": 0.5})
        killed = await sandbox.run(Program(code=code, limits=limits))
        ended = await sandbox.run(Program(code=code.replace("time.sleep(99)", "print()")))
        return [killed.status, ended.status], os.listdir(sandbox.pool.base)

    assert inside(go, namespaces="off") == (["timeout", "finished"], [])
    assert [path for path in Path("/proc").glob("[0-9]*/comm") if mark in _text(path)] == []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended


# -------------------------------------------------------------------------------------------------- the page


def test_the_page_names_what_is_open_in_every_mode() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE))
    modes = {
        "root": {"users": True, "landlock": 7},
        "root, no Landlock": {"users": True},
        "user": {"landlock": 7, "bounded": True},
        "user, no Landlock": {"bounded": True},
        "root that can't change its user": {"landlock": 7},
    }
    documented: dict[str, set[str]] = {}
    for name in SHOWN_BY:
        assert name in rows, name
        for mode in rows[name].split("; "):
            documented.setdefault(mode, set()).add(name)
    documented["root that can't change its user"] |= documented["user"] - {"counts by user"}
    for mode, hello in modes.items():
        known = {"seccomp": True, "apart": mode != "user, no Landlock", **hello}
        expected = {row.name for row in left_open(known)}
        assert documented[mode] | documented["all"] == expected, mode
    assert "no filter" in rows["system calls"]
    assert left_open({"alone": True}) == ()
    assert {row.name for row in protections({})} >= {"Landlock", "user of its own", "hidden memory"}

"""Sandbox `local`: the inputs and results of runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.protocols import Judged, Program, Ran
from coterie.testing import build
from tests.backends.sandboxes.support import LIMITS, inside, ran


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "-Ur", "true"], capture_output=True).returncode == 0


NEEDS_NAMESPACES = pytest.mark.skipif(not _can_unshare(), reason="this host forbids user namespaces")


@pytest.fixture(params=["auto", "off"])
def both(request: pytest.FixtureRequest) -> dict[str, str]:
    """With namespaces and without."""
    return {"namespaces": request.param}


# ------------------------------------------------------------------------------------ given, and brought back


def test_a_program_is_given_stdin_arguments_and_files_and_files_come_back(both: dict[str, str]) -> None:
    code = (
        "import sys, helper\nprint(helper.name, sys.argv[1:], sys.stdin.read())\n"
        "import os; os.makedirs('a/b'); open('a/b/out.csv', 'w').write('1,é'); open('no.txt', 'w')"
    )
    files = {"helper.py": b"name = 'caf\xc3\xa9'", "data/x.bin": bytes(range(256))}
    done = ran(code, both, stdin="één\n", argv=("-x", "ü"), files=files, collect=("**/*.csv", "data/?.bin"))
    assert (done.status, done.exit_code, done.stderr) == ("finished", 0, "")
    assert done.stdout == "café ['-x', 'ü'] één\n\n"
    assert done.files == {"a/b/out.csv": "1,é".encode(), "data/x.bin": bytes(range(256))}


def test_what_cannot_be_read_is_named(both: dict[str, str]) -> None:
    """A name that is no UTF-8, a file and a folder of mode 0."""
    code = (
        "import os\nopen(b'\\xff.csv', 'w')\nopen('shut.csv', 'w')\nos.chmod('shut.csv', 0)\n"
        "os.makedirs('in')\nopen('in/a.csv', 'w')\nos.chmod('in', 0)\nopen('b.csv', 'w')"
    )
    done = ran(code, both, collect=("**/*.csv", "*.csv"))
    assert done.status == "finished" and done.files == {"b.csv": b""}
    for name in (r"'\udcff.csv'", "shut.csv", "'in/'"):
        assert name in done.reason and "not brought back" in done.reason


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "stderr"),
    [
        ("", "finished", 0, ""),
        ("import sys; sys.exit(7)", "failed", 7, ""),
        ("import sys; sys.exit('why')", "failed", 1, "why\n"),
        ("x = (", "failed", 1, "SyntaxError"),
        ("def f():\n    return 1 / 0\nf()", "failed", 1, 'main.py", line 2, in f'),
        ("import os; os.kill(os.getpid(), 9)", "killed", None, ""),
        ("import os; os._exit(4)", "failed", 4, ""),
        (
            "import threading\nt = threading.Thread(target=print, args=('late',))\nt.start()",
            "finished",
            0,
            "",
        ),
        ("import atexit, os; atexit.register(os._exit, 5)", "failed", 5, ""),
        (
            "assert __name__ == '__main__'; import __main__; assert __main__.__file__ == __file__",
            "finished",
            0,
            "",
        ),
    ],
)
def test_a_program_ends_as_under_python_itself(
    code: str, status: str, exit_code: int | None, stderr: str
) -> None:
    done = ran(code)
    assert (done.status, done.exit_code) == (status, exit_code), done
    assert stderr in done.stderr
    assert done.ok == (status == "finished")


def test_our_frames_are_not_in_a_traceback() -> None:
    done = ran("def f():\n    1 / 0\nf()")
    assert done.stderr.count("File ") == 2


def test_the_end_of_the_output_is_kept_and_the_rest_counted(both: dict[str, str]) -> None:
    done = ran("print('a' * 100_000 + 'the end', end='')", both)
    assert done.ok
    assert len(done.stdout) == 4096 and done.stdout.endswith("athe end")
    assert done.dropped == 100_007 - 4096


def test_cpu_time_decides_and_that_of_children_counts(both: dict[str, str]) -> None:
    child = "    while time.process_time() < .5: pass\n    os._exit(0)\n"
    burn = f"import os, time\nif os.fork() == 0:\n{child}os.wait()"
    over = ran(burn, both, limits=LIMITS.model_copy(update={"cpu_seconds": 0.3}))
    under = ran(burn, both)
    assert (over.status, over.exit_code, over.reason) == ("timeout", None, "more than 0.3 s of CPU time")
    assert under.ok and under.cpu_seconds is not None and 0.5 <= under.cpu_seconds < 1.0


def test_wall_time_is_a_backstop_and_earlier_output_is_kept(both: dict[str, str]) -> None:
    limits = LIMITS.model_copy(update={"wall_seconds": 0.4})
    done = ran("import time; print('before', flush=True); time.sleep(99)", both, limits=limits)
    assert (done.status, done.reason, done.stdout) == ("timeout", "more than 0.4 s of wall time", "before\n")
    assert done.cpu_seconds is not None and done.cpu_seconds < 0.3 and 0.4 <= done.wall_seconds < 20


def test_what_is_too_large_is_not_brought_back_and_is_named() -> None:
    code = "import os\nfor n in '12': os.truncate(os.open(n, os.O_CREAT | os.O_RDWR), 6 << 20)"
    done = ran(code, collect=("*",))
    assert done.ok and list(done.files) == ["1"] and done.reason == "no room to bring back 2"


def test_a_run_repeats_itself() -> None:
    """The order of a set depends on the hash seed."""
    code = "print({str(n) for n in range(50)})"
    assert ran(code).stdout == ran(code).stdout


@NEEDS_NAMESPACES
def test_packages_can_be_imported_and_not_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # the programs run as somebody else
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("value = 41")
    code = "import theirs; print(theirs.value + 1)\n"
    code += f"try: open({str(tmp_path)!r} + '/x', 'w')\nexcept OSError: print('no')"
    done = ran(code, {"packages": (tmp_path,), "namespaces": "required"})
    assert (done.stdout, done.stderr) == ("42\nno\n", "")
    with pytest.raises(ConfigError, match="there is no folder"):
        ran(code, {"packages": (tmp_path / "missing",)})


def test_concurrent_runs_do_not_mix() -> None:
    async def go(sandbox: LocalSandbox) -> list[Ran]:
        return await asyncio.gather(
            *(sandbox.run(Program(code="print(input())", stdin=str(number))) for number in range(30))
        )

    assert [done.stdout for done in inside(go, workers=3)] == [f"{number}\n" for number in range(30)]


# -------------------------------------------------------------------------------------------------- two sides


def test_two_programs_talk_and_the_second_ends_with_the_first(both: dict[str, str]) -> None:
    writer = Program(
        code="import os\nos.write(3, b'ping')\nprint(os.read(3, 9))\nos.write(4, b'all'); os.write(4, b' w')"
    )
    reader = Program(
        code="import os, time\nprint(os.read(3, 9), flush=True)\nos.write(3, b'pong')\ntime.sleep(99)"
    )
    first, second, report = inside(lambda sandbox: sandbox.run_pair(writer, reader), **both)
    assert (first.status, first.stdout, report) == ("finished", "b'pong'\n", b"all w")
    assert (second.status, second.reason, second.stdout) == ("killed", "its other side ended", "b'ping'\n")
    assert second.wall_seconds < 20


def test_two_programs_share_nothing_but_the_channel() -> None:
    look = "import os\nos.write(3, b'x'); os.read(3, 1)\nprint(sorted(os.listdir('.')))\n"
    open_ones = "def is_open(n):\n    try: os.fstat(n)\n    except OSError: return False\n    return True\n"
    tests = Program(
        code=f"{look}{open_ones}print([n for n in range(99) if is_open(n)])", files={"tests": b""}
    )
    candidate = Program(
        code=f"{look}{open_ones}print([n for n in range(99) if is_open(n)], flush=True)\nos.read(3, 1)"
    )
    first, second, _ = inside(lambda sandbox: sandbox.run_pair(tests, candidate))
    assert first.stdout == "['tests']\n[0, 1, 2, 3, 4]\n"
    assert second.stdout.startswith("[]\n")
    assert "4]" not in second.stdout


def test_the_first_hears_when_the_second_ends() -> None:
    listener = Program(code="import os\nos.write(4, repr(os.read(3, 9)).encode())")
    first, second, report = inside(
        lambda sandbox: sandbox.run_pair(listener, Program(code="raise SystemExit(5)"))
    )
    assert first.ok and (second.status, second.exit_code) == ("failed", 5) and report == b"b''"


def test_a_candidate_is_judged(both: dict[str, str]) -> None:
    tests = "assert add(1, 2) == 3\nassert add(2, 2) == 5"
    judged = Judged(candidate="def add(a, b): return a + b", tests=tests, calls=("add",))
    verdict = inside(lambda sandbox: sandbox.judge(judged), **both)
    assert (verdict.passed, verdict.total, verdict.ok) == (1, 2, False)
    assert [failure.line for failure in verdict.failures] == [2]


# ------------------------------------------------------------------------------------------ wrong, or missing


def test_what_can_not_be_run_is_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError, match="does not run 'rust'"):
        ran("", language="rust")
    with pytest.raises(SystemFault, match="not open"):
        asyncio.run(LocalSandbox().run(Program(code="")))


def test_it_is_built_from_a_configuration() -> None:
    sandbox = build("sandbox", {"type": "local", "workers": 2, "limits": {"cpu_seconds": 1}})
    assert isinstance(sandbox, LocalSandbox) and sandbox.config.limits.cpu_seconds == 1


def _elsewhere(wrapper: list[str], namespaces: str) -> str:
    """The output of an open sandbox and a program, in a process that `wrapper` starts."""
    code = (
        "import asyncio, logging\nfrom coterie.backends.sandboxes.local import LocalSandbox\n"
        "from coterie.core.protocols import Program\nlogging.basicConfig(format='%(message)s')\n"
        "async def go():\n"
        f"    s = LocalSandbox(LocalSandbox.Config(workers=1, namespaces={namespaces!r}))\n"
        "    await s.open()\n    print((await s.run(Program(code='print(6 * 7)'))).stdout)\n"
        "    print(sorted(p.name for p in s.report() if not p.active))\n    await s.close()\n"
        "asyncio.run(go())"
    )
    done = subprocess.run([*wrapper, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@NEEDS_NAMESPACES
def test_an_ordinary_user_has_all_protections_too() -> None:
    output = _elsewhere(["unshare", "-U", "--map-user=1000", "--map-group=1000"], "required")
    assert output == "42\n\n[]\n"


@NEEDS_NAMESPACES
def test_where_namespaces_are_forbidden_it_warns_once_of_what_is_missing() -> None:
    forbid = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"]
    output = _elsewhere(forbid, "auto")
    assert output.startswith("42\n") and output.count("less protection") == 1
    assert "no pid namespace" in output and "unshare" in output
    output = _elsewhere(forbid, "required")
    assert "this host does not let programs be isolated by namespaces" in output and "fix:" in output


def test_all_protections_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def go(sandbox: LocalSandbox) -> dict[str, bool]:
        return {protection.name: protection.active for protection in sandbox.report()}

    with caplog.at_level(logging.WARNING, logger="coterie"):
        off = inside(go, namespaces="off")
    assert not off["pid namespace"] and off["rlimits"] and off["clean environment"]
    assert sum("less protection" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_what_the_kernel_counts_by_user_is_not_taken_from_other_runs(namespaces: str) -> None:
    """A new pipe holds less where the user's pipes have many pages, and a user has few inotify instances."""
    code = (
        "import ctypes, fcntl, os\nreader, writer = os.pipe()\nprint(ctypes.CDLL(None).inotify_init())\n"
        "try: fcntl.fcntl(writer, 1031, 1 << 20)\nexcept PermissionError: print('refused')\n"
        "os.write(writer, bytes(30_000))\nprint(len(os.read(reader, 1 << 20)))"
    )
    assert ran(code, {"namespaces": namespaces}).stdout == "-1\nrefused\n30000\n"

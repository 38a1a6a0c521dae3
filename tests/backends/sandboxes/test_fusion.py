"""`sandbox_fusion` against a loopback server that speaks the wire format over real sockets."""

from __future__ import annotations

import ast
import asyncio
import base64
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes import fusion_probe, fusion_wire as wire
from coterie.backends.sandboxes.fusion import START, SandboxFusion
from coterie.backends.sandboxes.fusion_probe import Probed, protections
from coterie.backends.sandboxes.inside import landlock as ours
from coterie.backends.sandboxes.judging import host
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.protocols import Judged, Limits, Program, Ran
from coterie.discovery.validation import validate
from coterie.testing import check_sandbox
from tests.backends.sandboxes.fusion_server import FusionServer, fence
from tests.backends.sandboxes.support import inside, used

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sandbox_fusion.md"
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=1, memory_mb=128, output_kb=4)
QUICK = {
    "backoff": 0.01, "retry_seconds": 0.0, "connect_seconds": 0.5,
    "grace_seconds": 1.0, "margin_seconds": 0.4, "shared_user": "warn",
}  # fmt: skip
TIME_OUT = LIMITS.wall_seconds + QUICK["grace_seconds"] + QUICK["margin_seconds"]
HELLO = Program(code="print('hello')", limits=LIMITS)
SYSTEM = "/usr/bin/python3"


def sandbox(url: str, **settings: Any) -> SandboxFusion:
    return SandboxFusion(SandboxFusion.Config(url=url, **{**QUICK, "limits": LIMITS, **settings}))


def using(server: FusionServer, use: Callable[[SandboxFusion], Awaitable[Any]], **settings: Any) -> Any:
    return used(sandbox(server.url, **settings), use)


def ran(server: FusionServer, program: Program = HELLO, **settings: Any) -> Ran:
    return using(server, lambda box: box.run(program), **settings)


async def three(box: SandboxFusion, program: Program) -> list[str]:
    return [result.stdout for result in await asyncio.gather(*(box.run(program) for _ in "123"))]


# ---------------------------------------------------------------------------------------------- conformance


@pytest.mark.skipif(not Path(SYSTEM).exists() or os.geteuid() != 0, reason="gives users away: root's alone")
def test_it_conforms_with_a_user_for_each_run():
    with FusionServer(python=SYSTEM) as server:
        box = sandbox(server.url, grace_seconds=20, shared_user="refuse")
        check_sandbox(box, limits=LIMITS)
        program = Program(code="import os; print(os.getuid())")
        users = using(server, lambda box: three(box, program), grace_seconds=20)
        assert len(set(users)) == 3 and all(int(user) >= 30000 for user in users)


# --------------------------------------------------------------------------------------------------- faults

STUCK = ("hang", "drip")
MISSING = "asked again, then missing"
ONCE = "missing at once"
# fault of every answer -> (how it ends, what the error says)
FAULTS = {
    "500": (MISSING, "500 to /run_code: {\"detail\":\"Internal Server Error\"}"),
    "504": (MISSING, "504"),
    "hang": (MISSING, f"no whole answer within {LIMITS.wall_seconds + .2:g} s"),
    "reset": (MISSING, "Error"),
    "bad_json": (MISSING, 'no JSON: {"status": "Success", "run_res'),
    "deep": (MISSING, "no JSON: …[["),
    "null": (MISSING, "without run_result"),
    "error": (MISSING, "SandboxError: no executor"),
    "no_files": (MISSING, "without the file"),
    "other_files": (MISSING, "another file"),
    "not_base64": (MISSING, "without the file"),
    "huge": (MISSING, "more than 1 MB"),
    "422": (ONCE, "Input should be 'python', 'cpp'"),
    "drip": (MISSING, f"no whole answer within {LIMITS.wall_seconds + .2:g} s"),
    "html": (MISSING, "Welcome to nginx"),
    "404": (ONCE, "404 to /run_code"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_ends_as_stated_within_its_time_out(fault):
    ends, says = FAULTS[fault]
    began = time.monotonic()
    quick = {"grace_seconds": 0.1, "margin_seconds": 0.1} if fault in STUCK else {}
    with FusionServer(always=fault) as server, pytest.raises(SystemFault) as error:
        ran(server, reply_mb=1, **quick)
    assert says in str(error.value) and server.url in str(error.value)
    assert len(server.requests) == (2 if ends == MISSING else 1)
    assert time.monotonic() - began < 2 * TIME_OUT + 3


@pytest.mark.parametrize(
    "fault", [*(name for name, (ends, _) in FAULTS.items() if ends == MISSING), "restart"]
)
def test_a_fault_that_passes_costs_a_retry_and_no_result(fault):
    patience = {"backoff": 0.5, "retry_seconds": 9.0} if fault == "restart" else {}
    with FusionServer(faults=(fault,)) as server:
        results = ran(server, reply_mb=1, **patience)
    assert (results.status, results.stdout) == ("finished", "hello\n")
    assert len(server.requests) == 2


def test_a_restart_in_the_middle_of_many_runs_loses_none():
    async def many(box: SandboxFusion) -> list[Ran]:
        return await asyncio.gather(*[box.run(Program(code=f"print({n})")) for n in range(8)])

    with FusionServer(faults=("", "", "restart"), pause=1.5) as server:
        results = using(server, many, backoff=0.2, retry_seconds=9.0)
    assert [run.stdout for run in results] == [f"{n}\n" for n in range(8)]


def test_a_server_that_is_down_for_good_costs_the_patience_once():
    """Not once for each of many runs: these are tried twice."""

    async def one_after_another(box: SandboxFusion) -> list[int]:
        server.always, asked, began = "reset", [len(server.requests)], time.monotonic()
        for number in range(4):
            with pytest.raises(SystemFault):
                await box.run(HELLO)
            asked.append(len(server.requests))
            assert time.monotonic() - began > 2.0 or number > 0
        server.always = ""
        assert (await box.run(HELLO)).ok  # it is back, so the next failure is tried again as long
        server.faults.extend(["reset"] * 2)
        assert (await box.run(HELLO)).ok
        return [after - before for before, after in pairwise(asked)]

    with FusionServer() as server:
        first, *others = using(server, one_after_another, retry_seconds=2.0, backoff=0.1)
    assert first > 2 and others == [2, 2, 2]


@pytest.mark.parametrize(("break_it", "says"), [
    (lambda server: setattr(server, "ping", b"<html>nginx</html>"), "<html>nginx</html>"),
    (lambda server: server.__exit__(), "ConnectError"),
])  # fmt: skip
def test_a_wrong_endpoint_is_told_before_the_first_run(break_it, says):
    server = FusionServer()
    server.__enter__()
    try:
        break_it(server)
        with pytest.raises(ConfigError) as error:
            ran(server)
    finally:
        if server.thread.is_alive():
            server.__exit__()
    assert says in error.value.why and error.value.path == "sandbox.url" and "docker run" in error.value.fix


def test_a_path_in_the_url_that_is_not_there_is_told_before_the_first_run():
    with FusionServer() as server, pytest.raises(ConfigError) as error:
        asyncio.run(sandbox(f"{server.url}/elsewhere").open())
    assert "404 to /v1/ping" in error.value.why
    assert SandboxFusion.Config(url=f"{server.url}/run_code").url == server.url


def test_the_page_says_how_each_fault_ends():
    """The page has a row for each; `restart` and a wrong endpoint have their own tests above."""
    rows = dict(
        re.findall(r"^\| `([\w]+)` \|.*\| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    stated = {fault: ends for fault, (ends, _) in FAULTS.items()}
    stated |= {"restart": "asked again: a result", "endpoint": "refused when the run starts"}
    assert {name: rows.get(name) for name in stated} == stated


def test_the_page_says_what_protects_and_how_a_server_is_started():
    text = PAGE.read_text(encoding="utf-8")
    report = wire.WrapperReport(apart="users", shared="", landlock=ours.SCOPES, filtered=True)
    every = protections(Probed(report, frozenset()))
    rows = [f"| {each.name} | {each.stops} | {each.needs or '–'} |" for each in every]
    assert all(each.active for each in every)
    assert "\n".join(rows) in text
    assert START in text


# ------------------------------------------------------------------------------------- programs' own doing


def test_long_output_keeps_its_end_on_a_server_that_stalls_on_it():
    loud = "import sys\nfor n in range(300_000): print(n)\nprint('the end', file=sys.stderr)"
    limits = LIMITS.model_copy(update={"cpu_seconds": 5.0, "wall_seconds": 20.0})
    with FusionServer() as server:
        results = ran(server, Program(code=loud, limits=limits))
        # The same without the wrapper: the stock server waits for a program that waits to be read.
        _, stalled = asyncio.run(server._run_code(
            {"language": "python", "code": loud, "run_timeout": 1.0}
        ))  # fmt: skip
    assert results.ok and results.stdout.endswith("299998\n299999\n") and results.stderr == "the end\n"
    assert results.dropped == sum(len(f"{n}\n") for n in range(300_000)) - 4096
    assert stalled["run_result"]["status"] == "TimeLimitExceeded"


@pytest.mark.skipif(not fence(None), reason="kills its parent: only where process ids have a namespace")
def test_a_program_that_kills_its_sandbox_twice_gets_the_floor():
    with FusionServer(landlock=False) as server:
        with pytest.raises(PolicyFault, match="killed its sandbox twice"):
            ran(server, Program(code="import os; os.kill(os.getppid(), 9)", limits=LIMITS))
        assert len(server.requests) == 2
        with pytest.raises(PolicyFault, match="ended its judge twice"):
            using(server, lambda box: box.judge(Judged(
                candidate="import os; os.kill(os.getppid(), 9)", tests="assert f()", calls=("f",)
            )))  # fmt: skip


@pytest.mark.skipif(not fence(None), reason="stops its parent: only where process ids have a namespace")
def test_a_program_that_stops_its_wrapper_is_timed_out_by_the_server():
    with FusionServer(landlock=False) as server:
        results = ran(server, Program(code="import os; os.kill(os.getppid(), 19)", limits=LIMITS))
    assert results.status == "timeout" and "server's time limit" in results.reason


def test_cpu_time_of_all_processes_counts_and_waiting_is_free():
    burn = "import os\nfor _ in range(2):\n  if os.fork() == 0: break\nwhile True: pass"
    with FusionServer() as server:
        results = ran(server, Program(code=burn, limits=Limits(cpu_seconds=0.5, wall_seconds=20)))
        assert (
            results.status == "timeout" and results.reason == "CPU time: 0.5 s" and results.wall_seconds < 10
        )
        slept = ran(server, Program(code="import time; time.sleep(.8)", limits=LIMITS))
        assert slept.ok and slept.cpu_seconds is not None and slept.cpu_seconds < 0.5 < slept.wall_seconds


def test_processes_disk_and_folders_are_bounded():
    programs = {
        "import os\nwhile True: os.fork()": ("failed", "killed"),
        "for n in range(4): open(str(n), 'wb').write(bytes(1 << 20))": ("killed",),
        "open('big', 'wb').write(bytes(3 << 20))": ("failed",),
        "import os\nfor _ in range(1200):\n  os.mkdir('d'); os.chdir('d')": ("finished",),
    }
    limits = LIMITS.model_copy(update={"disk_mb": 2, "wall_seconds": 5.0})
    with FusionServer() as server:
        for code, ends in programs.items():
            results = ran(server, Program(code=code, limits=limits), grace_seconds=20)
            assert results.status in ends, (code, results)


@pytest.mark.parametrize("landlock", [True, False])
def test_the_wrapper_leaves_no_secret_and_no_way_to_forge_its_report(landlock):
    spy = (
        "import os, glob\n"
        "try: print(sorted(os.listdir('../..')))\n"
        "except OSError: print([])\n"
        "for path in ('mem', 'environ', 'fd/1'):\n"
        "    try: print(open(f'/proc/{os.getppid()}/{path}', 'rb').read(9))\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    with FusionServer(landlock=landlock) as server:
        results = ran(server, Program(code=spy, limits=LIMITS))
    assert results.ok, results
    listed, *refused = results.stdout.splitlines()
    assert listed in ("['box']", "[]") and refused == ["PermissionError"] * 3


# ---------------------------------------------------------------------------------------- other languages


def test_bash_runs_in_the_wrapper():
    with FusionServer() as server:
        results = ran(
            server, Program(code="echo $1; cat; exit 4", language="bash", argv=("one",), stdin="two")
        )
    assert (results.status, results.exit_code, results.stdout) == ("failed", 4, "one\ntwo")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles C")
def test_a_compiled_language_goes_to_the_server_as_it_is():
    with FusionServer() as server:
        loud = "#include <stdio.h>\nint main(){char b[9]; fgets(b,9,stdin); fputs(b,stdout); return 3;}"
        results = ran(server, Program(code=loud, language="c", stdin="in"))
        assert (results.status, results.exit_code, results.stdout) == ("failed", 3, "in")
        broken = ran(server, Program(code="int main(){return", language="c"))
        assert (broken.status, broken.reason) == ("failed", "it did not compile") and "error" in broken.stderr
        with pytest.raises(ConfigError, match="arguments"):
            ran(server, Program(code="", language="c", argv=("x",)))


def test_a_language_that_the_server_lacks_is_told_and_warns_of_nothing(caplog):
    async def both(box: SandboxFusion) -> None:
        with pytest.raises(ConfigError, match="does not run 'ruby'") as error:
            await box.run(Program(code="puts 1", language="ruby"))
        assert box.config.url in str(error.value) and "no-such-ruby" in str(error.value)
        assert "wrapper" not in caplog.text

    with FusionServer() as server:
        using(server, both)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles C")
def test_a_program_can_not_say_that_its_language_is_missing(caplog):
    lie = '#include <stdio.h>\nint main(){fputs("ruby: command not found\\n", stderr); return 127;}'
    with FusionServer() as server:
        result = ran(server, Program(code=lie, language="c"))
    assert (result.status, result.exit_code) == ("failed", 127) and "wrapper" in caplog.text


def test_a_sandbox_that_is_not_open_is_a_fault_of_the_system():
    async def closed(box: SandboxFusion) -> None:
        await box.close()
        await refused(box)

    async def refused(box: SandboxFusion) -> None:
        for work in (
            box.run(HELLO),
            box.run(Program(code="", language="c")),
            box.judge(Judged(candidate="", tests="assert True", calls=())),
        ):
            with pytest.raises(SystemFault, match="not open"):
                await work

    asyncio.run(refused(sandbox("http://127.0.0.1:9")))
    with FusionServer() as server:
        using(server, closed)


def test_output_has_the_bound_and_the_reason_of_sandbox_local():
    limits = Limits(cpu_seconds=5, wall_seconds=20)
    for stream in ("stdout", "stderr"):
        code = f"import sys\nfor _ in range(17): sys.{stream}.write('x' * (1 << 20))"
        local = inside(lambda box, code=code: box.run(Program(code=code, limits=limits)))
        with FusionServer() as server:
            remote = ran(server, Program(code=code, limits=limits), grace_seconds=20, margin_seconds=20)
        assert (local.status, local.reason) == (remote.status, remote.reason)
        assert remote.reason == "it wrote more than 16 MiB"


def test_what_is_sent():
    """The fields of the wire format: limits, base64 both ways, literal paths."""
    limits = Limits(wall_seconds=7, memory_mb=100)
    body = wire.request([Program(code="x", files={"a/b": b"\0"}, collect=("*.txt",))], limits, 3.0, "n0")
    assert (body["language"], body["run_timeout"], body["compile_timeout"]) == ("python", 10.0, 7.0)
    assert body["memory_limit_MB"] == 100 + wire.HEADROOM
    assert body["files"] == {"box/work/a/b": "AA=="} and body["fetch_files"] == ["report-n0.json"]
    order = json.loads(base64.b64decode(re.findall(r'main\("([^"]+)", __file__\)', body["code"])[-1]))
    (program,) = order["programs"]
    assert base64.b64decode(program["code"]) == b"x" and program["collect"] == ["*.txt"]
    compile(body["code"], "wrapper", "exec", dont_inherit=True)


def test_what_is_sent_runs_on_python_3_9():
    judge = ("plain_types", "plain", "changes", "asserts", "test_side", "candidate_side")
    sources = [*wire.sources(), *((name, host.source(name)) for name in judge)]
    for path, source in sources:
        tree = ast.parse(source, path, feature_version=(3, 9))
        keywords = [
            word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords
        ]
        assert "strict" not in keywords, f"{path}: zip has it since Python 3.10"


def test_concurrency_is_bounded():
    async def many(box: SandboxFusion) -> float:
        began = time.monotonic()
        await asyncio.gather(*[box.run(Program(code="import time; time.sleep(.3)")) for _ in range(3)])
        return time.monotonic() - began

    with FusionServer(python=sys.executable) as server:
        assert using(server, many, concurrency=1) > 0.9


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://localhost:abc", "http://localhost:99999", "http://", "localhost:80"]
)
def test_a_wrong_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(SandboxFusion.Config, {"url": url}, "sandbox")
    assert error.value.path == "sandbox.url" and "an URL" in str(error.value)


class _Redirects(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "https://example.com/v1/ping")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_redirect_and_the_wrong_scheme_are_explained() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Redirects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        texts = []
        for scheme in ("http", "https"):
            with pytest.raises(ConfigError) as error:
                asyncio.run(sandbox(f"{scheme}://{address}").open())
            texts.append(str(error.value))
        server.shutdown()
    assert "302 to /v1/ping: it redirects to https://example.com/v1/ping" in texts[0]
    assert "fix: set url to the address" in texts[0] and f"fix: set url: http://{address} if" in texts[1]
    for why, fix in (
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", "a certificate"),
        ("ReadError", "url: https://h:1"),
    ):
        assert fix in wire.how_to_reach(why, "http://h:1", START)


def test_the_host_process_needs_nothing_of_linux():
    """What runs on the server is sent as text; a laptop of another system may start it."""
    code = "import sys, coterie.backends.sandboxes.fusion\nprint([n for n in sys.modules if '.inside' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
    assert (fusion_probe.LEAST, fusion_probe.SCOPES) == (ours.LEAST, ours.SCOPES)

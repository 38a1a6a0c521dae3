"""The tool `mcp` with a real server, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie import logs
from coterie.cli.guard import children
from coterie.core.errors import ConfigError, MissingExtra, SystemFault
from coterie.testing import build
from tests.backends.tools.support import native, used

pytest.importorskip("mcp")
pytestmark = pytest.mark.mcp

COMMAND = [sys.executable, str(Path(__file__).with_name("server.py"))]
BARE = [sys.executable, "-S", "-E", str(Path(__file__).with_name("bare_server.py"))]
ADD = native("add", a=1, b=2)


def small(**settings):
    table = {"type": "mcp", "timeout": 20, **settings}
    if "url" not in table:
        table.setdefault("command", BARE)
    return build("tool", table, name="small")


def opened(tool, work):
    """The result of `work(tool)` while the tool is open."""

    async def go():
        try:
            await tool.open()
            return await work(tool)
        finally:
            await tool.close()

    return asyncio.run(go())


async def run(tool, text):
    return await tool.run(tool.find(text))


def test_the_servers_tools_are_listed_and_called(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "k3y")
    tool = small(command=COMMAND, env={"SMALL_KEY": "<${OUR_KEY}>"})
    assert tool.schemas == ()

    async def work(tool):
        both = await asyncio.gather(run(tool, ADD), run(tool, native("add", a=3, b=4)))
        wrong = await run(tool, native("add", a="x", b=2))
        return [
            *both,
            await run(tool, ADD + native("fail", why="so")),
            wrong,
            await run(tool, native("secret")),
        ]

    first, second, both, wrong, key = opened(tool, work)
    assert (first, second, key) == ("3", "7", "<k3y>")
    assert both.startswith("result 1 of 2:\n3\n\nresult 2 of 2:\nerror: ") and both.endswith("so")
    assert wrong.startswith("error: ")
    add = next(schema["function"] for schema in tool.schemas if schema["function"]["name"] == "add")
    assert add["description"] == "Adds two numbers." and set(add["parameters"]["properties"]) == {"a", "b"}
    assert tool.find('<tool_call>{"name": "unknown"}</tool_call>') is None


def test_it_can_be_opened_again():
    tool = small()
    assert used(tool, ADD) == used(tool, ADD) == ["3"]


def test_only_some_of_them():
    tool = small(only=["add"])
    assert opened(tool, lambda tool: run(tool, ADD)) == "3"
    assert [schema["function"]["name"] for schema in tool.schemas] == ["add"]
    assert tool.find(native("die")) is None
    with pytest.raises(ConfigError, match="has no tool 'ad'") as caught:
        used(small(only=["ad"]), ADD)
    assert "add" in caught.value.fix
    assert small(announce=False).schemas == ()


def test_a_server_that_dies_is_the_systems_fault_and_the_next_call_connects_anew():
    async def work(tool):
        with pytest.raises(SystemFault, match=r"gone|failed"):
            await run(tool, native("die"))
        return await run(tool, ADD)

    assert opened(small(), work) == "3"


@pytest.mark.coach
def test_a_server_that_is_stopped_is_named_ended_and_replaced(caplog):
    async def work(tool):
        ((server, _),) = children(os.getpid())
        os.kill(server, signal.SIGSTOP)
        patient = tool.config
        tool.config = patient.model_copy(update={"timeout": 1.0})
        with pytest.raises(SystemFault, match="server of tool 'small' has not answered for 1 s, since "):
            await run(tool, ADD)
        tool.config = patient
        return server, await run(tool, ADD)

    server, answer = opened(small(), work)
    assert answer == "3" and "has not answered for 1 s" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_tool_that_hangs_is_the_calls_doing():
    async def work(tool):
        patient = tool.config
        tool.config = patient.model_copy(update={"timeout": 2.0})
        hung = await run(tool, native("hang"))
        tool.config = patient
        return hung, await run(tool, ADD)

    assert opened(small(), work) == ("error: no answer within 2 seconds", "3")


def test_a_server_that_cannot_be_started_is_an_error_of_the_configuration():
    begin = time.monotonic()
    for command, timeout in ((["no-such-program"], 20), ([sys.executable, "-c", "pass"], 20),
                             ([sys.executable, "-c", "import time; time.sleep(60)"], 1)):  # fmt: skip
        with pytest.raises(ConfigError, match="can't be reached") as caught:
            used(small(command=command, timeout=timeout), ADD)
        assert caught.value.path == "tools.small"
    assert time.monotonic() - begin < 30


def test_what_a_server_prints_is_in_its_log_which_its_error_names(tmp_path, capfd):
    with pytest.raises(ConfigError) as caught, logs.kept_in(tmp_path / "logs"):
        used(small(command=[sys.executable, "-c", "exit('no key')"]), ADD)
    log = tmp_path / "logs" / "mcp-small.log"
    assert f"see {log}" in str(caught.value) and log.read_text().endswith("\nno key\n")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("settings", [
    {"command": []}, {"url": "http://x", "command": ["x"]}, {"headers": {"a": "b"}},
    {"url": "http://x", "env": {"A": "b"}},
])  # fmt: skip
def test_one_way_to_the_server(settings):
    with pytest.raises(ConfigError):
        small(**settings)


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match="pip install") as caught:
        used(small(), ADD)
    assert caught.value.extra == "mcp"


def test_over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}/mcp"

        async def work(tool):
            answer = await run(tool, ADD)
            process.kill()
            process.wait()
            with pytest.raises(SystemFault):
                await run(tool, ADD)
            return answer

        assert used(small(url=url, headers={"X-Key": "k"}), ADD) == ["3"]
        assert opened(small(url=url, timeout=5), work) == "3"
    finally:
        process.kill()
        process.wait()

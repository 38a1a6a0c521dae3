"""`coterie sandbox run|check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import anew, coterie


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\n"
        "print(sys.argv[1:], input(), open('numbers.csv').read().strip())\n"
        "print('a warning', file=sys.stderr)\n"
        "open('made.txt', 'w').write('made')\n"
    )
    (tmp_path / "numbers.csv").write_text("1,2\n")
    (tmp_path / "in.txt").write_text("said\n")
    return file


def test_a_program_is_given_what_it_needs_and_its_files_come_back(program: Path):
    folder = program.parent
    done = coterie(
        "sandbox", "run", program, "--arg", "x", "--stdin", folder / "in.txt",
        "--file", folder / "numbers.csv", "--collect", "*.txt", "-o", folder / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.stdout == "['x'] said 1,2\n"
    assert (folder / "out" / "made.txt").read_text() == "made"
    (folder / "made.txt").write_text("mine")
    collected = ("--stdin", folder / "in.txt", "--file", folder / "numbers.csv", "--collect", "*.txt")
    again = coterie("sandbox", "run", program, *collected, "-o", folder)
    assert again.exit_code == 2 and "made.txt exists" in again.stderr and "--out" in again.stderr
    assert (folder / "made.txt").read_text() == "mine"


def test_json_tells_how_it_ended(tmp_path: Path):
    (tmp_path / "loop.py").write_text("while True: pass")
    done = coterie("sandbox", "run", tmp_path / "loop.py", "limits.cpu_seconds=0.2", "--json")
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert result["status"] == "timeout" and "CPU time" in result["reason"] and result["exit_code"] is None


def test_a_crash_is_told_with_its_traceback(tmp_path: Path):
    (tmp_path / "bad.py").write_text("1 / 0")
    done = coterie("sandbox", "run", tmp_path / "bad.py")
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr and "failed; exit code 1" in done.stderr


def test_check_says_what_is_active():
    done = coterie("sandbox", "check", "workers=1", "--json")
    result = json.loads(done.stdout)
    assert done.exit_code == 0 and result["works"]
    assert {protection["name"] for protection in result["protections"] if protection["active"]} >= {
        "own process",
        "rlimits",
    }
    plain = coterie("sandbox", "check", "workers=1")
    assert "it runs programs" in plain.stdout and "rlimits" in plain.stdout


def test_check_lists_what_is_open_without_namespaces():
    result = json.loads(coterie("sandbox", "check", "workers=1", "namespaces=off", "--json").stdout)
    assert {"disk", "lost workers"} <= {row["name"] for row in result["open"]}
    shown = coterie("sandbox", "check", "workers=1", "namespaces=off").stdout
    assert all(row["what"] in shown for row in result["open"])


@pytest.mark.parametrize(("arguments", "message"), [
    (("limit=2",), "unknown key 'limit'"),
    (("type=locl",), "unknown sandbox 'locl'"),
    (("type=sandbox_fusion", "url=http://127.0.0.1:9", "connect_seconds=.1"), "no SandboxFusion server"),
])  # fmt: skip
def test_wrong_settings_are_told(program: Path, arguments: tuple[str, ...], message: str):
    done = coterie("sandbox", "run", program, *arguments)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    done = coterie("sandbox", "run", tmp_path / "none.py")
    assert done.exit_code == 2 and "can't be read" in done.stderr


PLUGIN = """
from coterie import Plugin, PluginConfig, Ran, hookimpl
class Odd(Plugin):
    class Config(PluginConfig):
        how: str
    async def open(self): pass
    async def close(self):
        if self.config.how == "close": raise ValueError("mine")
    async def run(self, program):
        return None if self.config.how == "none" else Ran(status="finished", exit_code=0, stdout="45\\n")
    async def judge(self, judged): pass
    def report(self): return [{"name": "x"}]
@hookimpl
def register_sandboxes(register): register("odd", Odd)
"""


def test_a_plugin_that_breaks_its_contract_is_named(tmp_path: Path):
    (tmp_path / "odd.py").write_text(PLUGIN)
    (tmp_path / "program.py").write_text("print(1)")
    for command, how, message in (
        (("check",), "report", "report returned {'name': 'x'}"),
        (("check",), "none", "run returned None"),
        (("run", tmp_path / "program.py"), "none", "run returned None"),
        (("run", tmp_path / "program.py"), "close", "close raised ValueError: mine"),
    ):
        done = anew("sandbox", *command, "type=odd", f"how={how}", "-p", tmp_path / "odd.py")
        assert done.exit_code == 2 and message in done.stderr and "odd" in done.stderr.lower(), done.stderr
        assert "bug" not in done.stderr and "Traceback" not in done.stderr


def test_files_of_one_name_and_a_file_for_a_folder_are_refused(program: Path):
    folder = program.parent
    (folder / "a").mkdir()
    (folder / "a" / "in.txt").write_text("other")
    twice = coterie("sandbox", "run", program, "--file", folder / "in.txt", "--file", folder / "a" / "in.txt")
    assert twice.exit_code == 2 and "two files are named in.txt" in twice.stderr
    out = coterie("sandbox", "run", program, "--collect", "*.txt", "-o", folder / "in.txt")
    assert out.exit_code == 2 and "in.txt is no folder" in out.stderr


def test_the_output_is_shown_where_its_files_can_not_be_written(program: Path):
    folder = program.parent
    (folder / "made.txt").write_text("mine")
    done = coterie(
        "sandbox", "run", program, "--stdin", folder / "in.txt", "--file", folder / "numbers.csv",
        "--collect", "*.txt", "-o", folder,
    )  # fmt: skip
    assert done.exit_code == 2 and done.stdout == "[] said 1,2\n"


def test_an_empty_type_is_refused():
    done = coterie("sandbox", "check", "type=")
    assert done.exit_code == 2 and "no sandbox is named" in done.stderr


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        (b"# -*- coding: latin-1 -*-\nprint('\xe9', 1)\n", "é 1\n"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1251 :\nprint('\xe9')\n", "й\n"),
        (b"\xef\xbb\xbfprint('\xc3\xa9')\n", "é\n"),
        (b"# coding: utf-8\nprint('\xc3\xa9')\n", "é\n"),
    ],
)
def test_a_source_is_decoded_as_python_does(tmp_path: Path, source: bytes, printed: str):
    (tmp_path / "source.py").write_bytes(source)
    done = coterie("sandbox", "run", tmp_path / "source.py", "workers=1")
    assert (done.exit_code, done.stdout) == (0, printed), done.stderr


def test_bytes_that_are_no_text_are_told_and_never_replaced(tmp_path: Path):
    (tmp_path / "source.py").write_bytes(b"print('\xe9')\n")
    done = coterie("sandbox", "run", tmp_path / "source.py")
    assert done.exit_code == 2 and "can't be decoded" in done.stderr and "coding:" in done.stderr
    (tmp_path / "source.py").write_bytes(b"print(1)\n")
    (tmp_path / "in").write_bytes(b"\xff\n")
    done = coterie("sandbox", "run", tmp_path / "source.py", "--stdin", tmp_path / "in")
    assert done.exit_code == 2 and "no UTF-8" in done.stderr and "--file" in done.stderr

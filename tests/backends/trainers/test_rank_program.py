"""The rank program without torch: ranks start, run commands, and end whatever happens to a rank."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coterie import logs
from coterie.backends.cluster.wire import received_error, sent_error
from coterie.backends.trainers.ranks import group as group_module, processes as processes_module
from coterie.backends.trainers.ranks.commands import RankCommands, command
from coterie.backends.trainers.ranks.group import STOP, RankLost, check_world, watch_over
from coterie.backends.trainers.ranks.processes import connect, start, welcome
from coterie.core.errors import ConfigError, MissingExtra, PluginError, UserError
from coterie.core.plugins.origin import Origin, record_origin
from tests.backends.trainers.rank_targets import StrangeError, Target

ROOT = Path(__file__).parents[3]


@pytest.fixture
def commands() -> Any:
    made = RankCommands(Target(0), start(2))
    made.make(Target)
    yield made
    made.close()
    assert not any(alive(rank.pid) for rank in made.group.ranks)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def ends(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_a_method_runs_on_all_ranks_with_its_arguments(commands: RankCommands) -> None:
    (_, here), (number, there) = commands.run("place")
    assert number == 1 and here == os.getpid() != there
    assert commands.run("add", 2, 3) == [5, 6]
    assert commands.run("add", 2, 3, others=(10,)) == [5, 11]
    assert commands.run_each("add", [(1,), (2,)]) == [1, 3]
    for signal_of_the_terminal in (signal.SIGINT, signal.SIGTERM):  # rank 0's to answer
        os.kill(commands.group.ranks[0].pid, signal_of_the_terminal)
    assert commands.run("add", 1) == [1, 2]


@pytest.mark.parametrize(
    ("method", "kind", "parts"),
    [
        ("refuse", ConfigError, ["trainer.device: it is wrong", "why: a test", "fix: none"]),
        ("fail", ZeroDivisionError, ["by a test"]),
        ("leave", UserError, ["trainer.ranks: rank 1 called sys.exit(3)", "why: ", "rank_targets.py"]),
        (
            "leave_plugin",
            PluginError,
            ["loss 'mine' of my-package: __call__ called sys.exit(3)", "on rank 1"],
        ),
        ("die", RankLost, ["trainer.ranks: rank 1 was killed by signal 9", "fix:"]),
        ("fail_here", RuntimeError, ["a bug of rank 0"]),
    ],
)
def test_an_error_of_one_rank_ends_all_and_is_the_one_that_is_raised(
    method: str, kind: type, parts: list[str], commands: RankCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.backends.trainers.ranks.commands.LATE", 1.0)
    with pytest.raises(kind) as raised:
        commands.run(method)
    for part in parts:
        assert part in str(raised.value)
    if method not in ("die", "fail_here"):
        assert any(note.startswith("on rank 1") for note in raised.value.__notes__)
    if method == "fail":  # a bug brings its traceback
        assert any("rank_targets.py" in note for note in raised.value.__notes__)
    assert all(ends(rank.pid) for rank in commands.group.ranks)
    with pytest.raises(RankLost, match="the ranks have ended"):
        commands.run("place")


def test_the_death_of_an_idle_rank_is_said_at_once_and_stops_the_next_command(
    commands: RankCommands, caplog: pytest.LogCaptureFixture
) -> None:
    rank = commands.group.ranks[0]
    with caplog.at_level(logging.ERROR):
        os.kill(rank.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "rank 1 was killed by signal 9" in caplog.text
    with pytest.raises(RankLost, match="rank 1 was killed by signal 9"):
        commands.run("place")


@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_that_is_stopped_is_given_up_and_the_run_ends_by_its_name(
    commands: RankCommands, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """No connection ends, and no answer comes. A rank that computes gives signs of life."""
    monkeypatch.setattr(group_module, "ASK_SECONDS", 0.05)
    rank = commands.group.ranks[0]
    if busy:
        commands.group.send(rank, command("sleep", (600.0,)))
    watch_over(commands.group, 600.0)
    assert rank.patience is not None
    before, deadline = rank.patience.left, time.monotonic() + 60
    while (left := rank.patience.left) <= before and time.monotonic() < deadline:
        before = left  # it falls until the rank answers
        time.sleep(0.01)
    assert left > before, "it answered"
    os.kill(rank.pid, signal.SIGSTOP)
    watch_over(commands.group, 0.5)
    said = f"rank 1 is given up: process {rank.pid} has not answered for 0.5 s, since "
    with caplog.at_level(logging.ERROR), pytest.raises(RankLost, match=said):
        commands.run("place")
    assert said in caplog.text and ends(rank.pid)


def test_close_does_not_wait_for_a_rank_that_is_busy(
    commands: RankCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "END", 0.5)
    data = command("sleep", (600.0,))
    commands.group.send(commands.group.ranks[0], data)
    started = time.monotonic()
    commands.close()
    assert time.monotonic() - started < 60
    assert not alive(commands.group.ranks[0].pid)


def test_a_class_that_another_rank_cannot_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import os\nif 'LOCAL_RANK' in os.environ:\n    import absent_on_ranks\n\nclass Only:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    made = RankCommands(Target(0), start(2))
    with pytest.raises(ModuleNotFoundError, match="absent_on_ranks") as raised:
        made.make(only_here.Only)
    assert any("on rank 1" in note for note in raised.value.__notes__)
    assert ends(made.group.ranks[0].pid)


def test_a_program_that_cannot_start_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "PROGRAM", "coterie.no_such_module")
    started = time.monotonic()
    with pytest.raises(RankLost, match="rank 1 could not start: it ended with exit code 1") as raised:
        start(3)
    assert "see the messages above" in str(raised.value)
    assert time.monotonic() - started < 60  # not after START_SECONDS


def test_what_a_rank_prints_is_in_its_log_which_its_error_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes_module, "PROGRAM", "coterie.no_such_module")
    with pytest.raises(RankLost) as raised, logs.kept_in(tmp_path / "logs"):
        start(2)
    log = tmp_path / "logs" / "rank-1.log"
    assert f"see {log}" in str(raised.value) and "No module named coterie.no_such_module" in log.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_rank_that_never_comes_and_a_stranger_at_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "START_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            stranger.shutdown(socket.SHUT_WR)
            with pytest.raises(RankLost, match="rank 1 has not come within"):
                welcome(server, b"key", 2, lambda: None)


def test_a_handshake_has_a_time_limit_and_what_follows_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout may take hours, in which the ranks hear nothing from each other."""
    monkeypatch.setattr(processes_module, "HANDSHAKE_SECONDS", 1)
    joined: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        there = threading.Thread(target=lambda: joined.append(connect("127.0.0.1", port, b"key", 1, 0)))
        there.start()
        (rank,) = welcome(server, b"key", 2, lambda: None)
        there.join()
    (connection,) = joined
    later = [threading.Timer(1.2, end.send_bytes, (b"x",)) for end in (rank.connection, connection)]
    for timer in later:
        timer.start()
    assert connection.recv_bytes() == rank.connection.recv_bytes() == b"x"
    for timer in later:
        timer.join()
    connection.close()
    rank.connection.close()


def test_a_killed_rank_0_leaves_no_rank_behind(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"""
        from tests.backends.trainers.rank_targets import Target
        from coterie.backends.trainers.ranks.commands import RankCommands
        from coterie.backends.trainers.ranks.processes import start
        import time
        commands = RankCommands(Target(0), start(2))
        commands.make(Target)
        commands.run("write", {str(file)!r})
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    rank_0 = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=env)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(file.read_text())
    assert alive(pid)
    rank_0.kill()
    rank_0.wait()
    assert ends(pid)


# ---------------------------------------------------------------------------------------- what is sent


class _Loss:
    def __init__(self, build: Any) -> None:
        self.build = build


class _Build:
    """What a builder gives: it holds everything, here a lock as little as can't be pickled."""

    name, path, run = "ppo", "loss", "the configuration"

    def __init__(self) -> None:
        self.builder = lambda: None

    def make(self, kind: str, table: Any, path: str) -> Any:
        raise AssertionError


def test_a_plugins_build_travels_without_its_builder() -> None:
    method, (loss,) = pickle.loads(command("open", (_Loss(_Build()),)))
    assert (method, loss.build.name, loss.build.path, loss.build.run) == (
        "open", "ppo", "loss", "the configuration",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="can't be made on another rank"):
        loss.build.make("sandbox", {}, "x")


def test_a_plugin_that_cannot_be_sent_is_named() -> None:
    loss = _Loss(lambda: None)
    record_origin(loss, Origin("loss", "mine", "my-package", "loss"))
    with pytest.raises(ConfigError) as raised:
        command("open", (loss,))
    assert raised.value.path == "loss" and "loss 'mine' of my-package" in str(raised.value)
    assert "trainer.ranks=1" in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [UserError("what", why="why", fix="fix", path="a.b"), MissingExtra("apex", "torch", needed_by="a test")],
)
def test_user_errors_travel_whole(error: UserError) -> None:
    received = received_error(sent_error(error, "on rank 3"))
    assert type(received) is type(error) and vars(received) == vars(error)
    assert str(received) == str(error) and received.__notes__ == ["on rank 3"]


def test_an_error_that_cannot_be_pickled_travels_as_text() -> None:
    received = received_error(sent_error(StrangeError(lambda: None), "on rank 1"))
    assert type(received) is RuntimeError and str(received).startswith("StrangeError: ")
    assert received.__notes__[0].startswith("on rank 1:\n")


# ------------------------------------------------------------------------------------------- the world


def test_a_world_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_world(1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one of 2 that another program started") as raised:
        check_world(2)
    assert "-m coterie.backends.trainers.ranks run RECIPE trainer.ranks=2" in str(raised.value)
    monkeypatch.setattr(group_module, "joined", group_module.RankGroup([], "127.0.0.1", lasting=True))
    with pytest.raises(ConfigError, match="1 ranks were started, and the configuration has 2"):
        check_world(2)


def test_a_rank_that_is_stopped_while_it_hangs_ends_itself() -> None:
    """Under torchrun no other process ends it, and torchrun waits for all ranks."""
    ours, theirs = multiprocessing.Pipe()
    text = (
        "import sys, time\n"
        "from multiprocessing.connection import Connection\n"
        "from coterie.backends.trainers.ranks import commands\n"
        "commands.LATE = 0.2\n"
        "commands.serve(Connection(int(sys.argv[1])), 1)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", text, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        ours.send_bytes(command("make", (Target,)))
        assert pickle.loads(ours.recv_bytes())[0]
        ours.send_bytes(command("sleep", (600.0,)))
        ours.send_bytes(STOP)
        assert child.wait(20) == 1
    finally:
        child.kill()
        child.wait()

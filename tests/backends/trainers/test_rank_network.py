"""Where gloo listens, and how a collective ends whose other rank is silent for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.backends.trainers.test_rank_program import ROOT

SETTING = "GLOO_SOCKET_IFNAME"


@pytest.mark.torch
def test_gloo_listens_where_rank_0_is_reached_unless_the_user_has_chosen(monkeypatch):
    pytest.importorskip("torch")
    from coterie.backends.trainers.ranks.collectives import gloo_by

    monkeypatch.delenv(SETTING, raising=False)
    with gloo_by("127.0.0.1"):
        assert os.environ[SETTING] == "lo"
    with gloo_by("no-such-host.invalid"):
        assert SETTING not in os.environ
    monkeypatch.setenv(SETTING, "mine")
    with gloo_by("127.0.0.1"):
        assert os.environ[SETTING] == "mine"
    assert os.environ[SETTING] == "mine"


@pytest.mark.torch
def test_a_collective_with_a_node_that_is_gone_ends_once_it_is_hung_up(tmp_path):
    """The other rank is stopped: like a node without power it closes no connection."""
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, subprocess, sys, threading, time
        import torch
        import torch.distributed as dist
        from datetime import timedelta
        from coterie.backends.trainers.ranks.processes import hang_up
        from coterie.backends.trainers.ranks.collectives import gloo_by

        number, port = int(sys.argv[1]), int(sys.argv[2])
        limit = timedelta(seconds=100)
        first = {"is_master": number == 0, "wait_for_workers": False, "timeout": limit}
        store = dist.TCPStore("127.0.0.1", port, 2, **first)
        if number == 0:
            other = subprocess.Popen([sys.executable, __file__, "1", str(store.port)])
        with gloo_by("127.0.0.1"):
            group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), number, 2, limit)
        group.allreduce(torch.ones(3)).wait()
        if number == 1:
            time.sleep(100)
        os.kill(other.pid, signal.SIGSTOP)
        threading.Timer(1.0, hang_up, ("127.0.0.1",)).start()
        began = time.monotonic()
        try:
            group.allreduce(torch.ones(3)).wait()
        except RuntimeError as error:
            print("raised after", 1 < time.monotonic() - began < 50, flush=True)
        other.kill()
        os._exit(0)
    """)
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(script), "0", "0"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "raised after True" in done.stdout, done.stderr

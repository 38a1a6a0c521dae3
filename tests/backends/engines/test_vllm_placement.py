"""Where servers of their own processes run, how weights reach them, and what is left of killed runs."""

import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.backends.engines.vllm import reaper
from coterie.backends.engines.vllm.arguments import engine_arguments, place, sleeps
from coterie.backends.engines.vllm.launch import bounded_start
from coterie.backends.engines.vllm.server import ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.models.patience import Patience
from coterie.core.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "gpus", "placed"),
    [
        ({}, 0, [((), "file")]),
        ({}, 1, [((0,), "ipc")]),
        ({}, 2, [((1,), "nccl")]),
        ({"replicas": 2}, 4, [((2,), "nccl"), ((3,), "nccl")]),
        ({"replicas": 2, "tensor_parallel": 2}, 8, [((4, 5), "nccl"), ((6, 7), "nccl")]),
        ({"tensor_parallel": 2}, 2, [((0, 1), "file")]),
        ({"devices": [1]}, 4, [((1,), "nccl")]),
        ({"transfer": "file"}, 2, [((1,), "file")]),
    ],
)
def test_servers_take_the_last_gpus_and_the_fastest_way(settings, gpus, placed):
    config = VLLMConfig(**settings)
    got = [place(config, replica, gpus) for replica in range(config.replicas)]
    assert [(placement.gpus, placement.transfer) for placement in got] == placed


@pytest.mark.parametrize(
    ("settings", "gpus", "trainer", "placed"),
    [
        ({}, 3, (0, 1), [((2,), "nccl", False)]),
        ({}, 2, (0, 1), [((1,), "nccl", True)]),
        ({"replicas": 2}, 3, (0, 1), [((1,), "nccl", True), ((2,), "nccl", False)]),
        ({"replicas": 2}, 2, (0, 1), [((0,), "ipc", True), ((1,), "nccl", True)]),
        ({"tensor_parallel": 2}, 4, (0, 1), [((2, 3), "nccl", False)]),
        ({}, 2, (1,), [((0,), "nccl", False)]),
        ({}, 1, (), [((0,), "file", False)]),
        ({"devices": [1]}, 4, (0, 1), [((1,), "nccl", True)]),
    ],
)
def test_servers_keep_off_the_gpus_of_the_trainers_ranks_where_there_are_enough(
    settings, gpus, trainer, placed
):
    config = VLLMConfig(**settings)
    got = [place(config, replica, gpus, trainer) for replica in range(config.replicas)]
    assert [(placement.gpus, placement.transfer, placement.shared) for placement in got] == placed


@pytest.mark.parametrize(
    ("settings", "gpus", "path"),
    [
        ({"replicas": 3}, 2, "engine.replicas"),
        ({"devices": [0, 1]}, 2, "engine.devices"),
        ({"devices": [5]}, 2, "engine.devices"),
        ({"transfer": "nccl"}, 0, "engine.transfer"),
        ({"transfer": "nccl"}, 1, "engine.transfer"),
        ({"transfer": "ipc"}, 2, "engine.transfer"),
        ({"transfer": "memory"}, 0, "engine.transfer"),
    ],
)
def test_an_impossible_placement_is_refused(settings, gpus, path):
    with pytest.raises(ConfigError) as caught:
        place(VLLMConfig(**settings), 0, gpus)
    assert caught.value.path == path and caught.value.fix


@pytest.mark.parametrize(
    ("settings", "gpus", "pickled"),
    [
        ({}, 1, True),
        ({"devices": [0, 1], "replicas": 2}, 2, True),
        ({}, 2, False),
        ({"transfer": "file"}, 1, False),
    ],
)
def test_all_servers_agree_on_pickled_messages(settings, gpus, pickled):
    """vLLM reads messages otherwise where one end allows pickled ones; one server that needs them decides."""
    config = VLLMConfig(**settings)
    placed = [place(config, replica, gpus).pickled for replica in range(config.replicas)]
    assert placed == [pickled] * config.replicas


def test_a_placement_counts_among_the_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert place(VLLMConfig(), 0, 3).variables == {"CUDA_VISIBLE_DEVICES": "7"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert place(VLLMConfig(), 0, 3).variables == {"CUDA_VISIBLE_DEVICES": "2"}


@pytest.mark.parametrize(
    ("sleep", "on_cpu", "shared", "expected"),
    [
        ("auto", False, True, True),
        ("auto", False, False, False),
        ("auto", True, True, False),
        (True, False, False, True),
        (False, False, True, False),
    ],
)
def test_vllm_sleeps_where_it_shares_the_trainers_gpu(sleep, on_cpu, shared, expected):
    assert sleeps(VLLMConfig(sleep=sleep), on_cpu=on_cpu, shared=shared) is expected


def test_the_settings_reach_vllm():
    settings = VLLMConfig(process="own", tensor_parallel=4, memory_share=0.7, eager=True, max_batch=9)
    arguments = engine_arguments(
        ServerSpec(name="p", model="m", settings=settings),
        inside=False, on_cpu=False, backend="nccl", shared=False,
    )  # fmt: skip
    assert arguments["tensor_parallel_size"] == 4
    assert arguments["gpu_memory_utilization"] == 0.7
    assert arguments["enforce_eager"] is True
    assert arguments["max_num_seqs"] == 9
    assert arguments["weight_transfer_config"] == {"backend": "nccl"}
    assert arguments["enable_sleep_mode"] is False


PARENT = """
import os, signal, subprocess, sys, time
from coterie.backends.engines.vllm.reaper import VARIABLE, Reaper
signal.signal(signal.SIGINT, lambda *_: None)  # a run that ends in its own time
reaper = Reaper(seconds=0.5)
token = reaper.token
reaper.keep({"psm_coterie_" + token})
reaper.keep({"psm_nobody_has_" + token})
open("/dev/shm/psm_coterie_" + token, "w").close()
child = "import subprocess, time; subprocess.Popen(['sleep', '99']); print(1, flush=True); time.sleep(99)"
process = subprocess.Popen(
    [sys.executable, "-c", child], env={**os.environ, VARIABLE: token + ".1."}, stdout=subprocess.PIPE,
    start_new_session=True,
)
process.stdout.readline()
if os.fork() == 0:
    time.sleep(5)  # a forked child, such as a worker's, that is not vLLM's and holds the reaper's pipe
    os._exit(0)
print(token, flush=True)
time.sleep(99)
"""


def eventually(condition, seconds=4.0):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM and the reaper are for Linux")
@pytest.mark.parametrize(
    "end", ["kill", *(pytest.param(end, marks=pytest.mark.long) for end in ("terminate", "interrupt"))]
)
def test_marked_processes_end_with_their_parent_however_it_ends(end):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        token = parent.stdout.readline().strip()
        # A child and a grandchild; for a moment of its exec the grandchild has no environment to read.
        assert eventually(lambda: len(reaper.owned(token)) == 2)
        if end == "interrupt":  # Ctrl-C in a terminal reaches all of its processes
            os.killpg(parent.pid, signal.SIGINT)
            time.sleep(0.2)
            end = "kill"
        getattr(parent, end)()
        parent.wait()
        assert eventually(lambda: not reaper.owned(token))
        # Shared memory that its trackers, which may be killed too, leave behind.
        assert eventually(lambda: not Path(f"/dev/shm/psm_coterie_{token}").exists(), 20)
    finally:
        parent.kill()
        reaper.kill(token)


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM and the reaper are for Linux")
def test_a_program_that_vllm_runs_as_it_starts_is_none_of_its_processes(monkeypatch):
    """Else the marks of the environment end before vLLM's first process has them: nothing would end it."""
    token = secrets.token_hex(8)
    monkeypatch.setenv(reaper.VARIABLE, f"{token}.1.")
    tool = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    own = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    try:
        assert eventually(lambda: reaper.owned(token) == [tool.pid]) and reaper.spawned(token) == []
        own.start()
        assert eventually(lambda: reaper.spawned(token) == [own.pid])
        assert sorted(reaper.owned(token)) == sorted([tool.pid, own.pid])
    finally:
        reaper.kill(token)
        tool.wait()
        own.join()


KEEPS = """
import multiprocessing, os, secrets, time
from multiprocessing.shared_memory import SharedMemory
from coterie.backends.engines.vllm import launch, reaper

context = multiprocessing.get_context("spawn")

def holds(lock, ready):
    if DROPS:
        vars(lock).clear()  # its creator alone has it then, under no name
    ready.send("ready")
    time.sleep(99)

def creates(ready):
    lock, memory = context.Lock(), SharedMemory(create=True, size=8)
    context.Process(target=holds, args=(lock, ready)).start()
    time.sleep(99)

if __name__ == "__main__":
    mine, theirs = context.Pipe()
    mark = os.environ[reaper.VARIABLE] = secrets.token_hex(8) + ".1."
    context.Process(target=creates, args=(theirs,)).start()
    del os.environ[reaper.VARIABLE]
    mine.recv()
    names = reaper.segments(mark)
    reaper.kill(mark)
    if KEPT:
        launch.remove_segments(names)
    print(sorted(name.rpartition("-")[0] or name[:4] for name in names))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM and the reaper are for Linux")
@pytest.mark.parametrize(
    ("removes", "drops"), [(True, True), pytest.param(False, False, marks=pytest.mark.long)]
)
def test_shared_memory_and_semaphores_of_killed_processes_are_removed(tmp_path, removes, drops):
    script = tmp_path / "script.py"
    script.write_text(KEEPS.replace("KEPT", str(removes)).replace("DROPS", str(drops)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["['psm_',", "'sem.mp']"], done
    assert ("leaked" in done.stderr) is not removes, done.stderr  # Python's tracker removes and warns
    assert "Traceback" not in done.stderr


def test_folders_of_killed_processes_are_removed_and_those_of_live_ones_kept(tmp_path, monkeypatch):
    from coterie.backends.engines.vllm import transfer

    monkeypatch.setattr(transfer, "SHARED_MEMORY", tmp_path)
    script = (
        "import sys, time; from pathlib import Path; from coterie.backends.engines.vllm import transfer\n"
        f"transfer.SHARED_MEMORY = Path({str(tmp_path)!r})\n"
        "folders = transfer.Folders()\n"
        "print(folders.write('a', 1, lambda path: path.write_text('x')), flush=True); time.sleep(99)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        files = [process.stdout.readline().strip() for process in processes]
        processes[0].kill()
        processes[0].wait()
        folders = transfer.Folders()
        mine = folders.write("b", 1, lambda path: path.write_text("x"))
        assert not os.path.exists(files[0]) and os.path.exists(files[1]) and mine.exists()
        folders.close()
        assert not mine.exists() and os.path.exists(files[1])
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM and the reaper are for Linux")
def test_a_process_that_hangs_before_its_first_message_is_killed(monkeypatch):
    """vLLM waits for it without end; its end is one that vLLM notices."""
    mark = f"{secrets.token_hex(8)}.1."
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, reaper.VARIABLE: mark})
    process.send_signal(signal.SIGSTOP)
    try:
        with bounded_start(Patience("the vLLM of 'p'", 0.2), mark) as hangs:
            process.wait(30)
        assert hangs.is_set() and process.returncode == -signal.SIGKILL
        with bounded_start(Patience("the vLLM of 'p'", 60), mark) as hangs:
            pass
        assert not hangs.is_set()
    finally:
        process.kill()

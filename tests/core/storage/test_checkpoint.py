"""A checkpoint is complete or absent, after kills, full disks, flipped bits and truncated files."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from coterie.api.checkpoints import CheckpointStore
from coterie.core.errors import RunFolderError, WriteError
from coterie.core.storage import checkpoint
from coterie.core.storage.atomic import locked, write_atomic

ROOT = Path(__file__).resolve().parents[3]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, locks and file limits of POSIX")


def contents(step: int) -> dict[str, bytes]:
    """The files that the toy trainer writes at a step; the step is in their content."""
    return {"weights.bin": f"{step:08d}".encode() * 6000, "policies/a/adapter.bin": f"a{step}".encode() * 400}


def writer(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, raw in contents(step).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(raw)

    return write


def save(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.save(step, writer(step), {"step": step})


def holds(saved: checkpoint.Checkpoint | None, step: int) -> bool:
    assert saved is not None
    files = {name: (saved.path / name).read_bytes() for name in contents(step)}
    return saved.step == step and saved.meta == {"step": step} and files == contents(step)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


# ---------------------------------------------------------------------------------------------- write_atomic


@given(st.binary(max_size=300), st.one_of(st.binary(max_size=300), st.text(max_size=100)))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_write_atomic_replaces_the_whole_file(tmp_path, old, new):
    path = tmp_path / "file"
    write_atomic(path, old)
    write_atomic(path, new)
    assert path.read_bytes() == (new.encode() if isinstance(new, str) else new)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fails(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fails)
    with pytest.raises(WriteError, match=r"can't be written\n  why: .*No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_files_reach_the_disk_before_their_names_do(tmp_path, monkeypatch):
    """fsync of the content, then the rename, then fsync of the folder; else a power cut empties the file."""
    order: list[tuple[str, str]] = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def synced(handle: int) -> None:
        order.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def renamed(old: Path, new: Path) -> None:
        order.append(("name", Path(new).name))
        (rename if Path(old).is_dir() else replace)(old, new)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "replace", renamed)
    save(CheckpointStore(tmp_path / "checkpoints", keep=1), 1)
    final = order.index(("name", "step-000001"))
    assert {name for operation, name in order[:final] if operation == "sync"} >= {
        "weights.bin",
        "adapter.bin",
        "a",
        "policies",
    }
    assert ("name", "manifest.json") in order[:final]
    assert order[final - 1][0] == "sync", "the folder with the manifest's name in it"
    assert ("sync", "checkpoints") in order[final:]


# ------------------------------------------------------------------------------------------------ the store


def test_save_and_load_give_back_files_and_meta(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.latest() is None and store.steps() == []
    meta = {"best": 0.1 + 0.2, "names": ("a", "b"), "none": None, "low": float("-inf")}
    saved = store.save(7, writer(7), meta)
    assert saved.path.name == "step-000007" and saved.path.is_dir()
    latest = CheckpointStore(tmp_path / "checkpoints", keep=2).latest()
    assert latest == saved and latest.meta["best"] == 0.1 + 0.2 and latest.meta["names"] == ["a", "b"]
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert manifest["format"] == 1 and set(manifest["files"]) == set(contents(7))
    assert not leftovers(store.folder)


def test_old_ones_are_pruned_and_marked_ones_stay(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    store.mark("best", 1)
    save(store, 2, 3, 4)
    assert store.steps() == [1, 3, 4] and store.marks() == {"best": 1}
    assert holds(store.marked("best"), 1)
    store.mark("best", 4)
    save(store, 5)
    assert store.steps() == [4, 5] and holds(store.marked("best"), 4)
    with pytest.raises(RunFolderError, match="step 9 has no checkpoint"):
        store.mark("best", 9)
    with pytest.raises(RunFolderError, match="'bset'") as caught:
        store.marked("bset")
    assert "did you mean 'best'" in str(caught.value)


def test_steps_beyond_six_digits_keep_their_order(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 999_999, 1_000_000)
    assert store.steps() == [999_999, 1_000_000] and holds(store.latest(), 1_000_000)


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 3)
    store.save(3, lambda folder: (folder / "new").write_text("x") and None, {"again": True})
    latest = store.latest()
    assert latest is not None and latest.meta == {"again": True}
    assert sorted(path.name for path in latest.path.iterdir()) == ["manifest.json", "new"]
    assert not leftovers(tmp_path)


def test_the_checkpoints_and_marks_of_later_steps_are_found(tmp_path):
    store = CheckpointStore(tmp_path, keep=5)
    save(store, 1, 2, 3)
    store.mark("best", 3)
    assert store.later(1) == ([tmp_path / "step-000002", tmp_path / "step-000003"], [tmp_path / "best.json"])
    assert store.later(2) == ([tmp_path / "step-000003"], [tmp_path / "best.json"])
    assert store.later(3) == ([], [])


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)

    def broken(folder: Path) -> None:
        writer(2)(folder)
        raise RuntimeError("the trainer has a bug")

    with pytest.raises(RuntimeError, match="has a bug"):
        store.save(2, broken, {})
    assert store.steps() == [1] and not leftovers(tmp_path)
    with pytest.raises(TypeError):
        store.save(2, writer(2), {"no json": object()})
    assert store.steps() == [1] and not leftovers(tmp_path)


def test_unknown_steps_and_later_formats_are_refused(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, 2)
    with pytest.raises(RunFolderError, match="no checkpoint of step 5") as caught:
        store.load(5)
    assert "1, 2" in str(caught.value)
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    save(store, 3)
    monkeypatch.undo()
    with pytest.raises(RunFolderError, match="later version"):
        store.latest()


# -------------------------------------------------------------------------------------------------- damage


def flip(path: Path, position: int = -1, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda p: flip(p / "weights.bin", 17), "weights.bin"),
    "a truncated file": (lambda p: os.truncate(p / "weights.bin", 5), "weights.bin"),
    "a missing file": (lambda p: (p / "policies/a/adapter.bin").unlink(), "policies/a/adapter.bin"),
    "a truncated manifest": (lambda p: os.truncate(p / "manifest.json", 40), "manifest.json"),
    "an empty manifest": (lambda p: os.truncate(p / "manifest.json", 0), "manifest.json"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json"),
    "a changed meta": (
        lambda p: (p / "manifest.json").write_text(
            (p / "manifest.json").read_text().replace('"step": 2', '"step": 3')
        ),
        "manifest.json",
    ),
    "another step's folder": (
        lambda p: shutil.copytree(p.parent / "step-000001", p, dirs_exist_ok=True),
        "manifest",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, caplog, damage):
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1, 2)
    harm, file = DAMAGES[damage]
    harm(tmp_path / "step-000002")
    with caplog.at_level(logging.WARNING, "coterie"):
        assert holds(store.latest(), 1)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "step-000002" in message and file in message and "using" in message and "step-000001" in message
    with pytest.raises(RunFolderError, match="damaged") as caught:
        store.load(2)
    assert file in caught.value.why and caught.value.fix


def test_a_warning_says_that_all_checkpoints_are_damaged(tmp_path, caplog):
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1, 2)
    for step in (1, 2):
        flip(tmp_path / f"step-{step:06d}" / "weights.bin")
    assert store.latest() is None
    assert len(caplog.records) == 2 and "no intact checkpoint is left" in caplog.text


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_single_flipped_bit_is_detected(tmp_path, data):
    folder = tmp_path / "flips"
    if not folder.exists():
        save(CheckpointStore(folder, keep=1), 4)
    path = folder / "step-000004" / data.draw(st.sampled_from(["manifest.json", *contents(4)]))
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    flip(path, position, bit)
    try:
        assert CheckpointStore(folder, keep=1).latest() is None
    finally:
        flip(path, position, bit)


def test_an_unreadable_mark_protects_nothing_and_a_warning_names_it(tmp_path, caplog):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)
    store.mark("best", 1)
    os.truncate(tmp_path / "best.json", 3)
    assert store.marks() == {} and "best.json" in caplog.text


# ------------------------------------------------------------------------------------------------- leftovers


def test_what_a_killed_process_left_is_removed_on_opening(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (tmp_path / ".tmp-step-000002-abcd" / "deep").mkdir(parents=True)
    (tmp_path / ".tmp-step-000002-abcd" / "deep" / "weights.bin").write_bytes(b"half")
    CheckpointStore(tmp_path, keep=2)
    assert not leftovers(tmp_path) and holds(store.latest(), 1)


def test_what_a_killed_process_left_of_a_single_file_is_removed_by_the_next_save(tmp_path):
    """A reader that only opens the folder leaves it: the file may be one that a live process is writing."""
    store = CheckpointStore(tmp_path, keep=2)
    (tmp_path / ".tmp-marks.json-abcd").write_text("{")
    CheckpointStore(tmp_path, keep=2)
    assert leftovers(tmp_path) == [".tmp-marks.json-abcd"]
    save(store, 1)
    assert not leftovers(tmp_path) and holds(store.latest(), 1)


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    swept: list[Path] = []

    def sweeps_first(folder, wait=True):
        if not swept and folder.name.startswith(".tmp"):
            shutil.rmtree(folder)
            swept.append(folder)
        return locked(folder, wait)

    monkeypatch.setattr(checkpoint, "locked", sweeps_first)

    def write(folder):
        assert folder.is_dir(), "a trainer is given a folder that is there"
        writer(1)(folder)

    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, write, {"step": 1})
    assert swept and holds(store.latest(), 1) and not leftovers(tmp_path)


@posix
def test_what_a_live_process_is_writing_stays(tmp_path):
    """`evaluate` opens the folder while the trainer saves into it."""
    live = tmp_path / ".tmp-step-000002-abcd"
    live.mkdir()
    with locked(live):
        CheckpointStore(tmp_path, keep=2)
        assert live.is_dir()
    CheckpointStore(tmp_path, keep=2)
    assert not live.exists()


def test_an_interrupted_replacement_is_undone(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, 2)
    os.rename(tmp_path / "step-000002", tmp_path / ".tmp-old-step-000002")
    assert holds(CheckpointStore(tmp_path, keep=2).latest(), 2)
    shutil.copytree(
        tmp_path / "step-000001", tmp_path / ".tmp-old-step-000002"
    )  # the new checkpoint was complete already
    assert holds(CheckpointStore(tmp_path, keep=2).latest(), 2) and not leftovers(tmp_path)


# ---------------------------------------------------------------------------------------------------- kills

TOY = f"""
import os, shutil, signal, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from test_checkpoint import CheckpointStore, contents, writer
folder = Path(sys.argv[1])
"""


def child(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", TOY + textwrap.dedent(script), *map(str, arguments)]


@posix
def test_kill_9_at_random_moments_leaves_the_last_checkpoint_that_was_reported(tmp_path):
    """The last checkpoint that `save` returned, or a newer one, loads; an incomplete one never does."""
    script = """
        store = CheckpointStore(folder, keep=2)
        step = (store.latest().step if store.steps() else 0)
        while True:
            step += 1
            store.save(step, writer(step), {"step": step})
            if step % 3 == 0:
                store.mark("best", step)
            print(step, flush=True)
        """
    clock, reported = random.Random(5), 0
    for _ in range(4):
        with subprocess.Popen(child(script, tmp_path), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()  # the first checkpoint is saved
            time.sleep(clock.uniform(0.0, 0.06))
            process.send_signal(signal.SIGKILL)
            printed = first + process.stdout.read()
        assert process.wait() == -signal.SIGKILL
        reported = max(reported, *map(int, printed.split()))
        store = CheckpointStore(tmp_path, keep=2)
        latest = store.latest()
        assert latest is not None and latest.step in (reported, reported + 1) and holds(latest, latest.step)
        assert all(holds(store.load(step), step) for step in store.steps())
        assert not [name for name in leftovers(tmp_path) if "step-" in name]
        for mark, step in store.marks().items():
            assert mark == "best" and holds(store.load(step), step)


@posix
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_kill_9_between_any_two_file_operations_of_a_save(tmp_path, again):
    """Kill the process at every file operation of a save, one after the other."""
    script = """
        again = sys.argv[2] == "True"
        CheckpointStore(folder, keep=1).save(1, writer(1), {"step": 1})
        names = ["mkdir", "fsync", "replace", "rename", "rmdir", "unlink", "open"]
        originals = {name: getattr(os, name) for name in names}

        def code_when_killed_at(operation):
            pid = os.fork()
            if pid == 0:
                left = [operation]
                def wrapped(name):
                    def call(*arguments, **keywords):
                        if left[0] == 0:
                            os.kill(os.getpid(), signal.SIGKILL)
                        left[0] -= 1
                        return originals[name](*arguments, **keywords)
                    return call
                for name in names:
                    setattr(os, name, wrapped(name))
                step = 1 if again else 2
                CheckpointStore(folder, keep=1).save(step, writer(step), {"step": step})
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        operation, steps = 0, set()
        while True:
            code = code_when_killed_at(operation)
            store = CheckpointStore(folder, keep=1)
            latest = store.latest()
            assert latest is not None, operation
            for name, raw in contents(latest.step).items():
                assert (latest.path / name).read_bytes() == raw, operation
            assert not list(folder.glob(".tmp-step*")) and not list(folder.glob(".tmp-old*")), operation
            steps.add(latest.step)
            if code == 0:
                break
            assert code == -signal.SIGKILL, code
            for path in store.later(1)[0]:
                shutil.rmtree(path)
            if 1 not in store.steps():
                store.save(1, writer(1), {"step": 1})
            operation += 1
        assert latest.step == (1 if again else 2), latest
        print(operation, sorted(steps))
        """
    done = subprocess.run(child(script, tmp_path, again), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    operations, steps = done.stdout.split(maxsplit=1)
    assert int(operations) >= 20 and json.loads(steps) == ([1] if again else [1, 2])


# ------------------------------------------------------------------------------------------------ full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting needs root on Linux")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_checkpoint_and_no_incomplete_one(small_disk):
    store = CheckpointStore(small_disk / "checkpoints", keep=3)
    save(store, 1)
    (small_disk / "ballast").write_bytes(b"x" * 150_000)
    with pytest.raises(WriteError, match=r"the checkpoint of step 2 .* can't be written") as caught:
        save(store, 2)
    assert "No space left" in caught.value.why and "free space" in caught.value.fix
    assert not leftovers(store.folder) and holds(store.latest(), 1)
    (small_disk / "ballast").unlink()
    save(store, 2)
    assert holds(store.latest(), 2)


def test_a_full_disk_leaves_the_old_file(small_disk):
    path = small_disk / "config.yaml"
    write_atomic(path, "old")
    with pytest.raises(WriteError, match=r"can't be written\n  why: .*No space left"):
        write_atomic(path, b"x" * 400_000)
    assert path.read_text() == "old" and os.listdir(small_disk) == ["config.yaml"]


@posix
def test_a_file_size_limit_is_handled_as_a_full_disk(tmp_path):
    """Without root: RLIMIT_FSIZE makes every write past 20 kB fail with EFBIG."""
    script = """
        import resource
        from coterie.core.errors import WriteError
        store = CheckpointStore(folder, keep=3)
        store.save(1, writer(1), {"step": 1})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            store.save(2, writer(2), {"step": 2})
        except WriteError as error:
            print(error.why)
        """
    done = subprocess.run(child(script, tmp_path), capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout, done.stderr
    store = CheckpointStore(tmp_path, keep=3)
    assert store.steps() == [1] and holds(store.latest(), 1) and not leftovers(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(WriteError, match="can't be written"):
        save(store, 1)

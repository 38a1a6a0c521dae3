"""Contents that programs hand on: kept once, as long as somebody names them, whoever is killed meanwhile."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.sandboxes.answer import CellAnswer
from coterie.backends.sandboxes.kept_files import FileStore
from coterie.core.errors import SystemFault, WriteError
from coterie.core.types.digest import digest
from coterie.discovery.members import KeptFiles


def put(store: FileStore, files: dict[str, bytes]) -> KeptFiles:
    """Keep these contents."""
    entries = []
    for path, data in files.items():
        writer = store.writer()
        writer.write(data)
        entries.append((path, *writer.commit()))
    kept = store.keep(entries)
    store.release([name for _, name, _ in entries])
    return kept


def contents(folder: Path) -> set[str]:
    return {file.name for file in (folder / "contents").iterdir()}


def names_held(folder: Path) -> list[str]:
    """What the stores of this folder hold, of all processes, unfinished files included."""
    return [file.name for owner in (folder / "owners").iterdir() for file in owner.iterdir()]


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_equal_contents_are_kept_once_and_only_while_they_are_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    first = put(store, {"a": b"same", "b": b"other", "empty": b""})
    second = put(store, {"deep/c": b"same"})
    assert contents(store.folder) == {name_of(b"same"), name_of(b"other"), name_of(b"")}
    assert store.content(name_of(b"same")) == b"same"
    assert store.content(name_of(b"")) == b""
    assert first.files[0] == ("a", name_of(b"same"), 4)
    del first
    gc.collect()
    store.drop_released()
    assert contents(store.folder) == {name_of(b"same")}
    del second
    gc.collect()
    store.drop_released()
    assert not contents(store.folder)
    with pytest.raises(SystemFault, match="has no content"):
        store.place(name_of(b"same"))
    store.close()


def test_a_copy_of_the_value_is_equal_and_holds_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    kept = put(store, {"a": b"x"})
    copied = pickle.loads(pickle.dumps(kept))
    assert copied == kept and digest(copied) == digest(kept)
    del kept
    gc.collect()
    store.drop_released()
    with pytest.raises(SystemFault, match="has no content"):
        store.keep(copied.files)
    store.close()


def test_a_content_that_a_dying_value_names_stays_for_the_program_that_has_just_left_it(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    dying = put(store, {"a": b"x"})
    writer = store.writer()
    writer.write(b"x")
    entry = ("b", *writer.commit())
    del dying
    gc.collect()
    store.drop_released()  # another program's run, between the commit and the keep
    kept = store.keep([entry])
    store.release([entry[1]])
    store.drop_released()
    assert store.content(kept.files[0][1]) == b"x"
    store.close()


def test_nobody_can_write_to_a_content_by_accident(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    kept = put(store, {"a": b"x"})
    place = store.place(kept.files[0][1])
    assert place.stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    with pytest.raises(TypeError):
        store.content(kept.files[0][1])[0] = 1
    store.close()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"", b"1", b"22", b"333"])), max_size=12))
def test_what_is_kept_is_what_living_values_name(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]]
) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"), "sandbox")
    living: dict[str, KeptFiles] = {}
    for slot, data in steps:
        if data:
            living[slot] = put(store, {"f": data, "g": data[:1]})
        else:
            living.pop(slot, None)
        gc.collect(0)
        store.drop_released()
        assert contents(store.folder) == {name for kept in living.values() for _, name, _ in kept.files}
    store.close()
    assert not contents(store.folder)


def test_two_stores_share_contents_and_each_keeps_its_own(tmp_path: Path) -> None:
    one, two = (FileStore(tmp_path / "store", "sandbox") for _ in range(2))
    kept = put(one, {"a": b"shared", "b": b"one's"})
    taken = two.keep(pickle.loads(pickle.dumps(kept)).files[:1])
    one.close()
    assert contents(tmp_path / "store") == {name_of(b"shared")}
    assert two.content(taken.files[0][1]) == b"shared"
    two.close()
    assert not contents(tmp_path / "store")
    assert not list((tmp_path / "store" / "owners").iterdir())


KILLED = """
import sys, time
from pathlib import Path
from coterie.backends.sandboxes.kept_files import FileStore
store = FileStore(Path(sys.argv[1]), "sandbox")
writer = store.writer(); writer.write(b"left by a killed process"); name, size = writer.commit()
kept = store.keep([("a", name, size)])
half = store.writer(); half.write(b"half")
print(name, flush=True)
time.sleep(60)
"""


def test_the_next_store_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    living = FileStore(
        tmp_path / "store", "sandbox"
    )  # of another process: nothing of the living one is removed
    assert living.content(name) == b"left by a killed process"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    mine = put(living, {"b": b"mine"})
    later = FileStore(tmp_path / "store", "sandbox")
    assert contents(tmp_path / "store") == {name_of(b"mine")}
    assert len(list((tmp_path / "store" / "owners").iterdir())) == 2
    assert living.content(mine.files[0][1]) == b"mine"
    living.close()
    later.close()


def test_a_forked_process_removes_nothing_of_its_parent(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    kept = put(store, {"a": b"x"})
    child = os.fork()
    if child == 0:
        store.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert store.content(kept.files[0][1]) == b"x"
    store.close()


def test_a_full_disk_is_an_error_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox.keep_files_in")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        writer = store.writer()
        with pytest.raises(WriteError) as caught:
            writer.write(bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    text = str(caught.value)
    assert "sandbox.keep_files_in" in text and str(store.folder) in text and "File too large" in text
    assert not names_held(store.folder) and not contents(store.folder)
    store.close()


def test_a_folder_that_cannot_be_made_is_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="can't be kept in"):
        FileStore(tmp_path / "file" / "store", "sandbox.keep_files_in")


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=40), max_size=5),
    st.lists(st.integers(1, 30), max_size=40),
    st.booleans(),
)
def test_an_answer_is_the_same_however_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], sizes: list[int], keep: bool
) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"), "sandbox")
    header = json.dumps({"exit": 0, "files": [[path, len(data)] for path, data in files.items()]}).encode()
    sent = struct.pack("<Q", len(header)) + header + b"".join(files.values())
    answer, at = CellAnswer(store.writer if keep else None), 0
    for size in [*sizes, len(sent)]:
        if part := sent[at : at + size]:
            answer.feed(part)
        at += size
    header_back, whole, kept = answer.result()
    assert header_back["exit"] == 0
    assert whole == ({} if keep else files)
    assert kept == ({path: (name_of(data), len(data)) for path, data in files.items()} if keep else {})
    assert all(store.content(name_of(data)) == data for data in files.values() if keep)
    store.release(answer.committed())
    assert answer.committed() == []
    store.drop_released()
    assert not contents(store.folder)
    store.close()


def test_an_answer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", "sandbox")
    header = json.dumps({"files": [["a", 3], ["b", 9]]}).encode()
    answer = CellAnswer(store.writer)
    answer.feed(struct.pack("<Q", len(header)) + header + b"abchalf")
    assert answer.result() == ({}, {}, {}), "half an answer is none"
    answer.drop()
    store.release(answer.committed())
    store.drop_released()
    assert not contents(store.folder) and not names_held(store.folder)
    store.close()


def test_opening_many_stores_at_once_is_safe(tmp_path: Path) -> None:
    code = KILLED.replace("time.sleep(60)", "store.close()")
    started = time.monotonic()
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0], time.monotonic() - started
    assert not contents(tmp_path / "store")


def test_a_value_that_lacks_a_content_holds_none_of_the_others(tmp_path: Path) -> None:
    one, two = (FileStore(tmp_path / "store", "sandbox") for _ in range(2))
    kept = put(one, {"a": b"x"})
    with pytest.raises(SystemFault, match="has no content"):
        two.keep([*kept.files, ("b", name_of(b"gone"), 4)])
    two.drop_released()
    assert names_held(one.folder) == [name_of(b"x")]
    assert one.content(name_of(b"x")) == b"x"
    one.close()
    two.close()

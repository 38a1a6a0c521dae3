"""Rollout files that are no files, or hold far more than their size says."""

from __future__ import annotations

import gzip
import json
import os
import socket
import tracemalloc

import pytest

from coterie.api import rollout_lines
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import RunFolderError

ROW = json.dumps({"kind": "step", "format": 3, "step": 1}).encode() + b"\n"


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "folder", "socket"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = tmp_path / "step-1"
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link to a device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            listening.bind(path.name)
        with pytest.raises(RunFolderError, match="is no regular file"):
            read_rollouts(path)


def test_rows_are_read_in_pieces_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_lines, "PIECE", 7)
    path = tmp_path / "step-1"
    for text in (ROW * 3, (ROW * 3).rstrip(), gzip.compress(ROW) + gzip.compress(ROW * 2), b""):
        path.write_bytes(text)
        assert len(read_rollouts(path)) == (3 if text else 0)
        path.write_bytes(gzip.compress(text))
        if text[:1] == b"{":
            assert read_rollouts(path) == 3 * [{"kind": "step", "format": 3, "step": 1}]


@pytest.mark.parametrize("text", [ROW + b"\n" + ROW, ROW + b"[1]\n", b"{}\n", b'{"kind": \n', b"\xff\xfe\n"])
def test_a_line_that_is_no_row_is_damage(text, tmp_path):
    (tmp_path / "step-1").write_bytes(gzip.compress(text))
    with pytest.raises(RunFolderError, match="is damaged"):
        read_rollouts(tmp_path / "step-1")


def test_a_file_that_is_cut_or_changed_is_damaged(tmp_path):
    whole = gzip.compress(ROW * 50)
    for text in (whole[:-9], whole[:-6] + b"abcdef", whole + b"more"):
        (tmp_path / "step-1").write_bytes(text)
        with pytest.raises(RunFolderError, match="is damaged"):
            read_rollouts(tmp_path / "step-1")


@pytest.mark.parametrize("start", [b"", b'{"kind": '])
def test_a_small_file_that_holds_much_takes_little_memory(start, tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_lines, "LONGEST", 1 << 22)
    path = tmp_path / "step-1"
    path.write_bytes(gzip.compress(start + b" " * (1 << 26), 1))
    tracemalloc.start()
    try:
        with pytest.raises(RunFolderError, match="is damaged"):
            read_rollouts(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()

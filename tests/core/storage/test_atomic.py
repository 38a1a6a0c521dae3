"""Failures of the disk are told from other errors."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError, WriteError
from coterie.core.storage.atomic import write_atomic, written

FULL = OSError(28, "No space left on device")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SPACE, UNKNOWN = "free space on the disk, then", "free space on the disk or fix the permissions, then"


@pytest.mark.parametrize(("error", "why", "fix"), [
    (FULL, "No space left on device", SPACE),
    (PermissionError(13, "Permission denied"), "Permission denied", "fix the permissions, or"),
    (FileNotFoundError(2, "No such file or directory", "a/b"), "No such file", "make its folder"),
    (OSError(30, "Read-only file system"), "Read-only", "use a disk that can be written"),
    (OSError(36, "File name too long"), "too long", "choose a shorter name"),
    (IsADirectoryError(21, "Is a directory"), "Is a directory", "name another path"),
    (caused(ValueError("can't pickle"), FULL), "No space left on device", SPACE),
    (WriteError("a file", why="full"), "full", UNKNOWN),
    (RuntimeError("[enforce fail at cc:603] . unexpected pos 64"), "unexpected pos", UNKNOWN),
    (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "failed", UNKNOWN),
    (Exception("Error while serializing: I/O error: Disk quota exceeded (os error 122)"), "quota", SPACE),
])  # fmt: skip
def test_a_failure_of_the_disk_is_the_users_with_a_fix_of_its_own(error, why, fix):
    with pytest.raises(WriteError, match="the weights can't be written") as caught, written("the weights"):
        raise error
    assert why in str(caught.value) and fix in caught.value.fix
    assert ("free space" in caught.value.fix) == (fix in (SPACE, UNKNOWN))


def test_a_file_in_a_missing_folder_asks_for_the_folder_and_for_no_space(tmp_path):
    with pytest.raises(WriteError, match="make its folder") as caught:
        write_atomic(tmp_path / "absent" / "table.json", "{}")
    assert "free space" not in str(caught.value)


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: out of memory"), TypeError("no JSON"), MemoryError(),
    caused(ConfigError("the model has no export", path="trainer"), FULL),
])  # fmt: skip
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, written("the weights"):
        raise error
    assert caught.value is error

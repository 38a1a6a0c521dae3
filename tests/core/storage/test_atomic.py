"""Failures of the disk are told from other errors."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError, WriteError
from coterie.core.storage.atomic import written

FULL = OSError(28, "No space left on device")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("error", "why"), [
    (FULL, "No space left on device"),
    (PermissionError(13, "Permission denied"), "Permission denied"),
    (caused(ValueError("can't pickle"), FULL), "No space left on device"),
    (WriteError("a file", why="full"), "full"),
    (RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0"), "unexpected pos"),
    (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "write failed"),
    (Exception("Error while serializing: I/O error: Disk quota exceeded (os error 122)"), "os error 122"),
])  # fmt: skip
def test_a_failure_of_the_disk_is_the_users(error, why):
    with pytest.raises(WriteError, match="the weights can't be written") as caught, written("the weights"):
        raise error
    assert why in str(caught.value) and "free space" in caught.value.fix


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: out of memory"), TypeError("no JSON"), MemoryError(),
    caused(ConfigError("the model has no export", path="trainer"), FULL),
])  # fmt: skip
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, written("the weights"):
        raise error
    assert caught.value is error

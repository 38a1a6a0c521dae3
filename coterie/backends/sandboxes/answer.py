"""The answer of a cell as it arrives: 8 bytes of length, a JSON header, then the files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from coterie.backends.sandboxes.kept_files import ContentWriter

NewContent = Callable[[], ContentWriter]


class CellAnswer:
    """Parses an answer part by part, so that a file is never in memory as a whole where it is to be kept.

    Args:
        new: makes the content of the next file; None: files are returned as bytes.
    """

    def __init__(self, new: NewContent | None = None) -> None:
        self._new = new
        self._begun = bytearray()
        """What was received of the length and the header; of a file that isn't kept, its bytes."""
        self._header: dict[str, Any] | None = None
        self._next: list[tuple[str, int]] = []
        """Files that are to come, the next one last."""
        self._writer: ContentWriter | None = None
        self._left = 0
        """Bytes of the present file that are to come."""
        self._files: dict[str, bytes] = {}
        self._kept: dict[str, tuple[str, int]] = {}
        self._committed: list[str] = []
        self.size = 0
        """Bytes that were received."""

    def feed(self, part: bytes) -> None:
        """Take the next part.

        Raises:
            WriteError: a file can't be kept.
        """
        self.size += len(part)
        if self._header is None:
            self._begun += part
            if len(self._begun) < 8:
                return
            (length,) = struct.unpack("<Q", self._begun[:8])
            if len(self._begun) < 8 + length:
                return
            header: dict[str, Any] = json.loads(self._begun[8 : 8 + length])
            part = bytes(self._begun[8 + length :])
            self._header, self._next = header, [(path, size) for path, size in reversed(header["files"])]
            self._begun.clear()
            self._begin()
        view = memoryview(part)
        while view and self._next:
            taken, view = view[: self._left], view[self._left :]
            if self._writer is not None:
                self._writer.write(taken)
            else:
                self._begun += taken
            self._left -= len(taken)
            if not self._left:
                self._end_file()

    def result(self) -> tuple[dict[str, Any], dict[str, bytes], dict[str, tuple[str, int]]]:
        """Header, files as bytes, and files that were kept, as sha256 and size; empty if incomplete."""
        if self._header is None or self._next:
            return {}, {}, {}
        return self._header, self._files, self._kept

    def committed(self) -> list[str]:
        """The contents that were committed since the last call, which are to be released."""
        names, self._committed = self._committed, []
        return names

    def drop(self) -> None:
        """Remove the file in the making."""
        if self._writer is not None:
            self._writer.drop()
            self._writer = None

    def _begin(self) -> None:
        """Begin the next file; empty ones end at once."""
        while self._next:
            self._left = self._next[-1][1]
            self._writer = self._new() if self._new is not None else None
            if self._left:
                return
            self._end_file(follow=False)

    def _end_file(self, *, follow: bool = True) -> None:
        path, _ = self._next.pop()
        if self._writer is not None:
            self._kept[path] = self._writer.commit()
            self._committed.append(self._kept[path][0])
            self._writer = None
        else:
            self._files[path] = bytes(self._begun)
            self._begun.clear()
        if follow:
            self._begin()

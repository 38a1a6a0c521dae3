"""The host's side of a run: writes to a cell and reads from it, concurrently and with limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coterie.backends.sandboxes.answer import CellAnswer
from coterie.backends.sandboxes.kept_files import FileStore
from coterie.backends.sandboxes.programs import FLOOD
from coterie.core.errors import SystemFault, WriteError
from coterie.core.protocols import Limits, Program, Ran, Status
from coterie.discovery.members import KeptFiles

REPORT = 1 << 20
"""Most bytes kept of a report, from its beginning."""
_CHUNK = 1 << 16
_SOON = 0.02
"""Seconds before the outputs of a program are read while it runs: most programs have ended by then."""
_SMALL = 1 << 15
"""Bytes that an empty socket takes at once."""
_HEADER = 4 << 20
_NOT_BROUGHT = {
    "left": "no room to bring back ",
    "links": "no plain file, so not brought back: ",
    "closed": "not readable, or of a name that is no UTF-8, so not brought back: ",
}
"""Of files that match a glob, by the cell's reason."""


class Drain:
    """Reads a pipe while it fills and keeps its end (or its beginning), so that no writer is blocked."""

    def __init__(self, keep: int, *, end: bool = True, flooded: Callable[[], None] | None = None) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._keep, self._end, self._flooded = keep, end, flooded
        self._held = bytearray()
        self._followed = False
        self.count = 0
        """Bytes that were read."""

    def __enter__(self) -> Drain:
        return self

    def __exit__(self, *_: object) -> None:
        """Close both ends, before `start`."""
        os.close(self._ours)
        os.close(self.theirs)

    def start(self) -> None:
        """Close this process's copy of the writing end, which the worker has."""
        os.close(self.theirs)

    def follow(self) -> None:
        """Read from now on whenever there is something: a pipe holds what a short program writes."""
        self._followed = True
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> bool:
        """Read once; False if the pipe is empty or closed."""
        try:
            data = os.read(self._ours, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._leave()
            return False
        self.count += len(data)
        if self._end:
            self._held += data
            if len(self._held) > self._keep + (1 << 20):
                del self._held[: -self._keep]
        elif len(self._held) < self._keep:
            self._held += data
        if self._flooded is not None and self.count > FLOOD:
            self._flooded()
            self._flooded = None
        return True

    def finish(self) -> bytes:
        """Read the rest of the pipe, after all writers have ended; the kept part of the output."""
        while self.count <= 2 * FLOOD and self._read():
            pass
        self.close()
        return bytes(self._held[-self._keep :] if self._end else self._held[: self._keep])

    def _leave(self) -> None:
        if self._followed:
            self._followed = False
            asyncio.get_running_loop().remove_reader(self._ours)

    def close(self) -> None:
        self._leave()
        os.close(self._ours)

    @property
    def dropped(self) -> int:
        return max(0, self.count - self._keep)


class Keeping:
    """What is kept of the files that a program leaves.

    Args:
        store: has the contents.
        known: the kept files that the program is given.
        inputs: paths of its other files, which are not brought back.
        room: most bytes of what is brought back.
    """

    def __init__(self, store: FileStore, known: KeptFiles, inputs: Iterable[str], room: int) -> None:
        self.store = store
        self._known = {path: (name, size) for path, name, size in known.files}
        self._inputs, self._room = list(inputs), room
        self.files = KeptFiles()
        """What the program left, after its end."""

    def header(self) -> dict[str, Any]:
        """What the cell is told."""
        return {"known": self._known, "inputs": self._inputs, "room": self._room}

    def take(self, new: Mapping[str, tuple[str, int]], same: Iterable[str] | None) -> None:
        """Keep the files that a program changed, and those that it left as they were.

        Args:
            same: the paths of the latter; None: the cell did not answer, so all stay as they were.
        """
        left = {**{path: self._known[path] for path in (self._known if same is None else same)}, **new}
        self.files = self.store.keep((path, name, size) for path, (name, size) in left.items())


class CellSide:
    """One program of a job: its descriptors, its input and its result."""

    def __init__(
        self,
        program: Program,
        limits: Limits,
        *,
        link: socket.socket | None = None,
        reports: bool = False,
        keeping: Keeping | None = None,
        entry: str = "",
    ) -> None:
        self.limits, self._keeping, self._entry = limits, keeping, entry
        self._collects, self._more = bool(program.collect), bool(program.argv or program.files)
        self._payload = payload(program, {} if keeping is None else keeping.header())
        self._code, self._input = (len(part) for part in self._payload[:2])
        self._answer = CellAnswer(None if keeping is None else keeping.store.writer)
        self._flooded = False
        self._link = link
        keep = limits.output_kb << 10
        with contextlib.ExitStack() as made:  # closes what there is, if a later descriptor can't be had
            self._channel, self._theirs = (made.enter_context(end) for end in socket.socketpair())
            self._channel.setblocking(False)
            self._out = made.enter_context(Drain(keep, flooded=self._flood))
            self._err = made.enter_context(Drain(keep, flooded=self._flood))
            self._report = Drain(REPORT, end=False, flooded=self._flood) if reports else None
            made.pop_all()
        self._stop: Callable[[], None] = lambda: None
        self._talk: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._answers, self._started = True, False
        self.reported = b""
        """The program's report, after `finish`."""

    def descriptors(self) -> list[int]:
        """The program's descriptors, in the order of cell.main."""
        fds = [self._theirs.fileno(), self._out.theirs, self._err.theirs]
        if self._link is not None:
            fds.append(self._link.fileno())
        return [*fds, self._report.theirs] if self._report is not None else fds

    def order(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "fds": len(self.descriptors()),
            "cpu": limits.cpu_seconds,
            "memory_mb": limits.memory_mb,
            "disk_mb": limits.disk_mb,
            "processes": limits.processes,
            "open_files": limits.open_files,
            "code": self._code,
            "input": self._input,
            "more": self._more,
            "collects": self._collects,
            "entry": self._entry,
        }

    def start(self, stop: Callable[[], None], *, answers: bool) -> None:
        """Close this side's copies of the descriptors, which the worker has, and start to write and read.

        Args:
            answers: whether a cell answers over the channel in any case, or only with files and faults.
        """
        self._stop, self._answers, self._started = stop, answers or self._collects, True
        self._theirs.close()
        if self._link is not None:
            self._link.close()
        for drain in self._drains():
            drain.start()
        self._later = asyncio.get_running_loop().call_later(_SOON, self._follow)
        if not self._answers and self._sent_at_once():
            return
        self._talk = asyncio.ensure_future(self._converse())

    def _follow(self) -> None:
        for drain in self._drains():
            drain.follow()

    def _sent_at_once(self) -> bool:
        """Send a small program without waiting."""
        data = b"".join(self._payload)
        if len(data) > _SMALL:
            return False
        with contextlib.suppress(ConnectionError):
            sent = self._channel.send(data)
            if sent < len(data):
                self._payload = [data[sent:]]
                return False
        self._payload.clear()
        return True

    def _fault(self) -> None:
        """Take the answer of a run that could not begin; others have none."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while part := self._channel.recv(_CHUNK):
                self._answer.feed(part)

    def _drains(self) -> list[Drain]:
        return [drain for drain in (self._out, self._err, self._report) if drain is not None]

    def _flood(self) -> None:
        self._flooded = True
        self._stop()

    async def _converse(self) -> None:
        """Send the program, and take the answer, which is empty if the cell ended before it answered."""
        loop = asyncio.get_running_loop()
        # The worker reports a cell that was killed during the transfer.
        with contextlib.suppress(ConnectionError):
            for part in self._payload:
                await loop.sock_sendall(self._channel, part)
            self._channel.shutdown(socket.SHUT_WR)
        self._payload.clear()
        room = (self.limits.disk_mb << 20) + _HEADER
        with contextlib.suppress(ConnectionError):
            while self._answer.size <= room and (part := await loop.sock_recv(self._channel, 1 << 18)):
                try:
                    self._answer.feed(part)
                except WriteError:
                    self._channel.shutdown(socket.SHUT_RDWR)  # or the cell writes on until its wall time
                    raise

    async def finish(self, ended: dict[str, Any]) -> Ran:
        """The result of the program. `ended`: the worker's report on the cell.

        Raises SystemFault if the cell could not be set up.
        """
        assert self._later is not None, "finish comes after start"
        self._later.cancel()
        if self._talk is not None:
            await self._talk
        else:
            self._fault()
        self._channel.close()
        outputs = [drain.finish() for drain in self._drains()]
        self.reported = outputs[2] if self._report is not None else b""
        header, files, kept = self._answer.result()
        if "cpu" in ended and "fault" not in header:  # with namespaces the worker reports on the program
            header = {**header, **ended}
        elif "fault" in ended:
            header = ended
        if "fault" in header:
            raise SystemFault(f"the sandbox could not run a program: {header['fault']}")
        status, reason = self._status(header, ended)
        cpu = header.get("cpu")  # none if the cell could not report
        odd = [f"{why}{', '.join(header[name])}" for name, why in _NOT_BROUGHT.items() if header.get(name)]
        self._answer.drop()
        if self._keeping is not None:
            try:
                self._keeping.take(kept, header.get("same") if self._collects else ())
            finally:
                self._keeping.store.release(self._answer.committed())
        return Ran(
            status=status,
            exit_code=header.get("exit") if status in ("finished", "failed") else None,
            stdout=outputs[0].decode("utf-8", "replace"),
            stderr=outputs[1].decode("utf-8", "replace"),
            dropped=self._out.dropped + self._err.dropped,
            cpu_seconds=None if cpu is None else round(cpu, 4),
            wall_seconds=round(ended["wall"], 4),
            files=files,
            reason="; ".join(filter(None, [reason, *odd])),
        )

    def _status(self, header: dict[str, Any], ended: dict[str, Any]) -> tuple[Status, str]:
        limits = self.limits
        if self._flooded:
            return "killed", f"it wrote more than {FLOOD >> 20} MiB"
        if header.get("over") or (header.get("cpu") or 0.0) > limits.cpu_seconds:
            return "timeout", f"more than {limits.cpu_seconds:g} s of CPU time"
        if header.get("exit") is not None:
            return ("finished", "") if header["exit"] == 0 else ("failed", f"exit code {header['exit']}")
        if header.get("signal") and not header.get("stopped"):
            return "killed", f"signal {header['signal']}"
        if ended["why"] == "wall":
            return "timeout", f"more than {limits.wall_seconds:g} s of wall time"
        if ended["why"] == "with":
            return "killed", "its other side ended"
        return "killed", f"its first process ended by signal {ended['signal']}"

    def abandon(self) -> None:
        """Close everything, since the worker is lost or the job was cancelled. Harmless after `finish`."""
        self._answer.drop()
        if self._keeping is not None:
            self._keeping.store.release(self._answer.committed())
        if self._channel.fileno() == -1:
            return
        if not self._started:
            self._theirs.close()
            if self._link is not None:
                self._link.close()
            for drain in self._drains():
                os.close(drain.theirs)
        if self._later is not None:
            self._later.cancel()
        if self._talk is not None:
            self._talk.cancel()
        for drain in self._drains():
            drain.close()
        self._channel.close()


def payload(program: Program, more: dict[str, Any]) -> list[bytes | memoryview]:
    """A checked program as it is read in the sandbox, in parts: code and stdin, whose sizes are in the order.

    With arguments or files 8 bytes of length, a JSON header and the files follow. Where files are to be
    brought back another length and header follow, of the collection.

    Args:
        more: of the header of the collection, for files that are kept.
    """
    parts: list[bytes | memoryview] = [
        program.code.encode("utf-8", "surrogatepass"),
        program.stdin.encode("utf-8", "surrogatepass"),
    ]
    if program.argv or program.files:
        files = {f"work/{path}": memoryview(data).cast("B") for path, data in program.files.items()}
        sizes = [[path, len(data)] for path, data in files.items()]
        parts += [_framed({"argv": list(program.argv), "files": sizes}), *files.values()]
    if program.collect:
        parts.append(_framed({"collect": list(program.collect), **more}))
    return parts


def _framed(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text

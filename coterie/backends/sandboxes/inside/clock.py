"""The CPU time of a program with all its processes, while they run.

A cell reads three clocks:

- wait4(2)'s sum, of the children that the cell has waited for. It is exact, and complete once all have ended.
- /proc, of the living descendants and of the children that these have waited for. The cell reads the host's
  /proc through a descriptor. Each process is read before its children, so no time is counted twice, and the
  sum is never above the truth.
- With a pid namespace, the clock of each process id. It is read once the program has set the action of
  SIGCHLD, since the kernel adds the time of a child whose parent ignores that signal to no other process. The
  kernel asks before each fork too: a process may end before it is seen, and a thread's id looks the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import time

from . import kernel, seccomp, spaces

_WHOLE_PROCESS = 2  # CPUCLOCK_SCHED of all threads: clock_getcpuclockid(3)
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_FIRST_SCAN = 0.2
"""Seconds of a program before the first scan: most programs have ended by then."""
_SHARE = 20
"""A scan comes at most as often as this many times its duration."""
_FULL_SCAN = 1.0
"""Seconds between scans that read all processes again: another process may have got a process id."""
WINDOW = 0.005
"""Seconds between two samples of a program that may hide its children's time."""
_LATE = 0.02
"""Most seconds charged for one process after its last sample: a busy machine delays the samples."""
TRIES = 5
"""Samples in which a new id has to show a process: the id comes before the process's clock."""
TOLERANCE = 2.0
"""The upper bound of the CPU time may be this many times the limit; the measured time may not exceed it."""
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1  # SECCOMP_IOCTL_NOTIF_*, <linux/seccomp.h>


def view() -> int:
    """A descriptor of this host's /proc; -1: there is none."""
    try:
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1


def can_scan(view: int) -> bool:
    """Whether cells can read their descendants in `view`, a descriptor of /proc; tried as a cell does."""
    return spaces.succeeds(lambda: _sees_a_child(view))


def _sees_a_child(view: int) -> bool:
    kernel.drop_capabilities()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        ours = int(os.readlink("self", dir_fd=view))
        stats = (_stat(view, name) for name in os.listdir(view) if name.isdigit())
        return any(stat is not None and stat[0] == ours for stat in stats)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _stat(view: int, name: str) -> tuple[int, int, int] | None:
    """Parent, clock ticks of the process, and of the children that it has waited for; None: it is gone."""
    fields = kernel.stat(name, view)
    if not fields:
        return None
    return int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


class CpuClock:
    """The CPU clock of one program, read by its cell."""

    def __init__(self, pid: int, view: int, load: int) -> None:
        """Measure from now on.

        Args:
            pid: the program's first process.
            view: a descriptor of the host's /proc; -1: children count once they are waited for.
            load: with a pid namespace of the cell's own, a descriptor of /proc/loadavg; else -1.
        """
        self._pid, self._view, self._load = pid, view, load
        self._latest = 0.0
        self._began = self._scanned = time.monotonic()
        self._cost = 0.0
        self._others = 0.0
        self._foreign: set[str] = set()
        self._emptied = 0.0
        self._samples: ProcessSamples | None = None
        self._before = kernel.children()

    def used(self) -> float:
        """Seconds of all processes so far, never above the truth."""
        now = time.monotonic()
        due = now - self._scanned > _SHARE * self._cost and now - self._began > _FIRST_SCAN
        if due and self._view >= 0 and self._has_forked():
            self._others = self._scan()
            self._cost = time.monotonic() - now
            self._scanned = time.monotonic()
        measured = self._own() + max(self._others, self._ended())
        self._latest = max(measured, self._sampled().least) if self._samples else measured
        return self._latest

    def exceeds(self, limit: float) -> bool:
        """Whether the program has used more than `limit` seconds, or may have used far more."""
        return self.used() > limit or self.bound() > TOLERANCE * limit

    def bound(self) -> float:
        """Seconds that can't be exceeded so far; 0 as long as `used` misses nothing."""
        return self._samples.most if self._samples else 0.0

    def pause(self, limit: float) -> float:
        """Seconds until this clock should be read again."""
        # With several threads CPU time passes faster than wall time, so the wait is short.
        return WINDOW if self._samples else min(0.25, max(0.01, limit - self._latest))

    def final(self, over: bool, limit: float) -> float | None:
        """Seconds of all processes, after all have ended and were waited for. None if they aren't known: the
        program has hidden the time of children, and is `over` its limit (seconds) for what it may have used.
        """
        if self._samples is None:
            return self._ended()
        used = max(self._ended(), self._sampled().least)
        return None if over and used <= limit else used

    def may_hide(self) -> None:
        """From now on, sample each process: the program sets the action of SIGCHLD. Needs a namespace."""
        if self._samples is None:
            self._samples = ProcessSamples(self._load, self.used(), self._pid)

    def forks(self) -> None:
        """Count a process that the program is about to make."""
        if self._samples is not None:
            self._samples.expected += 1

    def _ended(self) -> float:
        """Seconds of the processes that this one has waited for since the program began."""
        return kernel.children() - self._before

    def _own(self) -> float:
        return time.clock_gettime((~self._pid << 3) | _WHOLE_PROCESS)

    def _sampled(self) -> ProcessSamples:
        assert self._samples is not None
        self._samples.take()
        return self._samples

    def _has_forked(self) -> bool:
        """Whether the pid namespace has had more processes than the cell and the program."""
        return self._load < 0 or last_pid(self._load) != self._pid

    def _scan(self) -> float:
        """Seconds of all processes but the program's first one."""
        now = time.monotonic()
        if now - self._emptied > max(_FULL_SCAN, 2 * _SHARE * self._cost):
            self._foreign.clear()
            self._emptied = now
        try:
            ours = os.readlink("self", dir_fd=self._view)
            names = [name for name in os.listdir(self._view) if name.isdigit()]
        except OSError:
            return self._others
        by_parent: dict[str, list[str]] = {}
        for name in names:
            if name not in self._foreign and name != ours and (stat := _stat(self._view, name)):
                by_parent.setdefault(str(stat[0]), []).append(name)
        tree, ticks, seconds = [ours], 0, self._ended()
        for parent in tree:
            for name in by_parent.pop(parent, ()):
                if stat := _stat(self._view, name):  # again: after its parent's
                    ticks += stat[1] + stat[2]
                tree.append(name)
        self._foreign.update(name for others in by_parent.values() for name in others)
        return seconds + ticks * _TICK - self._own()


class ProcessSamples:
    """Bounds of the CPU time of a pid namespace, from samples of each process id's clock."""

    def __init__(self, load: int, base: float, first: int = 2) -> None:
        """Sample from now on. `first`: the oldest id, unless ids have started anew since."""
        self._load = load
        self.least = self.most = base
        self._clocks: dict[int, float] = {}
        self._cpus = len(os.sched_getaffinity(0))
        self._last = last_pid(load)
        self._at = time.monotonic()
        self._unseen: dict[int, tuple[int, float]] = {}  # id -> tries to see a process, longest window
        self.expected = 0
        """Processes that were made and have not been seen; other ids that come and go are threads."""
        for pid in range(first if first <= self._last else 2, self._last + 1):
            with contextlib.suppress(OSError):
                self._clocks[pid] = time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)

    def take(self) -> None:
        """Sample all processes; the time of those that ended since the last sample is bounded by its age."""
        last, now = last_pid(self._load), time.monotonic()
        window, self._at = now - self._at, now
        fresh = (
            range(self._last + 1, last + 1) if last >= self._last else range(2, last + 1)
        )  # ids start anew
        self._last = last
        ended = unseen = 0
        grown = old = 0.0
        self._unseen.update((pid, (0, 0.0)) for pid in fresh if pid not in self._clocks)
        for pid in {*self._clocks, *self._unseen}:
            before = self._clocks.get(pid)
            try:
                clock = time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
            except OSError:  # it has ended, isn't ready yet, or is a thread
                if before is not None:
                    del self._clocks[pid]
                    ended += 1
                    continue
                tries, longest = self._unseen.pop(pid)
                if tries < TRIES:
                    self._unseen[pid] = tries + 1, max(longest, window)
                else:
                    unseen, old = unseen + 1, max(old, longest)
            else:
                self.expected -= self._unseen.pop(pid, None) is not None
                grown += clock - before if before is not None and clock >= before else clock
                self._clocks[pid] = clock
        unseen = min(unseen, max(0, self.expected))  # the others are threads: their time is their process's
        self.expected -= unseen
        self.least += grown
        self.most += grown + self._bound(ended, window) + self._bound(unseen, old)

    def _bound(self, count: int, window: float) -> float:
        """Most seconds of this many processes that each ended within `window` seconds of a sample."""
        return min(count * min(window, _LATE), self._cpus * window)


def last_pid(load: int) -> int:
    """The newest process id of the reader's pid namespace: the last field of /proc/loadavg."""
    return int(os.pread(load, 128, 0).split()[-1])


def answer(listener: int, measured: CpuClock) -> None:
    """Let a waiting call continue, once `measured` counts the new process or samples all processes."""
    request = bytearray(80)  # struct seccomp_notif: the id of the call first, its number at 16
    with contextlib.suppress(OSError):  # its process may have ended
        fcntl.ioctl(listener, _RECEIVE, request)
        if seccomp.sets_an_action(*struct.unpack_from("=i", request, 16)):
            measured.may_hide()
        else:
            measured.forks()
        fcntl.ioctl(
            listener,
            _SEND,
            bytearray(struct.pack("=QqiI", *struct.unpack_from("=Q", request), 0, 0, _CONTINUE)),
        )

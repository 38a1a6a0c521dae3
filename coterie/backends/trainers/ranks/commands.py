"""Commands: rank 0 runs a method on all ranks, and the others serve."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from coterie.backends.cluster.wire import compact, own_code, sent_error, unwrapped, use_code
from coterie.backends.trainers.ranks.group import ALIVE, MOST_LAG, STOP, Rank, RankGroup, RankLost
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins.origin import Origin, origin_of

_IMPORT, _MAKE, _DROP = "import", "make", "drop"
"""Commands of this module; all others are methods of the object that `_MAKE` made."""
LATE = 5.0
"""Seconds for which rank 0 waits for the errors of other ranks, once it has one."""


class Commands:
    """Runs methods of an object on all ranks; rank 0 has them. In a world of one rank they are plain calls.

    Args:
        target: rank 0's object.
    """

    def __init__(self, target: Any) -> None:
        self._target = target

    def run(self, method: str, *arguments: Any, others: tuple[Any, ...] | None = None) -> list[Any]:
        """Run a method on all ranks.

        Args:
            others: the arguments of the other ranks, where they differ from rank 0's.

        Returns:
            the results by rank.
        """
        return [getattr(self._target, method)(*arguments)]

    def close(self) -> None:
        """End the other ranks."""


class RankCommands(Commands):
    """The commands of several ranks. An exception on one ends all others: their states differ after it.

    Args:
        group: the other ranks.
    """

    def __init__(self, target: Any, group: RankGroup) -> None:
        super().__init__(target)
        self.group = group
        self._running = threading.Lock()
        self._failed = False
        self.store: Any = None
        """Rank 0's store, where the ranks meet; it lives as long as they do."""

    def make(self, factory: Any, *arguments: Any) -> None:
        """Make the object of every other rank: `factory(*arguments)`.

        Raises:
            Exception: what a rank raised.
        """
        with self._running:
            self._send([command(_IMPORT, (own_code(),))] * len(self.group.ranks))
            self._send([command(_MAKE, (factory, *arguments))] * len(self.group.ranks))
            try:
                for _ in range(2):
                    self._results()
            except BaseException:
                self._end()
                raise

    def run(self, method: str, *arguments: Any, others: tuple[Any, ...] | None = None) -> list[Any]:
        """Run a method on all ranks; returns the results by rank.

        Raises:
            RankLost: a rank ended.
            Exception: what a rank raised; the first rank's whose error is not that another rank is gone.
        """
        data = command(method, arguments if others is None else others)
        return self._run(method, arguments, [data] * len(self.group.ranks))

    def run_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`run` with arguments of its own for each rank, rank 0's first."""
        return self._run(method, arguments[0], [command(method, each) for each in arguments[1:]])

    def _run(self, method: str, arguments: tuple[Any, ...], data: Sequence[bytes]) -> list[Any]:
        with self._running:
            if self._failed:
                raise RankLost(
                    "the ranks have ended", path="trainer.ranks", why="an error ended them before this call"
                )
            try:
                self._send(data)
                try:
                    result = getattr(self._target, method)(*arguments)
                except UserError:
                    raise
                except RuntimeError as error:  # most often of a collective that a rank has left
                    raise self._cause(error) from None
                return [result, *self._results()]
            except BaseException:
                self._end()
                raise

    def _send(self, data: Sequence[bytes]) -> None:
        for rank, each in zip(self.group.ranks, data, strict=True):
            self.group.send(rank, each)

    def _results(self) -> list[Any]:
        results: list[Any] = []
        errors: list[Exception] = []
        for rank in self.group.ranks:
            try:
                results.append(self._result(rank, MOST_LAG if not errors else LATE))
            except Exception as error:
                errors.append(error)
        if errors:
            raise _first_cause(errors)
        return results

    def _result(self, rank: Rank, seconds: float) -> Any:
        return unwrapped(pickle.loads(self.group.receive(rank, seconds)))

    def _cause(self, error: Exception) -> BaseException:
        """The error behind rank 0's, where another rank has it."""
        errors: list[Exception] = []
        for rank in self.group.ranks:
            try:
                self._result(rank, LATE)
            except RankLost as lost:
                if rank.ended:
                    errors.append(lost)
            except Exception as theirs:
                errors.append(theirs)
        return _first_cause([*errors, error])

    def _end(self) -> None:
        self._failed = True
        self.group.close(at_once=True)

    def close(self) -> None:
        """End the other ranks; ranks that another program started serve on. Waits for no running command."""
        idle = self._running.acquire(timeout=0.5)
        try:
            if self._failed or not idle:
                self._end()
            elif self.group.lasting:
                self._send([command(_DROP, ())] * len(self.group.ranks))
                self._results()
            else:
                self.group.close()
            self._failed = True
        finally:
            if idle:
                self._running.release()


def command(method: str, arguments: tuple[Any, ...]) -> bytes:
    """A command for other ranks.

    Raises:
        ConfigError: an argument can't be pickled; a plugin among the arguments is named.
    """
    try:
        return compact((method, arguments))
    except Exception as error:  # what is pickled raises what it likes
        origin = _unpicklable(arguments)
        raise ConfigError(
            f"{origin or method} can't be sent to the other ranks",
            path=origin.path if origin is not None else "trainer.ranks",
            why=f"{type(error).__name__}: {error}",
            fix="keep what can't be pickled out of its attributes, and its class out of functions; or train "
            "with trainer.ranks=1",
        ) from error


def _unpicklable(arguments: tuple[Any, ...]) -> Origin | None:
    """The first plugin among arguments, or in their fields, that can't be pickled."""
    for argument in arguments:
        names = getattr(type(argument), "__dataclass_fields__", ())
        for part in (argument, *(getattr(argument, name, None) for name in names)):
            try:
                if origin_of(part).path:
                    compact(part)
            except Exception:  # as above
                return origin_of(part)
    return None


def _first_cause(errors: Sequence[Exception]) -> Exception:
    """The error that isn't a consequence: no failed collective, then a rank's end, then what there is."""
    for kind in (
        [error for error in errors if not isinstance(error, (RankLost, RuntimeError))],
        [error for error in errors if isinstance(error, RankLost)],
        errors,
    ):
        if kind:
            return kind[0]
    raise ValueError("no errors")


# -------------------------------------------------------------------------------------------- the other ranks


def serve(connection: Connection, number: int, end: Callable[[int], object] = os._exit) -> None:
    """Run rank 0's commands until it stops this rank.

    The process ends at once if rank 0 does, or at an error.

    Args:
        end: ends the process with an exit code, once the last message is sent.
    """
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    sending = threading.Lock()

    def send(data: bytes) -> None:
        with sending:
            connection.send_bytes(data)

    def read() -> None:
        try:
            while True:
                data = connection.recv_bytes()
                if data == ALIVE:
                    send(data)
                    continue
                commands.put(data)
                if data == STOP:
                    time.sleep(LATE)  # the process ends before, unless a command hangs
                    os._exit(1)
        except (EOFError, OSError):
            os._exit(1)  # rank 0 is gone, and this rank may wait for it inside a collective

    threading.Thread(target=read, name="commands", daemon=True).start()
    target: Any = None
    while (data := commands.get()) != STOP:
        try:
            method, arguments = pickle.loads(data)
            result = None
            if method == _IMPORT:
                use_code(*arguments)
            elif method == _MAKE:
                target = arguments[0](*arguments[1:])
            elif method == _DROP:
                target = None
            else:
                result = getattr(target, method)(*arguments)
            answer = compact((True, result))
        except BaseException as error:
            send(compact((False, sent_error(error, f"on rank {number}", path="trainer.ranks"))))
            sys.stdout.flush()
            sys.stderr.flush()
            end(1)  # the other ranks wait for this one, and its end is what they notice
        send(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    end(0)  # rank 0 waits, and torch takes a second to take itself down

"""Signs of life: rank 0 asks the other ranks for them, and gives up one whose process hangs."""

from __future__ import annotations

import threading
from contextlib import suppress

from coterie.backends.models.patience import Patience
from coterie.backends.trainers.ranks.group import ALIVE, Group, Rank

_ASK = 5.0
"""Most seconds between two questions."""


def watch_over(group: Group, seconds: float) -> None:
    """Ask for signs of life from now on. A rank that gives none for so long is killed: the others need it."""
    for rank in group.ranks:
        if rank.patience is not None:  # an earlier trainer of these ranks has asked
            rank.patience.seconds = seconds
            continue
        rank.patience = Patience(rank.name, seconds)
        arguments = rank, rank.patience, group.ending
        threading.Thread(target=_ask, args=arguments, name=f"asks rank {rank.number}", daemon=True).start()


def _ask(rank: Rank, patience: Patience, ending: threading.Event) -> None:
    for seconds in patience.ticks(min(patience.seconds / 10, _ASK)):
        if ending.wait(seconds) or rank.ended:
            return
        if rank.process is not None and rank.process.ended():
            break  # a node that is gone closes no connection
        if not rank.sending.acquire(blocking=False):
            continue  # a command is on its way
        try:
            rank.connection.send_bytes(ALIVE)
        except OSError:
            return
        finally:
            rank.sending.release()
    if rank.process is not None:
        rank.process.kill()
    with suppress(OSError):
        rank.hang_up()

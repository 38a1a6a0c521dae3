"""The rank program.

    python -m coterie.backends.trainers.ranks join NUMBER PORT        started by rank 0; its key is on stdin
    torchrun --standalone --nproc-per-node N -m coterie.backends.trainers.ranks run RECIPE trainer.ranks=N ...

Under torchrun, or a cluster that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, rank 0 is the command
`coterie` with the arguments given (`run`, `eval`, ...), and the other ranks serve its trainer.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from datetime import timedelta
from typing import Any

from coterie.backends.trainers.ranks import commands, group, processes


def main(arguments: list[str]) -> None:
    """Run this process's part."""
    if arguments[:1] == ["join"] and len(arguments) == 3:
        number, port = int(arguments[1]), int(arguments[2])
        _serve("127.0.0.1", port, sys.stdin.buffer.read(), number)
    elif arguments and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _started(arguments)
    else:
        sys.exit(f"{__doc__}\nRANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set: see torchrun.")


def _serve(host: str, port: int, key: bytes, number: int) -> None:
    """Serve as one of the other ranks. Ctrl-C and a termination are rank 0's to answer: its end is ours."""
    for number_of_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_of_signal, signal.SIG_IGN)
    logging.basicConfig(format=f"rank {number}: %(message)s", level=logging.WARNING)
    local = int(os.environ.get("LOCAL_RANK", number))
    commands.serve(processes.connect(host, port, key, number, local), number)


def _started(arguments: list[str]) -> None:
    """Run the command as rank 0 of a world that another program started, or serve it."""
    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = os.environ["MASTER_ADDR"]
    store = _store(number, world)
    if number > 0:
        port, key = json.loads(store.get("coterie"))
        _serve(host, port, bytes.fromhex(key), number)
        return
    key = secrets.token_bytes(32)
    with socket.create_server((host, 0), backlog=world) as server:
        store.set("coterie", json.dumps([server.getsockname()[1], key.hex()]))
        ranks = processes.welcome(server, key, world, lambda: None)
    group.joined = group.RankGroup(ranks, host, lasting=True, local=int(os.environ.get("LOCAL_RANK", 0)))
    sys.argv = ["coterie", *arguments]
    try:
        importlib.import_module("coterie.cli.main").main()  # by name: backends don't import the command line
    finally:
        group.joined.close()  # they end with exit code 0, and this process's code is the world's


def _store(number: int, world: int) -> Any:
    """The store of the world: of the program that started it, or rank 0's on MASTER_PORT."""
    import torch.distributed as dist

    served_elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(
            host,
            port,
            world,
            is_master=number == 0 and not served_elsewhere,
            wait_for_workers=False,
            timeout=timedelta(seconds=300),
        )
    except (RuntimeError, OSError) as error:
        sys.exit(
            f"Error: rank {number} can't use MASTER_ADDR={host}, MASTER_PORT={port}\n  why: {error}\n"
            "  fix: choose a port that no other program uses (torchrun --master-port)"
        )
    return dist.PrefixStore("coterie ranks", store)


if __name__ == "__main__":
    main(sys.argv[1:])

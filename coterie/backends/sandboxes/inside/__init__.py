"""The code of a worker process of sandbox `local`: the standard library only, started by `python -P -s -S`
with an empty environment and none of the host process's file descriptors. The host process never imports it.

    worker.py    one worker: gets orders, forks a cell for each program, watches the wall clock
    spaces.py    the namespaces and the read-only root of a worker
    cell.py      the first process of a run: prepares its folder, starts the program, measures and ends it
    program.py   the program's own process, from its last privileges to its exit code, and its modules
    clock.py     the CPU time of a program with all its processes
    users.py     without namespaces: who runs the programs, and what holds them
    ids.py       user ids for programs, none twice at a time
    landlock.py  without a mount namespace: what a program may open
    globs.py     which files come back
    packages.py  the modules that are imported ahead of the runs and are no part of the standard library
    seccomp.py   the system calls that programs may not use
    kernel.py    system calls that Python's `os` lacks
"""

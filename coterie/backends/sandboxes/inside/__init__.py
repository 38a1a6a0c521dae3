"""What runs in a worker process of sandbox `local`: the standard library only, started by `python -P -s -S`
with an empty environment and no file descriptor of ours. Nothing here is imported by our process.

    worker.py    one worker: gets orders, forks a cell for each program, watches the wall clock
    spaces.py    the namespaces and the read-only root that a worker lives in
    cell.py      the first process of a run: prepares its folder, starts the program, measures and ends it
    program.py   the program's own process, from the last privilege given up to its exit code
    seccomp.py   the system calls that a program is refused
    kernel.py    calls that Python has no name for
"""

"""Programs that try forbidden actions, each with the protections that stop it.

Each program calls `escaped` if it succeeded, and exits with code 3 if it was refused. `{mark}` is the name of
its processes, `{secret}` a file of the host process, `{port}` and `{name}` are the host's listening sockets.
"""

from __future__ import annotations

from typing import NamedTuple

BEFORE = """\
import ctypes, gc, os, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, b"{mark}", 0, 0, 0)
def escaped(why=""):
    print("ESCAPED", why, flush=True)
def attempt(what):
    try:
        what()
    except OSError:
        return
    escaped()
"""
REFUSED = "\nsys.exit(3)\n"
SPIN = "while True: pass"
CLONE = """\
number = {{'x86_64': 56, 'aarch64': 220}}[os.uname().machine]
def clone(flags):
    return libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), None, None, None, None)
"""
"""clone(2) with the stack of its caller, as fork(2) does it."""

_CPU, _WALL, _RLIMITS = "CPU clock", "wall clock", "rlimits"
_PID, _MOUNT, _TMPFS, _NET = "pid namespace", "mount namespace", "limited tmpfs", "network namespace"
_CHILDREN = "clock of children"
_CALLS, _COUNT, _OUTPUT = "system call filter", "process count", "bounded output"
_PRIVILEGES, _FILES, _OURS = "no privileges", "files by our hand", "own process"


class Hostile(NamedTuple):
    """A program, the protections that stop it, and the ways it may end."""

    code: str
    stopped_by: tuple[str, ...]
    ends: tuple[str, ...] = ("failed",)


HOSTILE = {
    # ------------------------------------------------------------------------------------------- resources
    "fork_bomb": Hostile(
        "while True:\n    try: os.fork()\n    except OSError: pass", (_COUNT, _CPU, _PID), ("timeout",)
    ),
    "fork_bomb_of_a_shell": Hostile(
        "os.execv('/bin/sh', ['sh', '-c', 'b() {{ b | b & }}; b; sleep 99'])",
        (_COUNT, _WALL, _PID),
        ("timeout", "failed"),
    ),
    "zombies": Hostile(
        "def many():\n    for _ in range(1000):\n        if os.fork() == 0: os._exit(0)\nattempt(many)",
        (_COUNT,),
    ),
    "thread_bomb": Hostile(
        "try:\n    for _ in range(999): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        ""
        "except RuntimeError: os._exit(3)\nescaped()",
        (_COUNT,),
    ),
    "memory_bomb": Hostile("x = bytearray(1 << 30)\nescaped()", (_RLIMITS,)),
    "memory_bomb_by_pieces": Hostile("x = []\nwhile True: x.append(bytes(1 << 20))", (_RLIMITS,)),
    "memory_bomb_mapped": Hostile("import mmap\nattempt(lambda: mmap.mmap(-1, 1 << 30))", (_RLIMITS,)),
    "memory_without_a_name": Hostile("attempt(lambda: os.memfd_create('x'))", (_CALLS,)),
    "huge_number": Hostile("10 ** 10 ** 9", (_CPU, _RLIMITS), ("timeout", "failed")),
    "deep_recursion": Hostile(
        "sys.setrecursionlimit(10 ** 9)\nf = lambda: [*map(lambda _: f(), [0])]\nf()",
        (_RLIMITS, _CPU),
        ("killed", "failed", "timeout"),
    ),
    "endless_loop": Hostile(SPIN, (_CPU,), ("timeout",)),
    "endless_match": Hostile("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", (_CPU,), ("timeout",)),
    "loops_in_children": Hostile(
        f"for _ in range(3):\n    if os.fork() == 0:\n        {SPIN}\nos.wait()", (_CPU,), ("timeout",)
    ),
    "loops_in_an_orphan": Hostile(
        "ours, theirs = os.pipe()\nif os.fork():\n    os.close(theirs)\n"
        "    os.read(ours, 1)\n    os._exit(0)\n"
        "if os.fork(): os._exit(0)\nwhile time.process_time() < .6: pass\nos._exit(0)",
        (_CPU, _PID),
        ("timeout",),
    ),
    "loops_in_threads": Hostile(
        f"def spin():\n    {SPIN}\nfor _ in range(3): threading.Thread(target=spin).start()",
        (_CPU,),
        ("timeout",),
    ),
    "children_that_hide_their_time": Hostile(
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n"
        "        while time.process_time() < .003: pass\n        os._exit(0)\n"
        "    try: os.wait()\n    except ChildProcessError: pass",
        (_CPU, _PID),
        ("timeout",),
    ),
    "children_that_are_waited_for": Hostile(
        "while True:\n    if os.fork() == 0:\n        while time.process_time() < .05: pass\n"
        "        os._exit(0)\n    os.wait()",
        (_CPU, _CHILDREN),
        ("timeout",),
    ),
    "raised_limits": Hostile(
        "import resource\nfor name in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC):\n"
        "    try: resource.setrlimit(name, (resource.RLIM_INFINITY,) * 2)\n"
        "    except (OSError, ValueError): continue\n    escaped(name)",
        (_RLIMITS,),
    ),
    "gigabyte_of_output": Hostile(
        "for _ in range(1024): os.write(1, b'x' * (1 << 20))", (_OUTPUT,), ("killed",)
    ),
    "endless_output": Hostile("while True: print('x' * 10_000)", (_OUTPUT,), ("killed",)),
    "endless_errors": Hostile("while True: print('x' * 10_000, file=sys.stderr)", (_OUTPUT,), ("killed",)),
    "flood_of_files": Hostile(
        "def flood():\n    for n in range(100_000): open(f'{{n}}', 'w').close()\nattempt(flood)",
        (_TMPFS, _CPU),
        ("failed", "timeout"),
    ),
    "flood_of_folders": Hostile(
        "def dig():\n    for _ in range(10_000):\n        os.mkdir('d')\n        os.chdir('d')\nattempt(dig)",
        (_TMPFS, _CPU),
        ("failed", "timeout"),
    ),
    "full_disk": Hostile(
        "def fill():\n    for n in range(9): open(f'{{n}}', 'wb').write(bytes(1 << 20))\nattempt(fill)",
        (_TMPFS,),
    ),
    "full_disk_in_tmp": Hostile(
        "def fill():\n    for n in range(9): open(f'/dev/shm/{{n}}', 'wb').write(bytes(1 << 20))\n"
        "attempt(fill)",
        (_TMPFS,),
    ),
    "huge_file": Hostile(
        "attempt(lambda: os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 40))", (_RLIMITS,)
    ),
    "many_open_files": Hostile("attempt(lambda: [os.dup(1) for _ in range(10_000)])", (_RLIMITS,)),
    # ------------------------------------------------------------------------------------------------ time
    "sleeps_for_ever": Hostile("time.sleep(1e6)", (_WALL,), ("timeout",)),
    "waits_for_ever": Hostile("os.read(os.pipe()[0], 1)", (_WALL,), ("timeout",)),
    "stops_itself": Hostile("os.kill(os.getpid(), signal.SIGSTOP)", (_WALL,), ("timeout",)),
    "ignores_signals": Hostile(
        "for number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n" + SPIN,
        (_CPU,),
        ("timeout",),
    ),
    "exits_and_does_not": Hostile("import atexit\natexit.register(time.sleep, 1e6)", (_WALL,), ("timeout",)),
    "threads_that_outlive": Hostile(
        "threading.Thread(target=time.sleep, args=(1e6,)).start()", (_WALL,), ("timeout",)
    ),
    "sleeping_shell": Hostile("os.execv('/bin/sh', ['sh', '-c', 'sleep 1000'])", (_WALL,), ("timeout",)),
    # ----------------------------------------------------------------------------------- outliving the run
    "child_that_outlives": Hostile("if os.fork() == 0: time.sleep(1e6)" + REFUSED, (_PID,)),
    "double_fork": Hostile(
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1e6)\n    os._exit(0)\n"
        "os.wait()" + REFUSED,
        (_PID,),
    ),
    "orphan_that_goes_on_writing": Hostile(
        "if os.fork() == 0:\n    os.setsid()\n    while True:\n"
        "        print('x', flush=True)\n        time.sleep(.01)" + REFUSED,
        (_PID, _OUTPUT),
    ),
    "orphan_that_forks_on": Hostile(
        "if os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\ntime.sleep(.1)" + REFUSED,
        (_PID, _CPU),
        ("failed", "timeout"),
    ),
    "shared_memory_that_outlives": Hostile("if libc.shmget(4711, 4096, 0o1666) >= 0: escaped()", (_CALLS,)),
    "queue_that_outlives": Hostile("if libc.msgget(4711, 0o1666) >= 0: escaped()", (_CALLS,)),
    "key_that_outlives": Hostile(
        "number = {{'x86_64': 248, 'aarch64': 217}}[os.uname().machine]\n"
        "if libc.syscall(number, b'user', b'k', b'v', 1, -4) >= 0: escaped()",
        (_CALLS,),
    ),
    # ------------------------------------------------------------------------------------- other processes
    "kills_its_parent": Hostile(
        # A parent outside of the pid namespace has the number 0, by which kill(2) means the caller's group.
        "parent = os.getppid()\ntry: os.kill(parent or 1, signal.SIGKILL)\n"
        "except OSError: pass\ntime.sleep(.05)\nif os.getppid() != parent: escaped()",
        (_PID,),
    ),
    "kills_everything": Hostile("try: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass", (_PID,)),
    "signals_the_first_process": Hostile(
        "for number in range(1, 65):\n    try: os.kill(1, number)\n"
        "    except OSError: pass\ntime.sleep(.05)\n"
        "os.kill(1, 0)",
        (_PID,),
    ),
    "limits_of_the_first_process": Hostile(
        "import resource\nattempt(lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))", (_CALLS,)
    ),
    "traces_the_first_process": Hostile("if libc.ptrace(16, 1, 0, 0) == 0: escaped()", (_CALLS,)),
    "memory_of_the_first_process": Hostile(
        "here = ctypes.create_string_buffer(8)\nvec = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)\n"
        "if libc.process_vm_readv(1, vec, 1, vec, 1, 0) >= 0: escaped()",
        (_CALLS,),
    ),
    # ---------------------------------------------------------------------------------------- what is ours
    "reads_proc": Hostile("attempt(lambda: os.listdir('/proc'))", (_MOUNT,)),
    "environment_of_its_parent": Hostile(
        "attempt(lambda: open(f'/proc/{{os.getppid()}}/environ', 'rb').read())", (_MOUNT,)
    ),
    "api_keys": Hostile(
        "if any('KEY' in name or 'hostile' in value for name, value in os.environ.items()): escaped()",
        ("clean environment",),
    ),
    "our_files": Hostile("attempt(lambda: open('{secret}').read())", (_MOUNT,)),
    "passwords": Hostile(
        "attempt(lambda: open('/etc/shadow').read())\nattempt(lambda: open('/etc/passwd').read())", (_MOUNT,)
    ),
    "writes_outside": Hostile(
        "for place in ('/', '/usr', '/etc', '/dev', '/box', os.path.dirname(sys.executable)):\n"
        "    attempt(lambda: open(place + '/new', 'w') if place != '/box' else open('/usr/bin/env', 'r+b'))",
        (_MOUNT,),
    ),
    "replaces_the_interpreter": Hostile("attempt(lambda: os.replace(sys.executable, 'x'))", (_MOUNT,)),
    "writes_through_a_link": Hostile(
        "os.symlink('{secret}', 's')\nattempt(lambda: open('s', 'r+'))", (_MOUNT,)
    ),
    "brings_back_a_link": Hostile("os.symlink('/etc/ld.so.cache', 'a.txt')", (_FILES,)),
    "brings_back_a_linked_folder": Hostile("os.symlink('/usr', 'd')", (_FILES,)),
    "puts_a_link_in_place_of_its_folder": Hostile(
        "top = os.path.dirname(os.getcwd())\nos.rename(f'{{top}}/work', f'{{top}}/moved')\n"
        "os.symlink('/etc', f'{{top}}/work')",
        (_FILES,),
    ),
    "brings_back_a_pipe": Hostile("os.mkfifo('a.txt')", (_FILES,)),
    "strange_names": Hostile(
        "open(b'\\xff\\n.txt', 'w').close()\nos.mkdir(b'\\xfe')\nopen(b'\\xfe/a', 'w').close()", (_FILES,)
    ),
    "our_descriptors": Hostile(
        'for number in range(3, 2000):\n    try: os.write(number, b\'{{"exit": 0, "files": []}}\')\n'
        "    except OSError: continue\n    escaped(number)",
        ("closed files",),
    ),
    "sockets_in_memory": Hostile(
        "for thing in gc.get_objects():\n    if isinstance(thing, socket.socket):\n"
        "        attempt(lambda: thing.send(b'x'))",
        ("closed files",),
    ),
    "frames_of_the_worker": Hostile(
        "frame, told = sys._getframe(), ''\nwhile frame:\n"
        "    told += repr(frame.f_locals)\n    frame = frame.f_back\n"
        "told += repr([thing for thing in gc.get_objects() if type(thing) in (dict, list, tuple)])\n"
        "if 'erofeb-nur-eht-ni-neddih'[::-1] in told: escaped()",
        (_OURS,),
    ),
    "closes_its_files": Hostile("os.closerange(0, 1000)", ("closed files",)),
    # ---------------------------------------------------------------------------------------- the network
    "internet": Hostile("attempt(lambda: socket.create_connection(('1.1.1.1', 53), 1))", (_CALLS, _NET)),
    "loopback": Hostile(
        "attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 1))", (_CALLS, _NET)
    ),
    "names": Hostile("attempt(lambda: socket.getaddrinfo('example.org', 80))", (_CALLS, _NET)),
    "other_sockets": Hostile(
        "for family in (16, 17, 38, 40):\n    attempt(lambda: socket.socket(family, socket.SOCK_RAW))\n"
        "    attempt(lambda: socket.socket(family, socket.SOCK_STREAM))\n"
        "attempt(lambda: socket.socket(38, 5))",
        (_CALLS,),
    ),
    "our_local_socket": Hostile(
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}'))", (_NET,)
    ),
    # ----------------------------------------------------------------------------------------- the kernel
    "becomes_root": Hostile(
        "attempt(lambda: os.setuid(0))\nattempt(lambda: os.setgroups([0]))", (_PRIVILEGES,)
    ),
    "mounts": Hostile(
        "for where in (b'/box', b'/usr'):\n    if libc.mount(b'x', where, b'tmpfs', 0, None) == 0: escaped()",
        (_CALLS,),
    ),
    "makes_the_root_writable": Hostile(
        "if libc.mount(b'none', b'/usr', None, 32 | 4096, None) == 0: escaped()", (_CALLS, _PRIVILEGES)
    ),
    "unmounts": Hostile("if libc.umount2(b'/box', 2) == 0: escaped()", (_CALLS, _PRIVILEGES)),
    "new_namespaces": Hostile(
        "for kind in (0x10000000, 0x20000, 0x20000000):\n    if libc.unshare(kind) == 0: escaped(hex(kind))\n"
        "if libc.clone(None, None, 0x10000000 | 17, None) > 0: escaped()",
        (_CALLS,),
    ),
    "children_of_its_parent": Hostile(
        CLONE + "for flags in (0x8000, 0x8011, 0x8009, 0xC011):\n    pid = clone(flags)\n"
        "    if pid == 0: os._exit(0)\n    if pid > 0: escaped(hex(flags))\n"
        "for flags in (0x8000, 0xC000):\n"
        "    given = (ctypes.c_uint64 * 11)(flags)\n    pid = libc.syscall(435, given, 88)\n"
        "    if pid == 0: os._exit(0)\n    if pid > 0: escaped(hex(flags))",
        (_CALLS,),
    ),
    "children_with_other_signals": Hostile(
        CLONE + "for number_of_signal in (0, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT):\n"
        "    if clone(number_of_signal) == 0: os._exit(0)\n"
        "if os.fork() == 0:\n"
        "    for number_of_signal in (0, signal.SIGKILL, signal.SIGSTOP):\n"
        "        if clone(number_of_signal) == 0:\n            time.sleep(.02)\n            os._exit(0)\n"
        "    os._exit(0)\ntime.sleep(.1)",
        (_PID,),
    ),
    "stopped_children": Hostile(
        "for _ in range(3):\n    if os.fork() == 0:\n        if os.fork(): os._exit(0)\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n        escaped()\n"
        "time.sleep(.1)",
        (_PID,),
    ),
    "waits_for_a_child_that_never_ends": Hostile(
        CLONE + "if clone(0x4011) == 0: time.sleep(1e6)", (_WALL, _PID), ("timeout",)
    ),
    "adopts_orphans": Hostile(
        "libc.prctl(36, 1, 0, 0, 0)\nlibc.prctl(1, signal.SIGKILL, 0, 0, 0)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        if os.fork(): os._exit(0)\n"
        "        libc.prctl(36, 1, 0, 0, 0)\n        if os.fork(): time.sleep(1e6)\n        os._exit(0)\n"
        "time.sleep(.1)",
        (_PID,),
    ),
    "namespaces_of_the_first_process": Hostile(
        "if libc.setns(os.pidfd_open(1), 0x20000) == 0: escaped()", (_CALLS,)
    ),
    "changes_its_root": Hostile("attempt(lambda: os.chroot('.'))", (_CALLS, _PRIVILEGES)),
    "makes_a_device": Hostile(
        "attempt(lambda: os.mknod('disk', 0o60600, os.makedev(254, 0)))", (_PRIVILEGES,)
    ),
    "turns_the_machine_off": Hostile("if libc.reboot(0x89abcdef) == 0: escaped()", (_CALLS, _PRIVILEGES)),
    "io_uring": Hostile(
        "if libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0: escaped()", (_CALLS,)
    ),
    "old_system_calls": Hostile(
        "if os.uname().machine == 'x86_64' and libc.syscall(0x40000000 | 39) > 0: escaped()", (_CALLS,)
    ),
    "goes_before_others": Hostile("attempt(lambda: os.nice(-5))", (_PRIVILEGES,)),
    "aborts": Hostile("os.abort()", (_RLIMITS,), ("killed",)),
    "crashes": Hostile("ctypes.string_at(0)", (_OURS,), ("killed",)),
}

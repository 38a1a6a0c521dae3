"""Programs under plain CPython, to compare sandboxes with."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from coterie.core.protocols import Program


class Plain(NamedTuple):
    """How a program ended under plain CPython, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str
    files: Mapping[str, bytes]


@functools.cache
def bare_python() -> str:
    """This interpreter with empty site-packages: an environment, made once and removed at exit."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    real = os.path.realpath(sys.executable)
    home = Path(folder.name)
    (home / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(real)}\ninclude-system-site-packages = false\n"
    )
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(real)
    return str(home / "bin" / "python")


def run_plainly(program: Program, seconds: float = 60) -> Plain:
    """Run trusted code with `python file.py` and no site-packages, in a new folder."""
    with tempfile.TemporaryDirectory() as name:
        box = Path(name).resolve()
        work = box / "work"
        work.mkdir()
        (box / "tmp").mkdir()
        (box / "main.py").write_bytes(program.code.encode("utf-8", "surrogatepass"))
        for path, data in program.files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_bytes(data)
        done = subprocess.run(
            [bare_python(), str(box / "main.py"), *program.argv],
            input=program.stdin.encode("utf-8", "surrogatepass"),
            capture_output=True,
            cwd=work,
            timeout=seconds,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(work),
                "TMPDIR": str(box / "tmp"),
                "LANG": "C.UTF-8",
                "PYTHONUTF8": "1",
                "PYTHONPATH": str(work),
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        files = {str(path.relative_to(work)): path.read_bytes() for path in work.rglob("*") if path.is_file()}
        streams = [stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr)]
        return Plain(done.returncode, *streams, files)

"""The judge in the wrapper of sandbox_fusion, started as that server starts it."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.backends.sandboxes import fusion_wire as wire
from coterie.backends.sandboxes.judging import programs, verdict
from coterie.core.protocols import Judged, Limits, Verdict

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=1024)


def judged(candidate: str, tests: str, *calls: str, limits: Limits = LIMITS, **fields) -> Judged:
    return Judged(candidate=candidate, tests=tests, calls=calls or ("f",), limits=limits, **fields)


def by_pair(case: Judged) -> Verdict:
    """The verdict of two connected programs."""
    limits, nonce = case.limits or LIMITS, wire.new_nonce()
    body = wire.request(wire.pair(*programs(case, limits)), limits, 5.0, nonce)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for path, text in body["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(base64.b64decode(text))
        (folder / "wrapper.py").write_text(body["code"], encoding="utf-8")
        command = [sys.executable, str(folder / "wrapper.py")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        files = {
            path: base64.b64encode((folder / path).read_bytes()).decode()
            for path in body["fetch_files"]
            if (folder / path).exists()
        }
    command = wire.Command(
        status="Finished", return_code=done.returncode, stdout=done.stdout, stderr=done.stderr
    )
    reply = wire.Reply(status="Success", run_result=command, files=files)
    report = wire.reported(reply, nonce, body["fetch_files"][0])
    assert isinstance(report, wire.Report)
    return verdict(base64.b64decode(report.written), *report.ran)

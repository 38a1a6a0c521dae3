"""The part of `check_sandbox` on files that programs hand on (`coterie.KeepsFiles`)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coterie.core.protocols import Program
from coterie.discovery.members import KeepsFiles, KeptFiles
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.sandbox_results import check_ran

_LIST = """\
import os
for folder, _, names in os.walk('.'):
    for name in names:
        path = os.path.join(folder, name)[2:]
        print(path, open(path).read())
"""


async def check_kept(box: Any) -> None:
    """Check that programs find the files of one another that they are given, and no others.

    Args:
        box: runs programs: the `_Sandbox` of the check. A sandbox without `run_on` passes.
    """
    if not isinstance(box.sandbox, KeepsFiles):
        return
    write = "open('a', 'w').write('one')\nopen('in', 'a').write('!')\nimport os\nos.symlink('/', 'link')\n"
    first = await _left(box, write, KeptFiles(), {"a": "one"})
    change = _LIST + "open('a', 'w').write({0!r})\nos.makedirs('deep')\nopen('deep/{0}', 'w').write('')"
    listed = "a one\nin given\n"
    branches = [
        await _left(box, change.format(name), first, {"a": name, f"deep/{name}": ""}, listed)
        for name in ("two", "three")
    ]
    await _left(box, _LIST, branches[0], {"a": "two", "deep/two": ""}, "a two\ndeep/two \nin given\n")
    await _left(box, "import os\nos.remove('a')\nraise ValueError", first, {})
    large = await _left(box, "open('b', 'w').write('x' * (3 << 19))", first, {"a": "one"}, most_mb=1)
    require(
        large.files == first.files,
        "names a content otherwise when it is kept again",
        f"{box.name}.run_on",
        fix="name contents by their sha256",
    )


async def _left(
    box: Any,
    code: str,
    files: KeptFiles,
    expected: dict[str, str],
    printed: str | None = None,
    most_mb: int = 8,
) -> KeptFiles:
    """Run a program on files; what it left, which must be as expected: contents by path."""
    where = f"{box.name}.run_on"
    program = Program(code=code, files={"in": b"given"}, collect=("**",), limits=box.limits)
    fix = "keep what it leaves, a failing program too: plain files, without program.files, up to most_mb"
    returned = await box.call("run_on", program, files, most_mb, seconds=box.seconds, fix=fix)
    pair = isinstance(returned, tuple) and len(returned) == 2
    require(pair, f"returned {returned!r:.200}", where, fix="(Ran, coterie.KeptFiles)")
    ran, kept = returned
    check_ran(ran, where)
    if printed is not None:
        shown = "".join(sorted(ran.stdout.splitlines(keepends=True)))
        require(shown == printed, f"shows a program {shown!r}, not {printed!r}", where, fix="copy them")
    require(isinstance(kept, KeptFiles), f"returned {kept!r}", where, fix="(Ran, coterie.KeptFiles)")
    wanted = sorted(
        (path, hashlib.sha256(text.encode()).hexdigest(), len(text)) for path, text in expected.items()
    )
    require(sorted(kept.files) == wanted, f"keeps {sorted(kept.files)}, not {wanted}", where, fix=fix)
    for path, text in expected.items():
        at = f"{box.name}.kept"
        with guarded(at, "the path of a file with the content"):
            place = box.sandbox.kept(kept, path)
        require(isinstance(place, Path), f"returned {place!r:.200}", at, fix="a pathlib.Path")
        require(place.is_file(), f"gives {place}, which is no file", at, fix="a file with the content")
        content = place.read_text()
        require(content == text, f"gives {content!r} for {path}", at, fix="its content")
    return kept

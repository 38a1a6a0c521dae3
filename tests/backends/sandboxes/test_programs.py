"""What a sandbox is asked to run is checked before it starts, and by every sandbox in the same words."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from coterie.backends.sandboxes.programs import ARGUMENT, check_judged, check_program
from coterie.core.errors import ConfigError
from coterie.core.protocols import Judged, Limits, Program, Sandbox
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.support import inside
from tests.backends.sandboxes.test_fusion import using

LIMITS = Limits(cpu_seconds=4, wall_seconds=15, memory_mb=256, disk_mb=4, output_kb=64)


def limits(**fields: Any) -> Limits:
    return LIMITS.model_copy(update=fields)


BAD: dict[str, dict[str, Any]] = {
    "code that is no text": {"code": b"x"},
    "stdin that is no text": {"stdin": None},
    "a language that is no text": {"language": 3},
    "argv that is a text": {"argv": "ab"},
    "an argument that is no text": {"argv": ("a", 3)},
    "an argument with a NUL": {"argv": ("a\0b",)},
    "an argument that UTF-8 can't encode": {"argv": ("\ud800",)},
    "an argument of the wrong half": {"argv": ("\udcff",)},
    "a long argument": {"argv": ("é" * (ARGUMENT // 2 + 1),)},
    "long arguments": {"argv": ("x" * 100_000,) * 6},
    "a cpu time of NaN": {"limits": limits(cpu_seconds=math.nan)},
    "an infinite cpu time": {"limits": limits(cpu_seconds=math.inf)},
    "a wall time beyond the kernel": {"limits": limits(wall_seconds=1e12)},
    "an infinite wall time": {"limits": limits(wall_seconds=math.inf)},
    "no cpu time": {"limits": limits(cpu_seconds=0)},
    "less memory than Python needs": {"limits": limits(memory_mb=8)},
    "memory beyond the kernel": {"limits": limits(memory_mb=1 << 60)},
    "a negative disk": {"limits": limits(disk_mb=-1)},
    "half a process": {"limits": limits(processes=1.5)},
    "files beyond the kernel": {"limits": limits(open_files=1 << 40)},
    "output beyond memory": {"limits": limits(output_kb=1 << 40)},
    "limits that are an empty table": {"limits": {}},
    "limits that are 0": {"limits": 0},
    "memory that is a text": {"limits": limits(memory_mb="512")},
    "memory that is a float": {"limits": limits(memory_mb=512.0)},
    "argv that is an iterator": {"argv": iter(("a", "b"))},
    "collect that is an iterator": {"collect": (name for name in ("a",))},
    "limits that are a table": {"limits": {"cpu_seconds": 1}},
    "collect that is a text": {"collect": "*.py"},
    "an absolute glob": {"collect": ("/etc/*",)},
    "a glob that goes up": {"collect": ("a/../../*",)},
    "a glob with a NUL": {"collect": ("a\0",)},
    "an empty glob": {"collect": ("",)},
    "a glob that is no text": {"collect": (b"a",)},
    "a glob that ends in a slash": {"collect": ("a/",)},
    "a glob with a dot": {"collect": ("./a",)},
    "an absolute path": {"files": {"/etc/x": b""}},
    "a path that goes up": {"files": {"a/../../x": b""}},
    "a path that is empty": {"files": {"": b""}},
    "a path with a NUL": {"files": {"a\0": b""}},
    "a path that isn't normal": {"files": {"a//b": b""}},
    "a path that UTF-8 can't encode": {"files": {"\ud800": b""}},
    "a path that is no text": {"files": {b"a": b""}},
    "a long name": {"files": {"é" * 128: b""}},
    "a long path": {"files": {"a/" * 1500 + "b": b""}},
    "contents that are no bytes": {"files": {"a": "text"}},
    "files that are no table": {"files": [("a", b"")]},
    "a file that is a folder of another": {"files": {"a": b"", "a/b": b""}},
    "a folder of another that is a file": {"files": {"a/b/c": b"", "a/b": b""}},
    "more files than fit": {"files": {"a": bytes(5 << 20)}},
    "many small files": {"files": {f"f{n}": b"x" for n in range(1001)}},
    "more stdin than fits": {"stdin": "x" * (5 << 20)},
    "more stdin than fits, in bytes": {"stdin": "字" * (2 << 20)},
    "more code than fits, in bytes": {"code": "#" + "字" * (2 << 20)},
    "many globs": {"collect": ("a",) * 101},
}
LOOK = """
import hashlib, os, sys
print(ascii(sys.argv[1:]), ascii(sys.stdin.read(99)))
for folder, folders, files in sorted(os.walk('.')):
    folders.sort()
    print(ascii(folder), *sorted((ascii(f), hashlib.md5(open(os.path.join(folder, f), 'rb').read()).hexdigest()) for f in files))
for path in ('out.csv', 'o/p/q.txt', 'o/.hidden', 'é/[x].txt'):
    try:
        if os.path.dirname(path): os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, 'w').write(path)
    except OSError as error:
        print(type(error).__name__)
"""  # noqa: E501
PIECES = [
    "a",
    "b.py",
    "é",
    "x y",
    "[x].txt",
    "*",
    "**",
    "?",
    "[a-z]",
    "[!a]",
    "o",
    "p",
    "q.txt",
    "-",
    "\u2603",
]
PIECES += [
    ".hidden",
    "[",
    "[]",
    "[z-a]",
    "*.txt",
    "'",
    '"',
    "\\",
    "$HOME",
    "a" * 250,
    "\n",
    "out.csv",
    "..",
    "",
    ".",
]

GLOBS = ["*", "**", "**/*", "o/**", "**/*.txt", "*/[[]x].txt", "**/.*", "[!o]*", "o/p/q.???"]


def generated(seed: int) -> Program:
    """A program whose fields are made of odd pieces; now and then one of them is refused."""
    draw = random.Random(seed)
    common = PIECES[: -3 if draw.random() < 0.8 else None]

    def path() -> str:
        return "/".join(draw.choices(common, k=draw.randint(1, 3)))

    return Program(
        code=LOOK,
        stdin="".join(draw.choices(["a", "\n", "\r\n", "\0", "é", "\ud800", "\x1b"], k=draw.randint(0, 5))),
        argv=tuple("".join(draw.choices([*common * 4, "\0"], k=2)) for _ in range(draw.randint(0, 3))),
        files={path(): draw.randbytes(draw.randint(0, 99)) for _ in range(draw.randint(0, 3))},
        collect=tuple(draw.choice([path(), *GLOBS]) for _ in range(draw.randint(0, 3))),
        limits=LIMITS,
    )  # fmt: skip


async def outcomes(sandbox: Sandbox, programs: Sequence[Program]) -> list[Any]:
    """Of each program, its result, or the text of the ConfigError."""

    async def outcome(program: Program) -> Any:
        try:
            ran = await sandbox.run(program)
        except ConfigError as error:
            return str(error)
        return ran.status, ran.exit_code, ran.stdout, ran.stderr, dict(ran.files)

    return await asyncio.gather(*map(outcome, programs))


def both(programs: Sequence[Program]) -> list[tuple[Any, Any]]:
    """The outcomes in sandbox `local` and on a loopback server."""
    local = inside(lambda sandbox: outcomes(sandbox, programs), limits=LIMITS, workers=2)
    with FusionServer() as server:
        remote = using(
            server,
            lambda sandbox: outcomes(sandbox, programs),
            grace_seconds=20, margin_seconds=60, retry_seconds=0, concurrency=2, limits=LIMITS,
        )  # fmt: skip
    return list(zip(local, remote, strict=True))


def test_what_can_not_be_run_is_refused_by_both_sandboxes_in_the_same_words() -> None:
    programs = [Program(**{"code": "print('ran')", "limits": LIMITS, **fields}) for fields in BAD.values()]
    for name, (local, remote) in zip(BAD, both(programs), strict=True):
        assert type(local) is str and local == remote, name
        assert "fix: " in local and "Traceback" not in local and len(local) < 600, name


def test_what_is_not_refused_runs_in_both_sandboxes_alike() -> None:
    programs = [generated(seed) for seed in range(24)]
    done = both(programs)
    for program, (local, remote) in zip(programs, done, strict=True):
        assert local == remote, program
    ran = [local for local, _ in done if type(local) is tuple]
    assert 12 < len(ran) < 24 and all(local[:2] == ("finished", 0) for local in ran)
    assert sum(bool(local[4]) for local in ran) > 6, "files were collected"


def test_a_refusal_reads_well() -> None:
    def text(**fields: Any) -> str:
        with pytest.raises(ConfigError) as error:
            check_program(Program(**{"code": "", "limits": LIMITS, **fields}), LIMITS)
        return str(error.value)

    assert "the argument 3 is an int" in text(argv=("a", 3)) and "fix: each argument a str" in text(argv=(3,))
    assert text(limits=limits(cpu_seconds=math.nan)).startswith("limits.cpu_seconds: nan is no limit")
    assert "stdin of a program: None\n" in text(stdin=None)


def test_what_is_no_program_is_refused_by_both() -> None:
    async def refusals(sandbox: Any) -> list[str]:
        texts = []
        for call, value in (
            (sandbox.run, "print(1)"), (sandbox.run, None),
            (sandbox.run, Judged(candidate="", tests="", calls=())),
            (sandbox.judge, None), (sandbox.judge, Program(code="")),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match="was given") as error:
                await call(value)
            texts.append(str(error.value))
        return texts

    with FusionServer() as server:
        remote = using(server, refusals)
    assert inside(refusals) == remote and "fix: sandbox.run(coterie.Program(code=...))" in remote[0]


def test_calls_that_are_an_iterator_are_refused() -> None:
    with pytest.raises(ConfigError, match="calls of a program: a generator"):
        check_judged(Judged(candidate="", tests="", calls=(name for name in ("f",))), LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["candidate", "tests", "calls", "files", "limits"])
def test_what_can_not_be_judged_is_refused(field: str) -> None:
    bad: dict[str, Any] = {"candidate": b"", "tests": 3, "calls": ("f g",), "files": {"/x": b""}}
    fields = {"candidate": "", "tests": "", "calls": ("f",), "limits": LIMITS, "files": {}}
    check_judged(Judged(**fields), LIMITS)
    judged = Judged(**{**fields, field: bad.get(field, limits(wall_seconds=math.inf))})
    with pytest.raises(ConfigError, match=re.escape(field)) as refused:
        check_judged(judged, LIMITS)
    with pytest.raises(ConfigError) as local:
        inside(lambda sandbox: sandbox.judge(judged))
    with FusionServer() as server, pytest.raises(ConfigError) as remote:
        using(server, lambda sandbox: sandbox.judge(judged))
    assert str(local.value) == str(remote.value)
    assert str(refused.value) in str(local.value) or field == "files"


def test_a_configuration_is_refused_where_it_is_read() -> None:
    for fields in (
        {"cpu_seconds": math.inf},
        {"wall_seconds": math.nan},
        {"memory_mb": 8},
        {"disk_mb": 1 << 50},
    ):
        with pytest.raises(ValueError, match=next(iter(fields))):
            Limits(**fields)


def test_the_largest_that_is_allowed_runs() -> None:
    program = Program(
        code="import sys\nprint([len(a) for a in sys.argv[1:]], len(sys.stdin.read()))",
        argv=("x" * ARGUMENT, "y" * ARGUMENT),
        stdin="x" * (3 << 20),
        files={"a/" * 900 + "b" * 100: b"x"},
        collect=("**/b*",),
        limits=LIMITS,
    )
    check_program(program, LIMITS)
    ((local, remote),) = both([program])
    assert local == remote and local[2] == f"[{ARGUMENT}, {ARGUMENT}] {3 << 20}\n" and len(local[4]) == 1

"""Whether the Python of a SandboxFusion server can import the distributions that `packages` names."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from coterie.backends.sandboxes.distributions import check_version, requirement_of
from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits, Program, Ran

_CODE = """\
import importlib, importlib.metadata as metadata, json
for name in json.loads(input()):
    row = [name, "", ""]
    try:
        distribution = metadata.distribution(name)
        row[1] = distribution.version
        stated = (distribution.read_text("top_level.txt") or "").split()
        files = {file.parts[0] for file in distribution.files or () if file.name.endswith(".py")}
        for top in stated or sorted({file.partition(".")[0] for file in files}):
            if top.isidentifier() and top[0] != "_" and top not in ("test", "tests"):
                importlib.import_module(top)
    except metadata.PackageNotFoundError:
        row[2] = "it is not installed there"
    except BaseException as error:
        row[2] = f"{type(error).__name__}: {error}"
    print(json.dumps(row), flush=True)
"""


async def check_imports(
    packages: Sequence[str], run: Callable[[Program], Awaitable[Ran]], limits: Limits, url: str, path: str
) -> dict[str, str]:
    """Have a program on the server import the distributions.

    Args:
        packages: as in the setting, with versions or without.
        run: runs a program there.
        limits: of the sandbox's programs: an import must fit into them.
        path: of the setting, for messages.

    Returns:
        The versions there, by name.

    Raises:
        ConfigError: one can't be imported, or has another version.
    """
    named = [requirement_of(text, path) for text in packages]
    names = [requirement.name for requirement in named]
    ran = await run(Program(code=_CODE, stdin=json.dumps(names) + "\n", limits=limits))
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    for requirement, row in zip(named, rows, strict=False):
        name, version, problem = row
        if problem:
            raise ConfigError(
                f"programs on {url} can't import {name}",
                path=path,
                why=problem,
                fix=f"install it for the server's Python: pip install {name}",
            )
        check_version(requirement, version, path, " on the server")
    if len(rows) < len(named):
        ending = ran.reason or ran.stderr.strip().rpartition("\n")[2] or ran.status
        raise ConfigError(
            f"a program on {url} ended while it imported {names[len(rows)]}",
            path=path,
            why=ending,
            fix="raise memory_mb (2048 for work with data) or cpu_seconds, or install the package anew",
        )
    return {row[0]: row[1] for row in rows}

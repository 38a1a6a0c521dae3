"""A sandbox in this process and programs, for the tests of roles that write programs."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from coterie import Plugin, PolicyFault, SystemFault
from coterie.core.protocols import Program, Ran

INLINE = "tests.plugins.envs.programs:Inline"


class Inline(Plugin):
    """Runs what the tests wrote, in this process: quick, and contains nothing.

    `# lost` and `# killer` in a program stand for what a real sandbox does, `# slow` for a time-out.
    """

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.ran: list[str] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(self, program: Program) -> Ran:
        self.ran.append(program.code)
        if "# lost" in program.code:
            raise SystemFault("the worker was lost")
        if "# killer" in program.code:
            raise PolicyFault("a program ended its worker twice")
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(program.code, {})  # ours
        except Exception as error:
            stderr = f"Traceback ...\n{type(error).__name__}: {error}\n"
            return Ran(
                status="failed", exit_code=1, stdout=out.getvalue(), stderr=stderr, reason="exit code 1"
            )
        if "# slow" in program.code:
            reason = "more than 5 s of CPU time"
            return Ran(status="timeout", exit_code=None, stdout=out.getvalue(), reason=reason)
        return Ran(status="finished", exit_code=0, stdout=out.getvalue())

    async def judge(self, judged: Any) -> Any:
        raise SystemFault("judges nothing")


def answer(code: str) -> str:
    """As a model writes it: some reasoning, then a fenced program."""
    return f"I search the grid.\n\n```python\n{code}\n```\n"


SEARCH = '''\
from collections import deque

grid = [row.split() for row in """
{map}
""".strip().splitlines()]
place = {{mark: (r, c) for r, row in enumerate(grid) for c, mark in enumerate(row)}}
came, queue = {{place["@"]: ()}}, deque([place["@"]])
while queue:
    r, c = queue.popleft()
    for move, there in zip("UDLR", ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1))):
        inside = 0 <= there[0] < len(grid) and 0 <= there[1] < len(grid[0])
        if inside and grid[there[0]][there[1]] != "#" and there not in came:
            came[there] = (*came[r, c], move)
            queue.append(there)
path = list(came[place["G"]])
'''


def search(prompt: str, end: str = "print('so:', path)") -> str:
    """A breadth-first search over the map of a prompt."""
    rows = [line for line in prompt.splitlines() if line and set(line) <= set(".#@G ")]
    return SEARCH.format(map="\n".join(rows)) + end

"""The sandbox: what every one promises, and that a lost program is tried again."""

import asyncio

import pytest

from coterie import Program, Ran, SystemFault
from coterie.testing import build

SANDBOX = {"type": "example_name", "inside": {"type": "local"}, "pause": 0.0}


def test_it_keeps_the_promises_of_a_sandbox(coterie_check):
    coterie_check("example_name", kind="sandbox")


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_program_is_tried_three_times(failures, monkeypatch):
    sandbox = build("sandbox", SANDBOX)
    tries = []

    async def run(program):
        tries.append(program)
        if len(tries) <= failures:
            raise SystemFault("the worker is gone")
        return Ran(status="finished", exit_code=0)

    monkeypatch.setattr(sandbox.config.inside, "run", run)
    if failures < 3:
        assert asyncio.run(sandbox.run(Program(code="pass"))).ok
    else:
        with pytest.raises(SystemFault):
            asyncio.run(sandbox.run(Program(code="pass")))
    assert len(tries) == min(failures + 1, 3)

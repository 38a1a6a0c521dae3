"""The tool: what every one promises, and its results."""

import asyncio

import pytest

from coterie.testing import build


def test_it_keeps_the_promises_of_a_tool(coterie_check):
    coterie_check("example_name", kind="tool")


@pytest.mark.parametrize(
    ("reply", "result"),
    [("<add>2 3.5</add>", "5.5"), ("<add></add>", "0"), ("<add>1 x</add>", "error: could not convert")],
)
def test_the_result_is_the_sum(reply, result):
    tool = build("tool", "example_name")
    assert asyncio.run(tool.run(tool.find(reply))).startswith(result)

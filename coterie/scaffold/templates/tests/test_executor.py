"""The executor: what every one promises."""

from coterie.testing import build, check_executor


def test_it_keeps_the_promises_of_an_executor():
    check_executor(build("executor", "example_name"))

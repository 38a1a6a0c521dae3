"""The executor: what every one promises."""


def test_it_keeps_the_promises_of_an_executor(coterie_check):
    coterie_check("example_name", kind="executor")

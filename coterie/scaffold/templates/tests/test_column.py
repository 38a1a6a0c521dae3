"""The column: its file, and the recipes that it names."""


def test_it_keeps_the_promises_of_a_column(coterie_check):
    coterie_check("example_name", kind="column")

"""A column: one game of a comparison, with a recipe for every variant and the budgets of every scale.

The file lies beside this module, and is registered by its path. A study runs on it with
`coterie reproduce STUDY --columns example_name`.
"""

from pathlib import Path

from coterie import Register, hookimpl


@hookimpl
def register_columns(register: Register) -> None:
    register("example_name", str(Path(__file__).with_name("example_name_column.yaml")))

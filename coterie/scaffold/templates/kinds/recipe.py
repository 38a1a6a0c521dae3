"""A recipe: an experiment as a YAML file, which `coterie run example-name-smoke` runs.

The file lies beside this module, and is registered by its path.
"""

from pathlib import Path

from coterie import Register, hookimpl


@hookimpl
def register_recipes(register: Register) -> None:
    register("example-name-smoke", str(Path(__file__).with_name("example-name-smoke.yaml")))

"""An overlay: settings that go over many recipes, as in `coterie run plan_path --with example_name`.

The file lies beside this module, and is registered by its path.
"""

from pathlib import Path

from coterie import Register, hookimpl


@hookimpl
def register_overlays(register: Register) -> None:
    register("example_name", str(Path(__file__).with_name("example_name_overlay.yaml")))

"""C3 for Coterie: an estimator, a small game of messages, and a recipe."""

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_estimators(register: Register) -> None:
    register("c3", "coterie_c3.estimator:C3")


@hookimpl
def register_environments(register: Register) -> None:
    register("c3_relay", "coterie_c3.relay:Relay")


@hookimpl
def register_roles(register: Register) -> None:
    register("c3_writer", "coterie_c3.relay:Writer")


@hookimpl
def register_recipes(register: Register) -> None:
    register("c3-smoke", "coterie_c3:smoke.yaml")

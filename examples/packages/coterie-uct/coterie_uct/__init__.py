"""UCT for Coterie: a sampler that searches, the estimator for its trees, a game with a trap, and a recipe."""

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_samplers(register: Register) -> None:
    register("uct", "coterie_uct.sampler:UCT")


@hookimpl
def register_estimators(register: Register) -> None:
    register("uct_grpo", "coterie_uct.estimator:SearchGRPO")


@hookimpl
def register_environments(register: Register) -> None:
    register("uct_trap", "coterie_uct.trap:Trap")


@hookimpl
def register_roles(register: Register) -> None:
    register("uct_walker", "coterie_uct.trap:Walker")


@hookimpl
def register_recipes(register: Register) -> None:
    register("uct-smoke", "coterie_uct:smoke.yaml")

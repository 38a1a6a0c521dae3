"""CCPO for Coterie: an estimator, the sampler of its counterfactuals, a small game and a recipe."""

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_estimators(register: Register) -> None:
    register("ccpo_history", "coterie_ccpo.history:CCPOHistory")
    register("ccpo", "coterie_ccpo.estimator:CCPO")


@hookimpl
def register_samplers(register: Register) -> None:
    register("ccpo", "coterie_ccpo.sampler:WithoutRoles")


@hookimpl
def register_environments(register: Register) -> None:
    register("ccpo_hints", "coterie_ccpo.hints:Hints")


@hookimpl
def register_roles(register: Register) -> None:
    register("ccpo_writer", "coterie_ccpo.hints:Writer")


@hookimpl
def register_recipes(register: Register) -> None:
    register("ccpo-smoke", "coterie_ccpo:smoke.yaml")

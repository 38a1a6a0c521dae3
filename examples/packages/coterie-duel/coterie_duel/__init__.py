"""A game of two sides: a player that is trained, and opponents that are earlier versions of it."""

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_environments(register: Register) -> None:
    register("nim_duel", "coterie_duel.game:NimDuel")


@hookimpl
def register_roles(register: Register) -> None:
    register("nim_side", "coterie_duel.game:Side")


@hookimpl
def register_rewards(register: Register) -> None:
    register("duel_result", "coterie_duel.game:DuelResult")


@hookimpl
def register_recipes(register: Register) -> None:
    register("duel-first", "coterie_duel:first.yaml")
    register("duel-league", "coterie_duel:league.yaml")

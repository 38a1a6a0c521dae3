"""A plugin package: an environment, a role, a reward, an estimator, a recipe and a command."""

from coterie import hookimpl


@hookimpl
def register_environments(register):
    register("countdown", "coterie_countdown.game:Countdown")


@hookimpl
def register_roles(register):
    register("counter", "coterie_countdown.game:Counter")


@hookimpl
def register_rewards(register):
    register("brevity", "coterie_countdown.game:Brevity")


@hookimpl
def register_estimators(register):
    register("sign", "coterie_countdown.game:Sign")


@hookimpl
def register_recipes(register):
    register("countdown", "coterie_countdown:countdown.yaml")


@hookimpl
def register_commands(register):
    register("countdown", "coterie_countdown.game:command")

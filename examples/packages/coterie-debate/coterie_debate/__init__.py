"""A debate for Coterie: two debaters, a judge, their game, a reward by a judging model, and a recipe."""

from typing import Any

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_environments(register: Register) -> None:
    register("debate", "coterie_debate.game:Debate")


@hookimpl
def register_roles(register: Register) -> None:
    register("debater", "coterie_debate.roles:Debater")
    register("debate_judge", "coterie_debate.roles:Judge")


@hookimpl
def register_rewards(register: Register) -> None:
    register("debate_verdict", "coterie_debate.rewards:Verdict")
    register("debate_panel", "coterie_debate.rewards:Panel")


@hookimpl
def register_chat_models(register: Register) -> None:
    register("debate_follower", "coterie_debate.follower:Follower")


@hookimpl
def register_recipes(register: Register) -> None:
    register("debate-smoke", "coterie_debate:smoke.yaml")


@hookimpl
def register_examples(register: Any) -> None:
    register("reward", "debate_panel", "coterie_debate.examples:PANEL")

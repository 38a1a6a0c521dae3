"""Who acts next."""

from __future__ import annotations

from typing import Any

from coterie.core.rollout.context import Play
from coterie.core.types import Step
from coterie.plugins.samplers.expansion import Place


def acting(ctx: Play, state: Any, stage: int) -> tuple[str, ...]:
    own = ctx.environment.stage(state)
    return ctx.team.order[stage] if own is None else own


def following(ctx: Play, place: Place, step: Step) -> tuple[tuple[int, int, tuple[str, ...]] | None, bool]:
    """((turn, stage, roles) of the next node or None, whether the environment says it is over)."""
    own = ctx.environment.stage(step.state)
    if own == ():
        return None, True
    over = step.turn_over or (own is None and place.stage + 1 >= len(ctx.team.order))
    turn, stage = (place.turn + 1, 0) if over else (place.turn, place.stage + 1)
    if turn >= ctx.team.max_turns:
        return None, False
    return (turn, stage, ctx.team.order[stage] if own is None else own), False

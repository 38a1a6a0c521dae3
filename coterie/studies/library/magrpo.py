"""The comparison of MAGRPO (arXiv 2508.04652): single agents and teams, one turn and two, by transition."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.columns import Column
from coterie.studies.study import Method, Study, above, order

MODES = ("plain", "passed", "level_passed", "level_feedback", "expert_edits")
"""Transition modes: a column has the variant `mt_<mode>` for those that its environment has."""

_IN_RETURN = "in return (disjoint 95 % intervals)"


def methods(column: Column) -> Sequence[Method]:
    """Untrained team; single agent with GRPO; MAGRPO; MT-MAGRPO in each mode that the column has.

    A column's variants `magrpo` and `grpo` are a team in one turn and a single agent, trained by these.
    """
    turns = [mode for mode in MODES if f"mt_{mode}" in column.variants]
    return (
        Method(id="team", title="Team, untrained", variant="magrpo"),
        Method(id="single_grpo", title="Single agent + GRPO", variant="grpo", trained=True),
        Method(id="magrpo", title="Team + MAGRPO", variant="magrpo", trained=True),
        *(
            Method(
                id=f"mt_{mode}",
                title=f"Team + MT-MAGRPO, {mode}",
                variant=f"mt_{mode}",
                trained=True,
                # An expert is a paid model behind a network: no scale of a CPU asks for one.
                scales=("gpu",) if mode == "expert_edits" else None,
            )
            for mode in turns
        ),
    )


MAGRPO = Study(
    summary="MAGRPO: return, tokens and seconds of an answer, for single agents and teams, at equal tokens.",
    methods=methods,
    claims=(
        above("magrpo", "team", f"MAGRPO is above the untrained team {_IN_RETURN}", of="return"),
        order("magrpo", "single_grpo", "MAGRPO against the single agent with GRPO, in return", of="return"),
        order(
            "mt_level_feedback", "mt_plain", "two turns: level_feedback against plain, in return", of="return"
        ),
        order(
            "mt_level_feedback",
            "magrpo",
            "level_feedback in two turns against one turn, in return",
            of="return",
        ),
    ),
    answers=True,
)

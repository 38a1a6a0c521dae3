"""Ways of sampling a shared team's rollouts, at equal generated tokens: the trees of AT-GRPO, and chains."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.columns import Column
from coterie.studies.study import Method, Study, above, order


def methods(column: Column) -> Sequence[Method]:
    """Trees that expand the best branch, trees that expand a sampled branch, and independent chains."""
    return (
        Method(id="team", title="Team, untrained", variant="shared"),
        Method(id="tree", title="Tree, the best branch goes on", variant="shared", trained=True),
        Method(id="sampled", title="Tree, a sampled branch goes on", variant="sampled", trained=True),
        Method(id="chains", title="Independent chains", variant="chains", trained=True),
    )


SAMPLING = Study(
    summary="A shared team trained on trees and on independent chains, at equal tokens.",
    methods=methods,
    claims=(
        above("tree", "chains", "training on trees is above training on chains (disjoint 95 % intervals)"),
        order("tree", "sampled", "the best branch going on against a sampled one"),
    ),
)

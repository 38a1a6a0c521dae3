"""How a shared team's rollouts are sampled, at equal generated tokens: the trees of AT-GRPO, and chains."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.columns import Column
from coterie.studies.study import Method, Study, above, order


def rows(column: Column) -> Sequence[Method]:
    """The tree of which the best branch goes on, the same with a sampled one, and independent chains."""
    return (
        Method(id="team", title="Team, untrained", form="shared"),
        Method(id="tree", title="Tree, the best branch goes on", form="shared", trained=True),
        Method(id="sampled", title="Tree, a sampled branch goes on", form="sampled", trained=True),
        Method(id="chains", title="Independent chains", form="chains", trained=True),
    )


SAMPLING = Study(
    summary="A shared team trained on trees and on independent chains, at equal tokens.",
    rows=rows,
    claims=(
        above("tree", "chains", "training on trees is above training on chains (disjoint 95 % intervals)"),
        order("tree", "sampled", "the best branch going on against a sampled one"),
    ),
)

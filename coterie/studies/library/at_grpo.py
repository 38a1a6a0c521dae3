"""The tables of AT-GRPO (Stronger-MAS, arXiv 2510.11062): 1.7B, 8B, and the ablation of training together."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.columns import Column
from coterie.studies.study import Method, Study, above, at_most_half, order


def main_rows(column: Column) -> Sequence[Method]:
    """Single agent and team, untrained and trained."""
    return (
        Method(id="single", title="Single agent", form="single"),
        Method(id="single_grpo", title="Single agent + GRPO", form="single", trained=True),
        Method(id="team", title="Team", form="shared"),
        Method(id="shared", title="Team + AT-GRPO, shared policy", form="shared", trained=True),
        Method(id="per_role", title="Team + AT-GRPO, a policy per role", form="per_role", trained=True),
    )


def ablation_rows(column: Column) -> Sequence[Method]:
    """Each role trained alone, both put together, trained together, and those swapped."""
    alone = [
        Method(id=f"alone_{role}", title=f"{role} trained alone", form=f"alone.{role}", trained=True)
        for role in column.roles
    ]
    return (
        Method(id="single", title="Single agent", form="single"),
        *alone,
        Method(
            id="put_together",
            title="Trained alone, put together",
            form="per_role",
            parts={role: f"alone.{role}" for role in column.roles},
        ),
        Method(id="together", title="Trained together", form="per_role", trained=True),
        Method(id="swapped", title="Trained together, swapped", form="per_role", trained=True, swapped=True),
    )


MAIN_CLAIMS = (
    above(
        "shared", "team", "AT-GRPO with a shared policy is above the untrained team (disjoint 95 % intervals)"
    ),
    above(
        "per_role",
        "team",
        "AT-GRPO with a policy per role is above the untrained team (disjoint 95 % intervals)",
    ),
    order("single_grpo", "shared", "single agent + GRPO against AT-GRPO with a shared policy"),
    order("single_grpo", "per_role", "single agent + GRPO against AT-GRPO with a policy per role"),
)

TABLE1 = Study(
    summary="Table 1 of AT-GRPO: single agent and team, untrained and trained.",
    rows=main_rows,
    claims=MAIN_CLAIMS,
)

TABLE2 = Study(
    summary="Table 2 of AT-GRPO: the rows of table 1 at 8B; one large GPU or several.",
    rows=main_rows,
    claims=MAIN_CLAIMS,
    model="Qwen/Qwen3-8B",
    refused={
        "cpu": (
            "it is table 1 with a model of 8 billion parameters, which no CPU trains; with a small model it "
            "would be table 1 again",
            "coterie reproduce at-grpo-table2 --scale gpu, or at-grpo-table1 for small models",
        )
    },
)

TABLE3 = Study(
    summary="Table 3 of AT-GRPO: roles trained alone, put together, trained together, swapped.",
    rows=ablation_rows,
    claims=(
        above("together", "put_together", "trained together is above trained alone and put together "
              "(disjoint 95 % intervals)"),
        at_most_half("swapped", "together", "swapping the two policies at least halves success"),
    ),
)  # fmt: skip


def teammate_rows(column: Column) -> Sequence[Method]:
    """Roles that never met, roles that met untrained ones, and roles that learnt from each other."""
    alone, beside = ({role: f"{kind}.{role}" for role in column.roles} for kind in ("alone", "beside"))
    return (
        Method(id="team", title="Team, untrained", form="per_role"),
        Method(id="put_together", title="Trained alone, put together", form="per_role", parts=alone),
        Method(
            id="beside",
            title="Each trained beside the untrained other, put together",
            form="per_role",
            parts=beside,
        ),
        Method(id="together", title="Trained together", form="per_role", trained=True),
    )


TEAMMATES = Study(
    summary="What a role learns from: itself alone, an untrained teammate, or one that learns as well.",
    rows=teammate_rows,
    claims=(
        order("together", "beside", "trained together against each beside the untrained other"),
        order("beside", "put_together", "each beside the untrained other against each alone"),
    ),
)
"""Not in the paper: a harder baseline for its table 3, whose roles alone never see a teammate's words."""

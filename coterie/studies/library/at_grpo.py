"""The tables of AT-GRPO (Stronger-MAS, arXiv 2510.11062): 1.7B, 8B, the ablation of joint training; and two
studies beside them."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.columns import SOLO, WITH_FROZEN_PARTNER, Column
from coterie.studies.study import Method, Study, above, at_most_half, order

SINGLE = "single"
"""The id of the untrained single agent, over which the paper gives the gain of each row."""

LORA = (
    "policies.*.train=lora",
    "policies.*.lora={rank: 16, alpha: 32}",
    "policies.*.optimizer.learning_rate=2.0e-5",
)
"""The rows beside the paper's, which trains all weights: adapters at the recipes' own learning rate."""


def main_methods(column: Column) -> Sequence[Method]:
    """Single agent and team, untrained and trained; at scale gpu also with adapters."""
    return (
        Method(id=SINGLE, title="Single agent", variant="single"),
        Method(id="single_grpo", title="Single agent + GRPO", variant="single", trained=True),
        Method(id="team", title="Team", variant="shared"),
        Method(id="shared", title="Team + AT-GRPO, shared policy", variant="shared", trained=True),
        Method(id="per_role", title="Team + AT-GRPO, a policy per role", variant="per_role", trained=True),
        *(
            Method(
                id=f"{variant}_lora",
                title=f"Team + AT-GRPO, {title}, LoRA",
                variant=variant,
                trained=True,
                overrides=LORA,
                scales=("gpu",),
            )
            for variant, title in (("shared", "shared policy"), ("per_role", "a policy per role"))
        ),
    )


def ablation_methods(column: Column) -> Sequence[Method]:
    """Each role trained alone; a team of these; a team trained together; that team with swapped policies."""
    solo = [
        Method(id=f"alone_{role}", title=f"{role} trained alone", variant=f"{SOLO}.{role}", trained=True)
        for role in column.roles
    ]
    return (
        Method(id=SINGLE, title="Single agent", variant="single"),
        *solo,
        Method(
            id="put_together",
            title="Trained alone, put together",
            variant="per_role",
            parts={role: f"{SOLO}.{role}" for role in column.roles},
        ),
        Method(id="together", title="Trained together", variant="per_role", trained=True),
        Method(
            id="swapped", title="Trained together, swapped", variant="per_role", trained=True, swapped=True
        ),
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
    methods=main_methods,
    claims=MAIN_CLAIMS,
    gain_over=SINGLE,
)

TABLE2 = Study(
    summary="Table 2 of AT-GRPO: the rows of table 1 at 8B; one large GPU or several.",
    methods=main_methods,
    claims=MAIN_CLAIMS,
    gain_over=SINGLE,
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
    methods=ablation_methods,
    gain_over=SINGLE,
    claims=(
        above("together", "put_together", "trained together is above trained alone and put together "
              "(disjoint 95 % intervals)"),
        at_most_half("swapped", "together", "swapping the two policies at least halves success"),
    ),
)  # fmt: skip


def teammate_methods(column: Column) -> Sequence[Method]:
    """Roles trained alone, roles trained with frozen partners, and roles trained together."""
    solo, with_frozen_partner = (
        {role: f"{kind}.{role}" for role in column.roles} for kind in (SOLO, WITH_FROZEN_PARTNER)
    )
    return (
        Method(id="team", title="Team, untrained", variant="per_role"),
        Method(id="put_together", title="Trained alone, put together", variant="per_role", parts=solo),
        Method(
            id="beside",
            title="Each trained beside the untrained other, put together",
            variant="per_role",
            parts=with_frozen_partner,
        ),
        Method(id="together", title="Trained together", variant="per_role", trained=True),
    )


TEAMMATES = Study(
    summary="What a role learns from: itself alone, an untrained teammate, or one that learns as well.",
    methods=teammate_methods,
    claims=(
        order("together", "beside", "trained together against each beside the untrained other"),
        order("beside", "put_together", "each beside the untrained other against each alone"),
    ),
)
"""Not in the paper. A harder baseline than its table 3, in which a role that trains alone never reads a
teammate's messages."""


def sampling_methods(column: Column) -> Sequence[Method]:
    """Trees that expand the best branch, trees that expand a sampled branch, and independent chains."""
    return (
        Method(id="team", title="Team, untrained", variant="shared"),
        Method(id="tree", title="Tree, the best branch goes on", variant="shared", trained=True),
        Method(id="sampled", title="Tree, a sampled branch goes on", variant="sampled", trained=True),
        Method(id="chains", title="Independent chains", variant="chains", trained=True),
    )


SAMPLING = Study(
    summary="A shared team trained on trees and on independent chains, at equal tokens.",
    methods=sampling_methods,
    claims=(
        above("tree", "chains", "training on trees is above training on chains (disjoint 95 % intervals)"),
        order("tree", "sampled", "the best branch going on against a sampled one"),
    ),
)

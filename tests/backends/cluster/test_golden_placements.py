"""The placements of recipes on 2, 4 and 8 GPUs, as `coterie plan --nodes` prints them.

Each text was checked by hand; its first lines say why it is right. After a change that is meant to move a
process, `python tests/backends/cluster/test_golden_placements.py` writes them again: read them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from coterie.cli.plan_output import show_placement
from coterie.core.errors import ConfigError
from coterie.estimate.placement import placement_of
from coterie.recipes import load

GOLDEN = Path(__file__).parents[2] / "golden" / "placements"
DSBENCH = "dsbench_coach"


class Case(NamedTuple):
    """A run on a cluster of nodes with 16 CPUs."""

    name: str
    recipe: str
    nodes: int
    gpus: int
    """Of a node."""
    settings: str
    why: str


TORCH = "trainer={type: torch, ranks: %d}"
VLLM = "engine={type: vllm, replicas: %d, tensor_parallel: %d}"


def settings(layout: str, ranks: int, replicas: int = 1, width: int = 1) -> str:
    return f"cluster.layout={layout}; {TORCH % ranks}; {VLLM % (replicas, width)}; cluster.workers=4"


CASES = (
    Case(
        "mathchat_coach_2_separate", "mathchat_coach", 1, 2, settings("separate", 1),
        "One rank and a replica of each of three sets of weights: 1 + 3 = 4 GPUs, and there are 2.",
    ),
    Case(
        "mathchat_coach_2_colocate", "mathchat_coach", 1, 2, settings("colocate", 2),
        "Two ranks have GPU 0 and 1. The replicas take turns: GPU 0, 1, and 0 again for the third.",
    ),
    Case(
        "mathchat_coach_4_separate", "mathchat_coach", 1, 4, settings("separate", 1),
        "1 + 3 = 4: every GPU has one owner, and none is left.",
    ),
    Case(
        "mathchat_coach_4_colocate", "mathchat_coach", 1, 4, settings("colocate", 4),
        "Four ranks; three replicas on the GPUs of the first three. GPU 3 trains only.",
    ),
    Case(
        "mathchat_coach_8_separate", "mathchat_coach", 1, 8, settings("separate", 2, replicas=2),
        "Two ranks and two replicas of each of three: 2 + 6 = 8.",
    ),
    Case(
        "mathchat_coach_8_colocate", "mathchat_coach", 1, 8, settings("colocate", 8, width=2),
        "Eight ranks; a replica of two GPUs shares those of two ranks: 0 and 1, 2 and 3, 4 and 5.",
    ),
    Case(
        "mathchat_coach_4+4_separate", "mathchat_coach", 2, 4, settings("separate", 2, replicas=2),
        "The first node is full with both ranks and both replicas of the first policy; the other four\n"
        "replicas fill the second. Each has 12 of 16 CPUs left then; the engine and the hosts take turns.",
    ),
    Case(
        "mathchat_coach_4+4_wide", "mathchat_coach", 2, 4, settings("separate", 1, width=2),
        "1 + 3 x 2 = 7 GPUs. A replica is on one node: beside the run one fits, and leaves a GPU that no\n"
        "other can use; two fill the second node.",
    ),
    Case(
        "mathchat_coach_4+4_colocate", "mathchat_coach", 2, 4, settings("colocate", 8, width=2),
        "Ranks 0 to 3 are on the first node, 4 to 7 on the second. The third replica shares the GPUs of\n"
        "ranks 4 and 5, which are the second node's GPUs 0 and 1.",
    ),
    Case(
        "mathchat_coach_8_recipe", "mathchat_coach", 1, 8, "cluster.layout=separate",
        "As the recipe has it (4 ranks, 2 replicas of 2 GPUs): 4 + 3 x 2 x 2 = 16 GPUs, since each set of\n"
        "weights has a pool of its own. On one machine the three share four GPUs.",
    ),
    Case(
        "mathchat_coach_4_recipe_colocate", "mathchat_coach", 1, 4, "cluster.layout=colocate",
        "The recipe's 4 ranks; six replicas of 2 GPUs in turn on GPUs 0 and 1, 2 and 3: three on each pair.",
    ),
    Case(
        "dsbench_coach_2_separate", DSBENCH, 1, 2, settings("separate", 1),
        "1 + 3 = 4 GPUs, and there are 2: three policies with whole weights need a pool each.",
    ),
    Case(
        "dsbench_coach_2_colocate", DSBENCH, 1, 2, settings("colocate", 2),
        "The replicas of three pools in turn on the GPUs of two ranks.",
    ),
    Case(
        "dsbench_coach_2_colocate_wide", DSBENCH, 1, 2, settings("colocate", 1, width=2),
        "A replica of 2 GPUs has one rank's GPU to share.",
    ),
    Case(
        "dsbench_coach_4_separate", DSBENCH, 1, 4, settings("separate", 1),
        "1 + 3 = 4.",
    ),
    Case(
        "dsbench_coach_4_colocate", DSBENCH, 1, 4, settings("colocate", 4, width=2),
        "Four ranks are two pairs: three replicas of 2 GPUs on pair 0, pair 1, pair 0.",
    ),
    Case(
        "dsbench_coach_8_separate", DSBENCH, 1, 8, settings("separate", 2, width=2),
        "2 + 3 x 2 = 8.",
    ),
    Case(
        "dsbench_coach_8_colocate", DSBENCH, 1, 8, settings("colocate", 8, width=2),
        "Eight ranks are four pairs; three have a replica, GPUs 6 and 7 train only.",
    ),
    Case(
        "dsbench_coach_4_at_once", DSBENCH, 1, 4, f"{settings('separate', 1)}; cluster.updates=at_once",
        "A trainer and a replica of each of three sets of weights: 3 + 3 = 6 GPUs, and there are 4.",
    ),
    Case(
        "dsbench_coach_8_at_once", DSBENCH, 1, 8, f"{settings('separate', 1)}; cluster.updates=at_once",
        "3 + 3 = 6; the run's process has no weights, and takes no GPU.",
    ),
    Case(
        "dsbench_coach_4+4_at_once_colocate", DSBENCH, 2, 4,
        f"{settings('colocate', 2, replicas=2)}; cluster.updates=at_once",
        "Three trainers of two ranks: two of them on the first node, one on the second. Each pool has two\n"
        "replicas, one on the GPU of each rank of its own trainer.",
    ),
)  # fmt: skip


def printed(case: Case) -> str:
    """What `coterie plan` prints for a case."""

    @click.command()
    def shown() -> None:
        resolved = load(case.recipe, scale="gpu", overlays=["ray"], overrides=case.settings.split("; "))
        try:
            show_placement(placement_of(resolved.config, case.nodes, 16, case.gpus))
        except ConfigError as error:
            click.echo(f"Error: {error}")

    done = CliRunner().invoke(shown, catch_exceptions=False)
    lines = [f"# {case.settings}", *(f"# {line}" for line in case.why.split("\n")), *done.stdout.split("\n")]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_placement_of_a_recipe(case: Case) -> None:
    assert printed(case) == (GOLDEN / f"{case.name}.txt").read_text()


def test_every_text_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {case.name for case in CASES}


if __name__ == "__main__":
    for each in CASES:
        (GOLDEN / f"{each.name}.txt").write_text(printed(each))

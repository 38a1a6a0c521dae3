"""What other libraries' trainers did, read from the records and done again with ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.backends.models.minibatches import span_ids, token_coefficients
from coterie.core.protocols import TokenBatch
from coterie.core.types import Key, Sample
from coterie.testing.support.trees import Forest, J, Number

Record = dict[str, Any]

EXACT = 1e-6
"""How near ours is to a record, absolutely; the records are rounded to 9 digits."""


def records(library: str) -> Any:
    """The record of `trl` or `comlrl`."""
    return json.loads((Path(__file__).parent / f"{library}.json").read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------------- TRL


def chains(
    rewards: Sequence[Number], siblings: int, logprobs: Sequence[Sequence[float]] | None = None
) -> Forest:
    """TRL's completions as chains of one turn, `siblings` to a task.

    Args:
        logprobs: of every completion's tokens under the weights that sampled; default: one token each.
    """
    table = {} if logprobs is None else {completion(i, siblings): tuple(r) for i, r in enumerate(logprobs)}
    forest = Forest(logprobs=table)
    for index, reward in enumerate(rewards):
        forest.grow([J(reward)], task=f"task{index // siblings}")
    return forest


def completion(index: int, siblings: int) -> str:
    """The place of TRL's i-th completion."""
    return f"task{index // siblings}/{index % siblings}:one0"


# -------------------------------------------------------------------------------------------------- CoMLRL


def joints(node: Record, *, potential: bool = False) -> list[J]:
    """A recorded node and all below it; its rewards are increments, or potentials of the states reached."""
    children = [joints(child, potential=potential) for child in node["children"]] or [
        [] for _ in node["rewards"]
    ]
    pays = "potential" if potential else "gain"
    return [J(**{pays: paid, "then": then}) for paid, then in zip(node["rewards"], children, strict=True)]


def roles(record: Record) -> tuple[str, ...]:
    return tuple(f"agent{number}" for number in range(record["settings"]["num_agents"]))


def tree(
    record: Record, *, pairing: str | None = None, potential: bool = False, sampled: bool = False
) -> Forest:
    """The recorded tree.

    Args:
        sampled: actions hold what was sampled, without padding; otherwise what CoMLRL's loss sees, padding
            included and the last token left out. A record without log-probs has one token an action.
    """
    logprobs = {}
    for role, agent in zip(roles(record), record["agents"], strict=True):
        nodes = zip(agent.get("lengths", ()), agent.get("logprobs", ()), strict=True)
        for path, (lengths, rows) in zip(paths(record["tree"]), nodes, strict=False):
            name = ".".join(map(str, (0, *path)))
            for branch, (length, row) in enumerate(zip(lengths, rows, strict=True)):
                logprobs[f"{name}:{role}{branch}"] = tuple(row[:length] if sampled else row[:-1])
    forest = Forest(
        order=(roles(record),),
        pairing=pairing or record["settings"].get("joint_mode", "aligned"),
        logprobs=logprobs,
    )
    return forest.grow(joints(record["tree"], potential=potential))


def paths(node: Record, before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where the nodes are, in the order in which CoMLRL plays them."""
    yield before
    for index, child in enumerate(node["children"]):
        yield from paths(child, (*before, index))


def branches(forest: Forest, role: str) -> list[list[Key]]:
    """The role's branches, by node in the order of `paths`."""
    return [
        [node.key.of_branch(role, branch) for branch in range(len(node.decisions[role].branches))]
        for node in forest.trees[0].nodes()
    ]


# ---------------------------------------------------------------------------------------------- one update


def update(
    loss: Any, samples: Sequence[Sample], current: Mapping[Key, Sequence[float]]
) -> tuple[float, dict[Key, list[float]]]:
    """One optimiser step's loss, and its gradient with respect to the current log-probs, as trainers sum it.

    Args:
        current: by branch: log-probs of its tokens under the weights being trained.
    """

    def flat(rows: Sequence[np.ndarray]) -> np.ndarray:
        parts = [row[sample.loss_mask] for row, sample in zip(rows, samples, strict=True)]
        return np.concatenate(parts).astype(np.float64)

    def note(name: str) -> np.ndarray | None:
        return flat([sample.extras[name] for sample in samples]) if name in samples[0].extras else None

    sequence, sequences = span_ids(samples)
    shares = flat(token_coefficients(samples, loss.length, loss.length_constant))
    surrogate = loss(
        np,
        TokenBatch(
            logprobs=np.concatenate([np.array(current[sample.key]) for sample in samples]),
            behaviour=flat([sample.logprobs for sample in samples]),
            advantages=flat([sample.advantages for sample in samples]),
            ref_logprobs=note("ref_logprobs"),
            old=note("old_logprobs"),
            sequence=sequence,
            sequences=sequences,
        ),
    )
    ends = np.cumsum([int(sample.loss_mask.sum()) for sample in samples])[:-1]
    grads = np.split(shares * surrogate.grad, ends)
    return float(shares @ surrogate.value), {
        sample.key: grad.tolist() for sample, grad in zip(samples, grads, strict=True)
    }

"""Trees and credit to samples, samples to minibatches.

A branch becomes one Sample: its prompt, then everything that was sampled, with tool results between the
calls masked out. Where a later call's prompt does not extend the earlier ids verbatim, a new Sample
starts (invariant 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from coterie.core.types import Action, Annotations, Call, Credit, Decision, Key, Sample, Span, Tree
from coterie.core.types.seeding import generator

Length = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]


def samples_of(
    trees: Sequence[Tree], credit: Credit, annotations: Annotations | None = None
) -> dict[str, list[Sample]]:
    """Samples by policy, in the order of the trees' keys. A branch without credit gives none."""
    by_policy: dict[str, list[Sample]] = {}
    annotations = {**(annotations or {}), "targets": credit.target}
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                if not decision.trainable:
                    continue
                for branch, action in enumerate(decision.branches):
                    key = node.key.of_branch(role, branch)
                    if key in credit.advantage and action.trainable:
                        by_policy.setdefault(decision.policy, []).extend(
                            action_samples(
                                key,
                                decision,
                                action,
                                credit.advantage[key],
                                credit.weight.get(key, 1.0),
                                annotations,
                            )
                        )
    return by_policy


def runs_of(action: Action) -> list[list[Call]]:
    """The calls of an action, split where a prompt does not continue the ids before it."""
    runs: list[list[Call]] = []
    for call in action.calls:
        if not call.token_ids:
            continue
        if runs and call.continues and _extends(runs[-1][-1], call):
            runs[-1].append(call)
        else:
            runs.append([call])
    return runs


def _extends(before: Call, call: Call) -> bool:
    ids = before.prompt_ids + before.token_ids
    return call.prompt_ids[: len(ids)] == ids


def action_samples(
    key: Key,
    decision: Decision,
    action: Action,
    advantage: float | np.ndarray,
    weight: float,
    annotations: Annotations,
) -> list[Sample]:
    """The samples of one branch. A per-token advantage runs over all sampled tokens of the action."""
    samples, offset = [], 0
    for index, run in enumerate(runs_of(action)):
        ids = np.array(run[-1].prompt_ids + run[-1].token_ids, dtype=np.int64)
        mask = np.zeros(len(ids), dtype=bool)
        logprobs = np.zeros(len(ids), dtype=np.float32)
        for call in run:
            start = len(call.prompt_ids)
            mask[start : start + len(call.token_ids)] = True
            logprobs[start : start + len(call.token_ids)] = call.logprobs
        count = int(mask.sum())
        advantages = np.zeros(len(ids), dtype=np.float32)
        advantages[mask] = (
            advantage if np.ndim(advantage) == 0 else np.asarray(advantage)[offset : offset + count]
        )
        extras = {}
        for name, table in annotations.items():
            if key in table:
                extras[name] = np.zeros(len(ids), dtype=np.float32)
                extras[name][mask] = table[key][offset : offset + count]
        # Only a first run shares the decision's prompt with its siblings; a run that starts after a
        # broken prefix has a prompt of its own.
        place = key if index == 0 else key.of_call(index)
        samples.append(
            Sample(
                key=place,
                policy=decision.policy,
                token_ids=ids,
                loss_mask=mask,
                logprobs=logprobs,
                advantages=advantages,
                spans=(Span(len(run[0].prompt_ids), len(ids), key, weight),),
                version=run[0].version,
                temperature=decision.temperature,
                prompt_tokens=len(run[0].prompt_ids),
                extras=extras,
            )
        )
        offset += count
    return samples


def token_coefficients(
    samples: Sequence[Sample], length: Length, constant: float | None = None
) -> list[np.ndarray]:
    """What every token's loss is multiplied with: weight over denominator, 0 off the mask.

    The denominators are taken over all samples given, which are those of one optimiser step and one
    policy; the loss is then a plain sum of coefficient * value, so no split into micro-batches can
    change it (invariant 6). A sequence is a span; a branch whose prefix broke counts once, since its
    spans share a branch key.

    - `token_mean`: sum_i w_i sum_t l_it / sum_i w_i n_i
    - `sequence_mean`: sum_i w_i (1/n_i) sum_t l_it / sum_i w_i
    - `sequence_sum`: sum_i w_i sum_t l_it / sum_i w_i
    - `constant`: sum_i w_i sum_t l_it / (constant * sum_i w_i), Dr. GRPO's (arXiv 2503.20783)

    Args:
        constant: of the last; usually the longest completion allowed.

    Returns:
        one float32 array of shape (T,) per sample.
    """
    tokens: dict[Key, int] = {}
    weight: dict[Key, float] = {}
    for sample in samples:
        for span in sample.spans:
            tokens[span.branch] = tokens.get(span.branch, 0) + int(
                sample.loss_mask[span.start : span.stop].sum()
            )
            weight[span.branch] = span.weight
    if length == "token_mean":
        denominator = sum(weight[branch] * count for branch, count in tokens.items())
    else:
        denominator = sum(weight[branch] for branch, count in tokens.items() if count)
    coefficients = []
    for sample in samples:
        row = np.zeros(len(sample.token_ids), dtype=np.float32)
        for span in sample.spans:
            share = weight[span.branch] / denominator if denominator else 0.0
            if length == "sequence_mean":
                share /= max(tokens[span.branch], 1)
            elif length == "constant":
                if constant is None:
                    raise ValueError("length `constant` needs its constant")
                share /= constant
            row[span.start : span.stop] = share
        row[~sample.loss_mask] = 0.0
        coefficients.append(row)
    return coefficients


def span_ids(samples: Sequence[Sample]) -> tuple[np.ndarray, int]:
    """Which span every trained token is of, for losses of whole sequences.

    Returns:
        int64, shape (trained tokens,), counted from 0 through all samples; and how many spans there are.

    Raises:
        ValueError: a trained token lies in no span.
    """
    rows, count = [], 0
    for sample in samples:
        row = np.full(len(sample.token_ids), -1, dtype=np.int64)
        for span in sample.spans:
            row[span.start : span.stop] = count
            count += 1
        rows.append(row[sample.loss_mask])
        if (rows[-1] < 0).any():
            raise ValueError(f"{sample.key.text()}: a trained token lies in no span")
    return np.concatenate(rows), count


def minibatches(samples: Sequence[Sample], size: int | None, seed: int) -> list[list[Sample]]:
    """Shuffle whole groups of siblings (they share a prompt) and fill minibatches of about `size` samples.

    Siblings stay together, so a minibatch may pass `size` by less than one group. Every sample is
    used once; a remainder smaller than half of `size` joins the batch before it, so that no optimiser
    step rests on a handful of samples.
    """
    groups: dict[Key, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    order = list(groups.values())
    if size is None or len(samples) <= size:
        return [[sample for group in order for sample in group]] if order else []
    permutation = generator(seed, "minibatches", "shuffle").permutation(len(order))
    batches: list[list[Sample]] = [[]]
    for index in permutation:
        if len(batches[-1]) >= size:
            batches.append([])
        batches[-1].extend(order[index])
    if len(batches) > 1 and 2 * len(batches[-1]) < size:
        batches[-2].extend(batches.pop())
    return batches


def merge_annotations(
    samples: Mapping[str, Sequence[Sample]], name: str, values: Mapping[Key, np.ndarray]
) -> Annotations:
    """Per-sample arrays (by sample key) joined to per-branch arrays, in the order of the calls."""
    table: dict[Key, list[np.ndarray]] = {}
    for rows in samples.values():
        for sample in rows:
            table.setdefault(sample.key._replace(call=-1), []).append(values[sample.key])
    return {name: {key: np.concatenate(parts) for key, parts in table.items()}}

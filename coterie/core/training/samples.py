"""Trees and credit to samples: what a trainer gets.

A branch becomes one Sample: its prompt, then everything that was sampled, with tool results between the
calls masked out. Where a later call's prompt does not extend the earlier ids verbatim, a new Sample
starts (invariant 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from coterie.core.types import Action, Annotations, Call, Credit, Decision, Key, Metrics, Sample, Span, Tree


def samples_of(
    trees: Sequence[Tree], credit: Credit, annotations: Annotations | None = None
) -> dict[str, list[Sample]]:
    """Samples by policy, in the order of the trees' keys. A branch without credit gives none."""
    by_policy: dict[str, list[Sample]] = {}
    annotations = {**(annotations or {}), "targets": credit.target}
    for tree in trees:
        for key, decision, action in tree.actions():
            if decision.trainable and action.trainable and key in credit.advantage:
                advantage, weight = credit.advantage[key], credit.weight.get(key, 1.0)
                samples = action_samples(key, decision, action, advantage, weight, annotations)
                by_policy.setdefault(decision.policy, []).extend(samples)
    return by_policy


def runs_of(action: Action) -> list[list[Call]]:
    """The calls of an action, split where a prompt does not continue the ids before it."""
    runs: list[list[Call]] = []
    for call in action.calls:
        if not call.token_ids:
            continue
        before = runs[-1][-1].prompt_ids + runs[-1][-1].token_ids if runs and call.continues else None
        if before is not None and call.prompt_ids[: len(before)] == before:
            runs[-1].append(call)
        else:
            runs.append([call])
    return runs


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
                version=min(call.version for call in run),
                version_runs=_version_runs(run),
                temperature=decision.temperature,
                prompt_tokens=len(run[0].prompt_ids),
                extras=extras,
            )
        )
        offset += count
    return samples


def _version_runs(run: Sequence[Call]) -> tuple[tuple[int, int], ...]:
    """`Sample.version_runs` of the calls of one sample."""
    if len({call.version for call in run}) == 1 and not any(call.version_runs for call in run):
        return ()
    runs = [pair for call in run for pair in call.version_runs or ((call.version, len(call.token_ids)),)]
    grouped = groupby(runs, key=lambda pair: pair[0])
    return tuple((version, sum(tokens for _, tokens in pairs)) for version, pairs in grouped)


def staleness(samples: Sequence[Sample], version: int) -> Counter[int]:
    """How many of a policy's sampled tokens are how old, in updates.

    Args:
        version: the policy's version before the update that trains on them.
    """
    tokens: Counter[int] = Counter()
    for sample in samples:
        for drawn, count in sample.version_runs or ((sample.version, int(sample.loss_mask.sum())),):
            tokens[version - drawn] += count
    return tokens


def staleness_metrics(tokens: Counter[int], steps: Sequence[float]) -> Metrics:
    """`staleness/mean|max|share/<k>` in updates, and `staleness/optimizer_steps`; {} without tokens.

    Args:
        steps: of the updates before, the newest first; fewer than the tokens are old: they aren't known.
    """
    total = tokens.total()
    if not total:
        return {}
    metrics = {f"staleness/share/{age}": count / total for age, count in sorted(tokens.items())}
    if len(steps) >= max(tokens):
        metrics["staleness/optimizer_steps"] = sum(sum(steps[:age]) * n for age, n in tokens.items()) / total
    mean = sum(age * count for age, count in tokens.items()) / total
    return {"staleness/mean": mean, "staleness/max": float(max(tokens)), **metrics}


def merge_annotations(
    samples: Mapping[str, Sequence[Sample]], name: str, values: Mapping[Key, np.ndarray]
) -> Annotations:
    """Per-sample arrays (by sample key) joined to per-branch arrays, in the order of the calls."""
    table: dict[Key, list[np.ndarray]] = {}
    for rows in samples.values():
        for sample in rows:
            table.setdefault(sample.key._replace(call=-1), []).append(values[sample.key])
    return {name: {key: np.concatenate(parts) for key, parts in table.items()}}

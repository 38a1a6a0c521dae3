"""The folders of two runs, read and compared field by field."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.api.rollouts import read_rollouts

UNCOMPARED = {
    f"{kind}.{key}"
    for kind in ("node", "branch", "joint")
    for key in (
        "format",  # says how a row was written
        "reasons",  # prose, which names what the version calls things
        "fault.reason",  # prose, too; the fault's kind is compared
        "state_digest",  # of a state's repr, which holds the names of classes and fields
    )
}
"""Entries of rollout rows that may differ while results are equal."""

MACHINE = ("time/", "machine/")
"""How the metrics begin that depend on the machine."""

REQUIRED = {
    "node": ("prompt_ids",),
    "branch": ("calls", "reward", "return", "advantage", "scores"),
    "joint": ("branches", "reward", "scores"),
}
"""Fields of a kind of row that both runs must have. Others are compared where both have them."""

Rows = list[dict[str, Any]]
Part = tuple[int, int, str]
"""(step, rank, file): in the order in which a run decides things, so that the first difference is the one
nearest to the cause: what was played, then the metrics, then the weights."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two runs differ; values are JSON, shortened."""

    where: str
    base: str
    head: str


ABSENT = "absent"


# -------------------------------------------------------------------------------------------------- reading


def read_run(folder: Path) -> dict[Part, Rows]:
    """Rollouts, metrics and weights' digests of a run's folder."""
    parts: dict[Part, Rows] = {}
    for path in sorted(folder.glob("rollouts/step-*.jsonl*")):
        # A row without a kind is a header, such as one that gives the format; so is that of a whole step.
        kept_rows = [row for row in read_rollouts(path) if row["kind"] != "step"]
        rows = [compared(row, row["kind"]) for row in kept_rows]
        parts[_step(path), 0, f"rollouts/{path.name.removesuffix('.gz')}"] = rows
    for row in _json_lines(folder / "metrics.jsonl"):
        kept = {key: value for key, value in row.items() if not key.startswith(MACHINE)}
        parts[row["step"], 1, "metrics.jsonl"] = [compared(kept, "metrics")]
    for path in sorted(folder.glob("checkpoints/step-*")):
        parts[_step(path), 2, f"checkpoints/{path.name}"] = [compared(_weights(path), "weights")]
    return parts


def compared(value: Any, where: str) -> Any:
    """A value without what is not compared.

    Args:
        where: the kind of a rollout's row, with the keys that lead to a table inside it (`branch.calls`), or
            `metrics` or `weights`.
    """
    if isinstance(value, list):
        return [compared(item, where) for item in value]
    if not isinstance(value, dict):
        return value
    places = {key: f"{where}.{key}" for key in value}
    return {
        key: compared(inner, places[key]) for key, inner in value.items() if places[key] not in UNCOMPARED
    }


def _weights(checkpoint: Path) -> dict[str, Any]:
    """policy -> digest, as the trainer took it; of a checkpoint without digests, file -> checksum."""
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    digests: dict[str, Any] | None = manifest["meta"].get("weights")
    return digests or {name: file["sha256"] for name, file in manifest["files"].items()}


def _json_lines(path: Path) -> Rows:
    with path.open(encoding="utf-8") as file:  # splitlines() would also split at U+2028 inside a text
        return [json.loads(line) for line in file]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-").partition(".")[0])


# ------------------------------------------------------------------------------------------------ comparing


def differences(base: Mapping[Part, Rows], head: Mapping[Part, Rows]) -> Iterator[Difference]:
    """The places where two runs differ, the earliest first."""
    for part in sorted({*base, *head}):
        step, _, file = part
        here = f"{file} (step {step})" if file == "metrics.jsonl" else file
        if part not in base or part not in head:
            yield Difference(here, *("present" if part in run else ABSENT for run in (base, head)))
            continue
        rows, others = base[part], head[part]
        for index, (row, other) in enumerate(zip(rows, others, strict=False)):
            if "kind" in row and "kind" in other:
                row, other = _shared(row, other)
                yield from _differing(f"{here}:{index + 1} {row['kind']}", row, other)
            else:
                yield from _differing(here, row, other)
        if len(rows) != len(others):
            yield Difference(f"{here} rows", str(len(rows)), str(len(others)))


def _shared(row: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both rollout rows, cut to fields that both have or that one of them lacks and must not."""
    fields = (row.keys() & other.keys()) | {*REQUIRED.get(row["kind"], ())}
    return (
        {key: value for key, value in row.items() if key in fields},
        {key: value for key, value in other.items() if key in fields},
    )


def _differing(where: str, base: Any, head: Any) -> Iterator[Difference]:
    if isinstance(base, dict) and isinstance(head, dict):
        for key in {**base, **head}:
            yield from _differing(f"{where}.{key}", base.get(key, _NOTHING), head.get(key, _NOTHING))
    elif isinstance(base, list) and isinstance(head, list) and len(base) == len(head):
        for index, (item, other) in enumerate(zip(base, head, strict=True)):
            yield from _differing(f"{where}[{index}]", item, other)
    # By text: 1 and 1.0, 0.0 and -0.0 are equal to Python, and the files have other bytes.
    elif repr(base) != repr(head):
        yield Difference(where, _short(base), _short(head))


_NOTHING = object()


def _short(value: Any) -> str:
    text = ABSENT if value is _NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def unshared(base: Mapping[Part, Rows], head: Mapping[Part, Rows]) -> dict[str, list[str]]:
    """Fields of rollout rows that only one run has and that were therefore not compared."""
    fields = [
        {f"{row['kind']}.{key}" for rows in run.values() for row in rows if "kind" in row for key in row}
        for run in (base, head)
    ]
    return {"base": sorted(fields[0] - fields[1]), "head": sorted(fields[1] - fields[0])}


def counts(run: Mapping[Part, Rows]) -> dict[str, int]:
    """Steps, rows of rollouts, and sampled tokens in them."""
    return {
        "steps": sum(file == "metrics.jsonl" for _, _, file in run),
        "rows": sum("kind" in row for rows in run.values() for row in rows),
        "tokens": sum(map(len, _tokens(run))),
    }


def _tokens(run: Mapping[Part, Rows]) -> list[Sequence[int]]:
    return [
        call["token_ids"]
        for rows in run.values()
        for row in rows
        if row.get("kind") == "branch"
        for call in row["calls"]
    ]


# ----------------------------------------------------------------------------------------------- fingerprints

DIGITS = 8
"""Significant digits that a fingerprint holds."""
RELATIVE, ABSOLUTE = 1e-6, 1e-7
"""Within these two numbers are equal. Processors differ in the last digit of exp and log; a log-prob that is
stored in float32 then differs by 6e-8, and where equal numbers should cancel, that much is left as noise."""


def fingerprint(folder: Path) -> dict[str, Any]:
    """What a run sampled, what that was worth, and its metrics.

    Digests of token ids and rewards; moments of each step's advantages; of each metric one number, or one a
    step.
    """
    run = read_run(folder)
    rows = {part: [row for row in rows if "kind" in row] for part, rows in sorted(run.items())}
    metrics = [row for (_, _, file), rows in sorted(run.items()) if file == "metrics.jsonl" for row in rows]
    names = sorted({name for row in metrics for name in row})
    return {
        "token_ids": _sha256(_tokens(run)),
        "rewards": _sha256([row["reward"] for part in rows.values() for row in part if "reward" in row]),
        "advantages": [moments for part in rows.values() if (moments := _moments(part))],
        "metrics": {name: _column([row.get(name) for row in metrics]) for name in names},
    }


def changed(base: Any, head: Any, where: str = "") -> Iterator[str]:
    """The entries in which two fingerprints differ."""
    if isinstance(base, dict) and isinstance(head, dict):
        for key in sorted({**base, **head}):
            yield from changed(base.get(key), head.get(key), f"{where}.{key}" if where else key)
    elif isinstance(base, list) and isinstance(head, list) and len(base) == len(head):
        for index, (item, other) in enumerate(zip(base, head, strict=True)):
            yield from changed(item, other, f"{where}[{index}]")
    elif not _equal(base, head):
        yield f"{where}: {base} -> {head}"


def _equal(base: Any, head: Any) -> bool:
    if isinstance(base, list) or isinstance(head, list):  # a column that is constant in one of them
        many = base if isinstance(base, list) else head
        other = head if many is base else base
        return not isinstance(other, (list, dict)) and all(_equal(item, other) for item in many)
    if isinstance(base, (int, float)) and isinstance(head, (int, float)):
        return math.isclose(base, head, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return bool(base == head)


def _moments(rows: Rows) -> list[float]:
    """Of all advantages: their number, mean, mean size, mean weighted with the place (0 to 1)."""
    values = [value for row in rows for value in _flat(row.get("advantage"))]
    if not values:
        return []
    ramp = sum(value * at for at, value in enumerate(values, 1)) / len(values)
    sums = (sum(values), sum(map(abs, values)), ramp)
    return [len(values), *(_short_number(total / len(values)) for total in sums)]


def _flat(value: Any) -> list[float]:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return [number for part in inner for number in _flat(part)]
    return [value] if isinstance(value, (int, float)) else []


def _column(values: list[Any]) -> Any:
    values = [_short_number(value) for value in values]
    return values[0] if all(value == values[0] for value in values) else values


def _short_number(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

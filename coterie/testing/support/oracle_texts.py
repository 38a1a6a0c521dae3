"""Scripts for `oracles.OracleEngine`: answers of roles at every level of their rewards."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from coterie.core.types import Request
from coterie.discovery import plugins

log = logging.getLogger("coterie")

SPLITS = ("train", "val", "test")
NO_CODE = "I would need more time."
UNPARSABLE = "def {name}(value):\n    return (value\n"
NOTHING = "def {name}(*values):\n    return None\n"


def code(request: Request, prompt: str, draws: random.Random) -> str:
    """An answer of a role of `code_collab` or `code_tests`: its part of the reference, or a usual fault.

    Its problems are those of data source `cooperative`, found by the id of the task; for others it writes the
    faults alone.
    """
    record = _records().get(request.key.task.partition("-")[2])
    if record is None:
        warn_of_unknown_problem()
        return draws.choice(_faults(request.key.role, prompt))
    return draws.choice(_answers(request.key.role, record))


def _faults(role: str, prompt: str) -> list[str]:
    """The usual faults of a role, for a problem whose solution is not known."""
    defined = re.search(r"def (\w+)\(", prompt)
    name = "aux" if role == "aux" else defined[1] if defined else "main"
    if role == "tester":
        return [_tests(f"assert {name}() == 'never'"), NO_CODE]
    return [NO_CODE, UNPARSABLE.format(name=name), NOTHING.format(name=name)]


@cache
def warn_of_unknown_problem() -> None:
    """Warn, once a process, that the answers to a problem are faults alone."""
    log.warning(
        "the script of --scale smoke knows the solutions of data source 'cooperative' alone: for other "
        "problems it writes faults (engine.share=0 leaves all answers to the model)"
    )


def _answers(role: str, record: Mapping[str, Any]) -> list[str]:
    name = record["entry_point"]
    if role == "aux":
        faults = [NO_CODE, UNPARSABLE.format(name="aux"), "def aux(value):\n    pass\n"]
        return [_fenced(record["aux_solution"])] * 3 + faults
    if role == "tester":
        return [_tests(record["visible_tests"]), _tests(f"assert {name}() == 'never'"), NO_CODE]
    faults = [NO_CODE, UNPARSABLE.format(name=name), NOTHING.format(name=name)]
    if role == "main":
        thin = f"def {name}(*values):\n    return aux(*values)\n"
        unused = f"{record['solo_solution']}\n{name}_alone = {name}\n\ndef {name}(*values):\n"
        unused += f"    aux\n    return {name}_alone(*values)\n"
        return [_fenced(record["main_solution"])] * 3 + [record["solo_solution"], thin, unused, *faults]
    if role == "solver" and "visible_tests" in record:
        both = f"{_fenced(record['solution'])}\n{_tests(record['visible_tests'])}"
        return [_fenced(record["solution"]), both, *faults]
    return [_fenced(record["solution"])] * 2 + faults


def _fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def _tests(asserts: str) -> str:
    return f"```tests\n{asserts.rstrip()}\n```"


@cache
def _records() -> Mapping[str, Mapping[str, Any]]:
    """The records of data source `cooperative`, by id."""
    source = plugins().registry.load("data_source", "cooperative")
    made = source(source.Config(), None)
    return {record["id"]: record for split in SPLITS for record in made.records(split)}


WORDS = (
    "rain falls on old roofs while rivers carry leaves past quiet mills toward distant harbours".split()  # noqa: SIM905
)


def writing(request: Request, prompt: str, draws: random.Random) -> str:
    """A text of a role of `writing`: of a length, and with words, at which levels pass or fail."""
    short = request.key.role == "first"
    count = draws.choice((2, 12, 30) if short else (2, 40, 90))
    words = [draws.choice(WORDS) + draws.choice(("", "s")) for _ in range(count)]
    if draws.random() < 0.7:
        words[::7] = ["However," for _ in words[::7]]
    text = " ".join(words)
    return f"{' '.join(words[: count // 3])}\n---\n{text}" if request.key.role == "solver" else text


PROGRAMS = {
    "data_engineer": """\
import csv
rows = list(csv.DictReader(open("data/train.csv")))
for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"):
    open(name, "w").write(f"{len(rows)} rows")
print(len(rows), "rows with", ", ".join(rows[0]))""",
    "modeler": """\
assert open("y_train.pkl").read()
open("model.pkl", "w").write("what the sample says")""",
    "analyst": """\
import csv
assert open("model.pkl").read()
[ids, sample] = [list(csv.reader(open("data/test.csv"))), {sample!r}]
with open("submission.csv", "w") as file:
    print(",".join(sample[0]), file=file)
    for row in ids[1:]:
        print(row[0], *sample[1][1:], sep=",", file=file)""",
}
"""Work without a library: the analyst hands in the first line of the sample for every row."""
_SAMPLE = re.compile(r"this format:\n(.+)\n(.+)\n")


def data_science(request: Request, prompt: str, draws: random.Random) -> str:
    """A message of a role of `data_science`: its program, or a usual fault."""
    role = request.key.role
    sample = _SAMPLE.search(prompt)
    lines = [line.split(",") for line in sample.groups()] if sample else [["id", "target"], ["0", "0"]]
    done = f"{_fenced(PROGRAMS[role].replace('{sample!r}', repr(lines)))}\nDONE\n"
    return draws.choice([done] * 4 + [_fenced("1 / 0"), NO_CODE, "```python\nimport csv"])

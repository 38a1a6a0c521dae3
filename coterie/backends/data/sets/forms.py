"""The published forms of data sets: one function a set, from a row to a record of ours."""

from __future__ import annotations

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.types.splits import Split

_MOST_BYTES = 1 << 28
"""Of unpacked tests: a zip bomb ends here."""


def called_function(code: str, asserts: Sequence[str]) -> str:
    """The last function of the code that an assert calls; empty: none does, or something doesn't parse."""
    try:
        functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        trees = [ast.parse(text) for text in asserts]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    called = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return next((name for name in reversed(functions) if name in called), "")


def syntax_error(code: str) -> str:
    """Why the code doesn't parse; empty: it does."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return ""


def stub(code: str, name: str, statement: str) -> str:
    """Imports and signature of the reference, with the statement as docstring."""
    tree = ast.parse(code)
    parts = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
    doc = statement.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    parts.append(f'def {name}({ast.unparse(function.args)}){returns}:\n    """{doc}"""')
    return "\n".join(parts) + "\n"


def calls(name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Asserts that a function gives these outputs; a list of one output may be the output itself."""
    lines = []
    for given, wanted in zip(inputs, outputs, strict=True):
        arguments = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        accepted = [wanted]
        if isinstance(wanted, Sequence) and not isinstance(wanted, str) and len(wanted) == 1:
            accepted.append(wanted[0])
        lines.append(f"assert {name}({', '.join(map(repr, arguments))}) in {accepted!r}")
    return "\n".join(lines) + "\n"


def json_calls(name: str, tests: Sequence[Mapping[str, Any]]) -> str:
    """Asserts of tests whose input has an argument a line, and whose output is a value, as JSON."""
    lines = []
    for test in tests:
        arguments = [_value(line) for line in str(test["input"]).split("\n") if line.strip()]
        lines.append(f"assert {name}({', '.join(map(repr, arguments))}) == {_value(str(test['output']))!r}")
    return "\n".join(lines) + "\n"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class _OnlyText(pickle.Unpickler):
    """Unpickles a text: no class can be named, so nothing of the data is run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def private_tests(packed: str) -> list[Mapping[str, Any]]:
    """The private tests of LiveCodeBench: JSON, or JSON in a pickled text, compressed, in base 64.

    Raises:
        ValueError: it is neither.
    """
    if not packed.strip():
        return []
    try:
        tests = json.loads(packed)
    except ValueError:
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
            tests = json.loads(_OnlyText(io.BytesIO(data)).load())
        except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, TypeError, ValueError) as error:
            raise ValueError(f"the private tests can't be unpacked: {error}") from None
    if not isinstance(tests, list) or not all(isinstance(test, Mapping) for test in tests):
        raise ValueError("the private tests are no list of tables")
    return tests


Row = Mapping[str, Any]
Record = dict[str, Any]


class UnusableRow(Exception):
    """Why a row that is as published can't be used; it is dropped and counted."""


class WrongRow(ValueError):
    """(field, what is wrong) of a row that is not as the set publishes it."""


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A data set."""

    hub: str
    """Id on the Hub."""
    read: Callable[[Row, int], Record]
    """(row, its index) -> record; raises Unusable or WrongRow."""
    splits: Mapping[Split, str]
    """Default expressions of our splits."""
    subset: str | None = None


def text(row: Row, *names: str, required: bool = True) -> str:
    """The first of these fields that the row has.

    Raises:
        WrongRow: it is no text, or the row has none of them.
    """
    for name in names:
        if row.get(name) is not None:
            if not isinstance(row[name], str):
                raise WrongRow(name, f"is no text: {row[name]!r:.60}")
            return str(row[name])
    if required:
        raise WrongRow(names[0], "is missing")
    return ""


def source(row: Row, *names: str) -> str:
    """The text that a team is to write about.

    Raises:
        WrongRow: as `text`.
        Unusable: it is empty.
    """
    given = text(row, *names)
    if not given.strip():
        raise UnusableRow("it has no text")
    return given


def parsed(row: Row, name: str) -> Any:
    """The JSON of a field that is a text of JSON, or the field as it is.

    Raises:
        WrongRow: it is no JSON.
    """
    value = row.get(name)
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise WrongRow(name, f"is no JSON: {error}") from None


def humaneval(row: Row, index: int) -> Record:
    """HumanEval and CoopHumanEval: `check(candidate)`, and a solution that continues the prompt."""
    prompt, tests = text(row, "prompt"), text(row, "test")
    solution = text(row, "canonical_solution", required=False)
    if not tests.strip():
        raise UnusableRow("it has no tests")
    if error := syntax_error(tests):
        raise WrongRow("test", f"doesn't parse: {error}")
    return {
        "id": text(row, "task_id", required=False) or str(index),
        "prompt": prompt,
        "entry_point": text(row, "entry_point"),
        "tests": tests,
        "solution": prompt + solution if solution.strip() else "",
    }


def mbpp(row: Row, index: int) -> Record:
    """MBPP, sanitized and full: the entry point is the function of the reference that the asserts call."""
    code = text(row, "code")
    asserts = _texts(row, "test_list")
    if not asserts:
        raise UnusableRow("it has no tests")
    setup = _texts(row, "test_imports") or [text(row, "test_setup_code", required=False)]
    name = called_function(code, asserts)
    if not name:
        raise UnusableRow("its tests call no function of its reference")
    before = "\n".join(filter(None, setup))
    challenge = _texts(row, "challenge_test_list")
    return {
        "id": str(row.get("task_id", index)),
        "prompt": stub(code, name, text(row, "prompt", "text")),
        "entry_point": name,
        "tests": "\n".join(filter(None, (before, *asserts, *challenge))) + "\n",
        "visible_tests": "\n".join(filter(None, (before, asserts[0]))) + "\n",
        "solution": code.replace("\r\n", "\n"),
    }


def apps(row: Row, index: int) -> Record:
    """APPS: programs with inputs and outputs, or functions named in `fn_name`."""
    tests = parsed(row, "input_output")
    if not isinstance(tests, Mapping) or not tests.get("inputs"):
        raise UnusableRow("it has no tests")
    inputs, outputs = tests["inputs"], tests.get("outputs") or []
    if len(inputs) != len(outputs):
        raise UnusableRow("it has not as many outputs as inputs")
    solutions = parsed(row, "solutions") or [""]
    starter = text(row, "starter_code", required=False)
    record = {
        "id": str(row.get("problem_id", row.get("id", index))),
        "prompt": "\n".join(filter(None, (text(row, "question"), starter))),
        "solution": str(solutions[0]),
        "difficulty": text(row, "difficulty", required=False),
    }
    name = tests.get("fn_name")
    if name:
        return {**record, "entry_point": str(name), "tests": calls(str(name), inputs, outputs)}
    return {**record, "cases": [[_stream(i), _stream(o)] for i, o in zip(inputs, outputs, strict=True)]}


PYTHON3 = 3
"""The language of a solution of CodeContests."""
DIFFICULTIES = ("unknown", "easy", "medium", "hard", "harder", "hardest", "external")


def code_contests(row: Row, index: int) -> Record:
    """CodeContests: programs; the public tests are visible, all others are hidden too."""
    description = text(row, "description")
    if "<image>" in description:
        raise UnusableRow("its statement has a picture")
    public = _pairs(row, "public_tests")
    hidden = [*_pairs(row, "private_tests"), *_pairs(row, "generated_tests")]
    if not public and not hidden:
        raise UnusableRow("it has no tests")
    solutions = row.get("solutions") or {}
    if not isinstance(solutions, Mapping):
        raise WrongRow("solutions", f"is no table: {solutions!r:.60}")
    written = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=False)
    python = [code for language, code in written if language in (PYTHON3, "PYTHON3")]
    difficulty = row.get("difficulty")
    named = isinstance(difficulty, int) and 0 <= difficulty < len(DIFFICULTIES)
    return {
        "id": text(row, "name", required=False) or str(index),
        "prompt": description,
        "cases": [*public, *hidden],
        "visible_cases": public,
        "solution": python[0] if python else "",
        "difficulty": DIFFICULTIES[difficulty] if named else str(difficulty or ""),  # type: ignore[index]
    }


def live_code_bench(row: Row, index: int) -> Record:
    """LiveCodeBench: programs, or functions with a starter; it has no reference solutions."""
    public = parsed(row, "public_test_cases") or []
    hidden = private_tests(text(row, "private_test_cases", required=False))
    tests = [*public, *hidden]
    if not tests:
        raise UnusableRow("it has no tests")
    starter = text(row, "starter_code", required=False)
    record = {
        "id": text(row, "question_id", required=False) or str(index),
        "title": text(row, "question_title", required=False),
        "prompt": "\n".join(filter(None, (text(row, "question_content"), starter))),
        "difficulty": text(row, "difficulty", required=False),
    }
    if all(test.get("testtype") == "stdin" for test in tests):
        shown = [[str(test["input"]), str(test["output"])] for test in public]
        return {
            **record,
            "cases": [[str(t["input"]), str(t["output"])] for t in tests],
            "visible_cases": shown,
        }
    name = (parsed(row, "metadata") or {}).get("func_name")
    if not name:
        raise UnusableRow("its tests call a function without a name")
    name = str(name).rpartition(".")[2]
    return {
        **record,
        "entry_point": name,
        "tests": json_calls(name, tests),
        "visible_tests": json_calls(name, public) if public else "",
    }


def tldr(row: Row, index: int) -> Record:
    """TLDR: posts, and the author's own summary."""
    reference = text(row, "completion", "summary", "label", required=False)
    return {"id": str(row.get("id", index)), "prompt": source(row, "prompt"), "reference": reference}


def arxiv(row: Row, index: int) -> Record:
    """Abstracts of arXiv."""
    return {
        "id": str(row.get("id", row.get("article_id", index))),
        "prompt": source(row, "abstract_text", "abstract"),
        "title": text(row, "title", required=False),
    }


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise WrongRow(name, f"is no list: {value!r:.60}")
    return [str(item) for item in value]


def _pairs(row: Row, name: str) -> list[list[str]]:
    table = row.get(name) or {}
    if not isinstance(table, Mapping):
        raise WrongRow(name, f"is no table: {table!r:.60}")
    inputs, outputs = table.get("input") or [], table.get("output") or []
    if len(inputs) != len(outputs):
        raise WrongRow(name, "has not as many outputs as inputs")
    return [[str(i), str(o)] for i, o in zip(inputs, outputs, strict=True)]


def _stream(value: Any) -> str:
    """What a program reads or writes: some rows have its lines in a list."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(map(str, value)) + "\n"
    return str(value)

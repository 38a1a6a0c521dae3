"""What the published forms of code sets need: entry points, stubs, calls as asserts, packed tests."""

from __future__ import annotations

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

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

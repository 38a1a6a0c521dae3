"""docs/glossary.md: every reference resolves, and every public value and contract of the core is in it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Protocol

import pytest

import coterie.core.protocols
import coterie.core.types

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE[PAGE.index("| word |") :].splitlines()[2:]
]
REFERENCES = sorted({reference for row in ROWS for reference in re.findall(r"`([\w.]+)`", row[2])})
OPTIONAL = {"torch", "transformers", "peft", "numpy.typing"}
"""Libraries of extras: a reference into a module that needs one is looked up in its source."""


def resolve(reference: str) -> Any:
    """The object of `core.types.Tree.chains`: the longest part that is a module, then attributes.

    Raises:
        AttributeError: a name that its module lacks.
    """
    parts = ["coterie", *reference.split(".")]
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name in OPTIONAL:
                source = (ROOT / Path(*parts[:count])).with_suffix(".py").read_text(encoding="utf-8")
                if re.search(rf"^(class|def) {parts[count]}\b", source, re.MULTILINE):
                    return None
                raise AttributeError(reference) from error
            continue
        for name in parts[count:]:
            value = getattr(value, name)
        return value
    raise AttributeError(reference)


def public_classes(package: Any) -> set[str]:
    """Names of the classes that the files of a package define without a leading underscore."""
    names = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        module = importlib.import_module(f"{package.__name__}.{path.stem}".removesuffix(".__init__"))
        names |= {
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        }
    return names


@pytest.mark.parametrize("reference", REFERENCES)
def test_every_reference_resolves(reference):
    resolve(reference)


def test_the_words_are_in_alphabetical_order_and_each_is_defined_once():
    words = [row[0].lower() for row in ROWS]
    assert all(len(row) == 3 and row[1].endswith(".") for row in ROWS)
    assert words == sorted(set(words))


@pytest.mark.parametrize("package", [coterie.core.types, coterie.core.protocols], ids=["types", "protocols"])
def test_every_public_value_and_contract_of_the_core_is_in_the_glossary(package):
    from coterie.compose.kinds import CAPABILITIES

    named = {reference.rpartition(".")[2] for reference in REFERENCES}
    # docs/kinds lists them all.
    named |= {capability.__name__ for kind in CAPABILITIES.values() for capability in kind}
    assert not sorted(public_classes(package) - named), "add a row, or name them in an existing one"


def test_every_kind_of_plugin_with_a_protocol_is_a_word():
    from coterie.compose.kinds import PROTOCOL

    kinds = {kind.replace("_", " ") for kind in PROTOCOL} - {"reward", "transition"}
    words = {row[0] for row in ROWS}
    assert kinds | {"reward source", "transition mode"} <= words
    assert all(issubclass(protocol, Protocol) for protocol in PROTOCOL.values())  # type: ignore[arg-type]

"""The smoke recipe: a base, and over it what each kind changes. Comments and their order are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coterie.scaffold.kinds import TEMPLATES, Kind, template

CALLS = {"tool": "<add>2 3.5</add>", "sandbox": "```python\\nprint(2 + 3.5)\\n```"}
"""By kind: what a reply has to have in it, so that the component is called; as Python text."""
_OTHER_GAME = ("environment", "role", "transition", *CALLS)
"""Kinds that don't go with the game of `data_source`."""
_LINE = re.compile(r"( *)([\w.-]+):(?: +(.*))?$")


def recipe(kinds: Sequence[Kind], *, own_game: bool) -> str:
    """The smoke recipe, in which every kind but those of `left_out` is at work, with placeholders.

    Args:
        own_game: whether the package has a game; else one of Coterie's is played where no kind is one.
    """
    names = [kind.name for kind in kinds]
    layers = ["base"]
    if not own_game and "environment" not in names:
        layers.append("builtin")
    for name in names:
        if name not in left_out(kinds) and (TEMPLATES / "smoke" / f"{name}.yaml").is_file():
            layers.append(name)
    layers += ["script"] * scripted(kinds)
    return merged(template(f"smoke/{name}.yaml") for name in layers)


def left_out(kinds: Sequence[Kind]) -> dict[str, str]:
    """The kinds that the smoke recipe doesn't use, with the reason."""
    others = [kind for kind in kinds if kind.name in _OTHER_GAME]
    if not others or all(kind.name != "data_source" for kind in kinds):
        return {}
    return {"data_source": f"its mazes are Plan-Path's, and {others[0].phrase} goes with another game"}


def scripted(kinds: Sequence[Kind]) -> bool:
    """Whether a function stands for the model: a tool or a sandbox is to be called, without an engine."""
    names = {kind.name for kind in kinds}
    return bool(names & CALLS.keys()) and "engine" not in names


@dataclass(slots=True)
class YamlBlock:
    """What stands under a key: a value in its line, or keys of its own, in their order."""

    value: str = ""
    comments: list[str] = field(default_factory=list)
    keys: dict[str, YamlBlock] = field(default_factory=dict)


def merged(texts: Iterable[str]) -> str:
    """The YAML of texts that lie over each other, the last on top.

    Each text is block-style YAML of two spaces a level, with a key in every line. Keys of one place are
    joined; two lists in brackets are joined too; of two other values the upper one counts.
    """
    root = YamlBlock()
    for text in texts:
        _lay(root, _parsed(text))
    return "".join(f"{line}\n" for line in _lines(root, ""))


def _parsed(text: str) -> YamlBlock:
    root = YamlBlock()
    path, comments = [root], list[str]()
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comments.append(line.strip())
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{line!r} is no `key: value`")
        del path[len(match[1]) // 2 + 1 :]
        block = path[-1].keys[match[2]] = YamlBlock(match[3] or "", comments)
        path.append(block)
        comments = []
    return root


def _lay(under: YamlBlock, over: YamlBlock) -> None:
    for key, block in over.keys.items():
        present = under.keys.get(key)
        if present is None:
            first = key in ("type", "with")  # where people look for it
            under.keys = {key: block, **under.keys} if first else {**under.keys, key: block}
        elif block.keys and present.keys:
            present.comments += block.comments
            _lay(present, block)
        elif block.value.startswith("[") and present.value.startswith("["):
            present.value = f"{present.value[:-1]}, {block.value[1:]}"
        else:
            under.keys[key] = block


def _lines(block: YamlBlock, indent: str) -> Iterable[str]:
    for key, inner in block.keys.items():
        yield from (f"{indent}{comment}" for comment in inner.comments)
        yield f"{indent}{key}: {inner.value}".rstrip()
        yield from _lines(inner, f"{indent}  ")

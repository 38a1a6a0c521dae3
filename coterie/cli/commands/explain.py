"""`coterie explain`: what a configuration means, part by part, key by key and word by word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.comlrl import FromCommand, configured, from_option
from coterie.cli.commands.config import flow
from coterie.cli.interrupt import interruptible
from coterie.cli.options import json_option, layer_options, overrides, plugin_option
from coterie.cli.output import columns, print_json, table
from coterie.viewing.text import LONGEST_ERROR, cut, harmless, message

if TYPE_CHECKING:
    from coterie.analysis.explained_keys import ExplainedKey
    from coterie.analysis.explained_prompts import ExplainedPrompt
    from coterie.analysis.explanation import Explanation, LoadedPlugin, ObserverCall, ServedPart
    from coterie.analysis.prompt_origins import PromptPart
    from coterie.comlrl import Flags

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
LONGEST_VALUE = 40
"""Characters of a value in the table of keys."""
NAMES = 4
"""Inputs of a kind that the table of prompts names."""


@click.command(cls=FromCommand, short_help="Show what serves, reads and writes what of a configuration.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--keys", "all_keys", is_flag=True, help="List every key: value, reader, origin.")
@click.option("--key", "path", metavar="PATH", help="Show one key, or those of one table, in full.")
@click.option("--prompt", "role", metavar="ROLE", help="Show a role's prompts, each word with its origin.")
@click.option("--task", metavar="N", type=int, default=0, show_default=True, help="Of the train split.")
@layer_options
@from_option
@json_option
@plugin_option
def command(
    source: str,
    settings: tuple[str, ...],
    all_keys: bool,
    path: str | None,
    role: str | None,
    as_json: bool,
    flags: Flags | None,
    **options: Any,
) -> None:
    """Explain a configuration, without a model: which plugin serves each part, which functions hooks call,
    who reads each key, and what of each role's prompt comes from where.

    The prompts are those of the first two turns of a train task. Its answers are made up: the oracle's with
    errors, or empty ones, whose programs run in the sandbox. Nothing is scored, and no coach or expert is
    asked. What of a prompt depends on what is tried: each input is changed, and the role writes it again.
    Of a run folder it explains the run as it was made.

    \b
        coterie explain plan_path --with per_role
        coterie explain plan_path --key trainer.micro_tokens
        coterie explain plan_path --prompt executor
    """
    from coterie.analysis.explained_keys import select
    from coterie.analysis.explanation import explain

    of_keys = (all_keys or path is not None) and role is None
    with interruptible(at_once=True):  # a plugin's methods are called
        explanation = explain(
            configured(source, settings, flags),
            overrides=overrides(settings),
            prompts=not of_keys,
            tokenizers=as_json or role is not None,
            role=role,
            **options,
        )
    if path is not None:
        explanation.keys = select(explanation.keys, path)
    if as_json:
        print_json(explanation.as_dict())
    elif path is not None:
        click.echo("\n\n".join(_key(key) for key in explanation.keys))
    elif all_keys:
        rows = [
            (key.path, cut(flow(key.value), LONGEST_VALUE), key.reader or "nobody", key.origin)
            for key in explanation.keys
        ]
        click.echo(table(("key", "value", "read by", "set by"), rows))
    elif role is not None:
        click.echo("\n\n".join(_prompt(prompt) for prompt in explanation.prompts))
        _echo_missing(explanation)
    else:
        _show(explanation)


# ---------------------------------------------------------------------------------------------- the overview


def _show(explanation: Explanation) -> None:
    """Print the parts, the hooks, the prompts and where the keys' values come from."""
    title = explanation.name + (f" ({explanation.folder})" if explanation.folder else "")
    parts = [
        (part.path, f"{part.kind} '{part.plugin}'",
         _package(part) + (f" (made with {part.recorded})" if part.recorded else ""), _place(part),
         part.chosen_by)
        for part in explanation.parts
    ]  # fmt: skip
    click.echo(f"{click.style(title, bold=True)}\n")
    click.echo(table(("part", "served by", "of", "file", "chosen by"), parts))
    click.echo("\n" + "\n".join(_hooks(explanation)))
    if explanation.prompts:
        click.echo(f"\nprompts of task {explanation.task}; the answers are {explanation.answers}")
        rows = [
            (prompt.role, str(prompt.turn + 1), f"{prompt.characters:,}", ", ".join(_shares(prompt)))
            for prompt in explanation.prompts
        ]
        click.echo(table(("role", "turn", "characters", "from"), rows))
    click.echo("\n" + _origins(explanation.keys))
    _echo_missing(explanation)


def _package(of: ServedPart | ObserverCall | LoadedPlugin) -> str:
    """The distribution with its version."""
    return " ".join(filter(None, (of.distribution, of.version)))


def _place(part: ServedPart | ObserverCall) -> str:
    """The file, from its outermost package on, and the line."""
    file = Path(part.file)
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    shown = file.relative_to(top) if top != file.parent else file
    return f"{shown}:{part.line}" if part.file and part.line else part.file and str(shown)


def _hooks(explanation: Explanation) -> Iterator[str]:
    """The functions that observe a run, and the plugins that are loaded beside Coterie's."""
    for call in explanation.observers:
        place = _place(call) or "file unknown"
        yield f"{call.hook}: {call.function} of {_package(call)} ({place}), {call.when}"
    if not explanation.observers:
        yield "hooks: no plugin observes steps or episodes"
    for plugin in explanation.loaded:
        package = _package(plugin)
        if plugin.errors:
            yield f"{click.style('broken', fg='red')}: {package} is left out"
            lines = [line for error in plugin.errors for line in message(error, LONGEST_ERROR).splitlines()]
            yield from (f"  {line.strip()}" for line in lines)
        elif plugin.distribution != "coterie":
            serves = ", ".join(plugin.serves) or "nothing here"
            yield f"loaded: {package} serves {serves}; its hooks: {', '.join(plugin.hooks)}"


def _shares(prompt: ExplainedPrompt) -> Iterator[str]:
    """What a prompt is made of, the largest share first."""
    sizes: Counter[str] = Counter()
    names: dict[str, dict[str, None]] = {}
    for part in (part for each in prompt.messages for part in each.parts):
        kind = "its role's text" if part.kind == "role" else str(part.kind)
        sizes[kind] += len(part.text)
        names.setdefault(kind, {}).update(dict.fromkeys(part.names))
    for kind, size in sizes.most_common():
        named = list(names[kind])
        inputs = ", ".join(named[:NAMES]) + (", ..." if len(named) > NAMES else "")
        text = f"{kind} {100 * size / max(prompt.characters, 1):.0f}%"
        yield f"{text} ({inputs})" if named and kind != "feedback" else text


def _origins(keys: Sequence[ExplainedKey]) -> str:
    from coterie.analysis.explained_keys import by_origin

    counts = ", ".join(f"{count} by {origin}" for origin, count in by_origin(keys).items())
    unread = [key.path for key in keys if not key.reader]
    text = f"{len(keys)} keys, set {counts} (--keys lists them, --key PATH shows one)"
    return text + (f"\nnobody reads {', '.join(unread)}" if unread else "")


def _echo_missing(explanation: Explanation) -> None:
    for text in explanation.missing:
        click.echo(harmless(f"not shown: {text}"))


# --------------------------------------------------------------------------------------------------- the keys


def _key(key: ExplainedKey) -> str:
    default = "required" if key.required else flow(key.default) if key.allowed and key.declared else ""
    facts = [
        ("value", flow(key.value)),
        ("set by", key.origin),
        ("read by", key.reader or "nobody"),
        ("declared in", key.declared),
        ("allowed", key.allowed),
        ("default", default),
        ("meaning", key.meaning),
        ("resume", key.may_change and f"a resumed run may change it: {key.may_change}"),
    ]
    head = click.style(harmless(key.path), bold=True)
    return f"{head}\n" + columns([fact for fact in facts if fact[1]], indent=2)


# ------------------------------------------------------------------------------------------------ the prompts


def _prompt(prompt: ExplainedPrompt) -> str:
    """A prompt line by line: beside each line the letters of what it comes from, and their meaning below."""
    letters: dict[tuple[Any, ...], str] = {}
    parts = prompt.text or [part for message in prompt.messages for part in _framed(message)]
    for part in parts:
        letters.setdefault(_identity(part), _letter(len(letters)))
    tokens = "" if prompt.tokens is None else f", {prompt.tokens:,} tokens"
    policy = f"policy {prompt.policy}" if prompt.policy else "no policy"
    title = f"{prompt.role}, turn {prompt.turn + 1}, {policy}{tokens}"
    lines = [(" ".join(dict.fromkeys(used)), line) for used, line in _lines(parts, letters)]
    width = max((len(used) for used, _ in lines), default=0)
    body = "\n".join(f"  {click.style(f'{used:<{width}}', dim=True)}  {line}" for used, line in lines)
    legend = columns([(letter, _meaning(*of)) for of, letter in letters.items()], indent=2)
    decides = f"\n  its form also depends on: {', '.join(prompt.decides)}" if prompt.decides else ""
    return f"{click.style(title, bold=True)}\n{body}\n\n{legend}{decides}"


def _framed(message: Any) -> list[PromptPart]:
    """A message's parts after a line with its role, where the text of the chat format is not known."""
    from coterie.analysis.prompt_origins import PromptPart

    return [PromptPart(f"[{message.role}]\n", "format"), *message.parts, PromptPart("\n", "format")]


def _lines(parts: Sequence[PromptPart], letters: Any) -> Iterator[tuple[list[str], str]]:
    """(letters, coloured text) of each line."""
    used: list[str] = []
    line = ""
    for part in parts:
        letter = letters[_identity(part)]
        colour = COLOURS[list(letters.values()).index(letter) % len(COLOURS)]
        pieces = part.text.split("\n")
        for index, piece in enumerate(pieces):
            if index:
                yield used, line
                used, line = [], ""
            if piece:
                used.append(letter)
                line += click.style(harmless(piece), fg=colour)
    if line:
        yield used, line


def _identity(part: PromptPart) -> tuple[Any, ...]:
    return part.kind, part.names, part.writer, part.replaced_by


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"{chr(ord('a') + number // 26 - 1)}{number % 26}"


def _meaning(kind: str, names: tuple[str, ...], writer: str, replaced_by: str) -> str:
    named = ", ".join(names)
    texts = {
        "observation": f"{writer}: {named}",
        "feedback": f"{writer}: {named}",
        "comment": f"{writer}: {named}",
        "history": named,
        "setting": f"{named}, a setting of {writer}",
        "role": f"{writer}: its text" + (f", which {replaced_by} would replace" if replaced_by else ""),
        "earlier": f"{writer}: an earlier prompt",
        "answer": f"{writer}: its earlier answer",
        "tools": f"{writer}: what the chat format says of {named}",
        "format": f"{writer or 'role of the message'}" + (f": {named}" if named else ""),
    }
    return texts[kind]

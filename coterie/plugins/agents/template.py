"""The role `template`: a prompt in Jinja and a parser by name, without Python."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field, model_validator

from coterie.core.errors import ConfigError, PolicyFault, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.discovery.members import HasFields

ParserName = Literal["text", "strip", "number", "choice", "json", "regex", "code", "boxed"]
Parser = Callable[[str], Any]

_NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d+)?")
_OPENING = re.compile(r"[{\[]")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def make_parser(name: ParserName, pattern: str | None = None, choices: Sequence[str] = ()) -> Parser:
    """The parser with its settings bound."""
    if name == "regex":
        compiled = re.compile(pattern or "", re.DOTALL)
        return lambda text: last_match(text, compiled)
    if name == "choice":
        return lambda text: last_choice(text, choices)
    plain: dict[str, Parser] = {
        "text": str,
        "strip": str.strip,
        "number": last_number,
        "json": last_json,
        "code": last_code,
        "boxed": last_boxed,
    }
    return plain[name]


def last_number(text: str) -> int | float:
    """The last number of the text: `1,234`, `-0.5`, `2e3`."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        raise PolicyFault("no number in the answer")
    digits = numbers[-1].replace(",", "")
    if len(digits) > 400:
        raise PolicyFault("the number has more than 400 digits")
    number = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
    if not math.isfinite(number):
        raise PolicyFault(f"{digits} is no finite number")
    return number


def last_choice(text: str, choices: Sequence[str]) -> str:
    """The choice mentioned last, as a whole word in any case; of choices that end at one place the
    longest."""

    def ends(choice: str) -> int:
        mentions = list(re.finditer(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE))
        return mentions[-1].end() if mentions else -1

    end, _, choice = max((ends(choice), len(choice), choice) for choice in choices)
    if end < 0:
        raise PolicyFault(f"the answer names none of: {', '.join(choices)}")
    return choice


def last_json(text: str) -> Any:
    """The last complete JSON object or array that isn't inside another."""
    decoder, values, end = json.JSONDecoder(), [], 0
    for opening in itertools.islice(_OPENING.finditer(text), 2000):  # bounds the time
        if opening.start() >= end:
            try:
                value, end = decoder.raw_decode(text, opening.start())
                values.append(value)
            except ValueError:
                continue
            except RecursionError:  # nested deeper than any answer: skip it instead of trying every bracket
                end = opening.start() + 1000
    if not values:
        raise PolicyFault("no JSON object or array in the answer")
    return values[-1]


def last_match(text: str, pattern: re.Pattern[str]) -> Any:
    """The last match: its named groups as a table, else its first group, else its whole text."""
    matches = list(pattern.finditer(text))
    if not matches:
        raise PolicyFault(f"the answer doesn't match {pattern.pattern!r}")
    match = matches[-1]
    return match.groupdict() or (match[1] if pattern.groups else match[0])


def last_code(text: str) -> str:
    """The last fenced block."""
    blocks = _FENCE.findall(text)
    if not blocks:
        raise PolicyFault("no fenced code block in the answer")
    return str(blocks[-1])


def last_boxed(text: str) -> str:
    r"""The content of the last \boxed{...}, braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        raise PolicyFault("no \\boxed{} in the answer")
    depth, content = 1, start + len("\\boxed{")
    for end in range(content, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[content:end].strip()
    raise PolicyFault("the last \\boxed{ is never closed")


VARIABLES = ("role", "turn", "notes", "history", "actions", "observation")
"""The variables of every template, besides the fields of the observation."""


class TemplateRole(Plugin):
    """A role whose prompt is a template.

    Variables: the fields of the observation (with `team_task`, those of the record), `role`, `turn` (counted
    from 0), `notes` (the transition mode's feedback sentences), `history` (this role's earlier actions, each
    with turn, text and parsed), `actions` (every other role's latest text by name; "" before its first
    action), `observation`. An undefined variable is an error, never an empty string in the prompt.

    Newlines and spaces outside of tags stay as written, but for one newline at the end; `{%-` and `-%}`
    remove those beside a tag.
    """

    class Config(PluginConfig):
        prompt: str = Field(description="Jinja template of the user message.", examples=["{{ question }}"])
        system: str | None = Field(None, description="Jinja template of the system message.")
        parser: ParserName = Field("text", description="Reads the answer.")
        pattern: str | None = Field(
            None, description="For `regex`: the last match counts, or its first group."
        )
        choices: tuple[str, ...] = Field((), description="For `choice`.")
        remembers: bool = Field(
            False,
            description="The prompt is a conversation: earlier prompts and answers of this role come first.",
        )

        @model_validator(mode="after")
        def _fits_the_parser(self) -> TemplateRole.Config:
            for setting, parser in (("pattern", "regex"), ("choices", "choice")):
                if bool(getattr(self, setting)) != (self.parser == parser):
                    raise ValueError(f"'{setting}' goes with parser: {parser}, and only with it")
            if self.pattern is not None:
                try:
                    re.compile(self.pattern)
                except re.error as error:
                    raise ValueError(f"'pattern' is no regular expression: {error}") from None
            return self

    config: Config

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.remembers = config.remembers
        self._team = tuple(build.run.team.roles)
        self._parser = make_parser(config.parser, config.pattern, config.choices)
        # Jinja's own defaults. Trimming around blocks eats newlines that the author wrote; a trailing newline
        # is what YAML's `|` adds and not the author's.
        jinja = ImmutableSandboxedEnvironment(
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=False,
            lstrip_blocks=False,
            keep_trailing_newline=False,
        )
        texts: dict[Literal["system", "prompt"], str] = {"prompt": config.prompt}
        if config.system is not None:
            texts = {"system": config.system, **texts}
        environment = None if build is None else build.environment
        fields = environment.fields if isinstance(environment, HasFields) else None
        trees = {name: self._syntax(jinja, name, text) for name, text in texts.items()}
        for name, tree in trees.items():
            self._check(name, tree, fields)
        self._shows_feedback = any("notes" in meta.find_undeclared_variables(tree) for tree in trees.values())
        self._templates = {name: jinja.from_string(text) for name, text in texts.items()}

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """A system message, where it has a template, and a user message.

        Raises:
            ConfigError: a variable is undefined; there is feedback, and no template shows `notes`.
        """
        if role_input.feedback and not self._shows_feedback:
            raise ConfigError(
                "the prompt has no place for the feedback of the transition mode",
                path=self.build.path,
                why=f"the feedback is: {role_input.feedback[-1]!r}",
                fix="add {% for note in notes %}{{ note }}{% endfor %}, or set transition: none",
            )
        variables = self._variables(role_input)
        return [
            {"role": "system" if name == "system" else "user", "content": self._fill(name, variables)}
            for name in self._templates
        ]

    def without_feedback(self) -> str:
        """The template, where it has no place for feedback."""
        return "" if self._shows_feedback else f"{self.build.path}.prompt without `notes`"

    def parse(self, text: str, observation: Any) -> Any:
        """The answer as the parser reads it.

        Raises:
            PolicyFault: the parser can't read the answer.
        """
        return self._parser(text)

    def _variables(self, role_input: RoleInput) -> dict[str, Any]:
        fields = _fields(role_input.observation)
        texts = fields.pop("actions", {})
        history = [
            {"turn": entry.turn, "text": entry.action.text, "parsed": entry.action.parsed}
            for entry in role_input.history
        ]
        return {
            **fields,
            "observation": role_input.observation,
            "role": role_input.role,
            "turn": role_input.turn,
            "notes": list(role_input.feedback),
            "history": history,
            "actions": {**dict.fromkeys(self._team, ""), **texts},
        }

    def _fill(self, name: Literal["system", "prompt"], variables: Mapping[str, Any]) -> str:
        try:
            return self._templates[name].render(variables)
        except UndefinedError as error:
            raise ConfigError(
                f"the template uses an undefined variable: {error}",
                path=f"{self.build.path}.{name}",
                fix="use one of: " + ", ".join(sorted(variables)),
            ) from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ConfigError(
                "the template fails", path=f"{self.build.path}.{name}", why=f"{type(error).__name__}: {error}"
            ) from None

    def _syntax(self, jinja: ImmutableSandboxedEnvironment, name: str, text: str) -> nodes.Template:
        try:
            jinja.compile(text)  # compiling, unlike parsing, finds unknown filters and tests
            return jinja.parse(text)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the template is wrong in line {error.lineno}: {error.message}",
                path=f"{self.build.path}.{name}",
            ) from None

    def _check(self, name: str, tree: nodes.Template, fields: Sequence[str] | None) -> None:
        """Check the names of variables and roles before the first prompt.

        Args:
            fields: fields of the environment's observations; None where it doesn't declare them.
        """
        path = f"{self.build.path}.{name}"
        if fields is not None:
            known = {*VARIABLES, *fields}
            for variable in sorted(meta.find_undeclared_variables(tree) - known):
                raise ConfigError(
                    f"the template uses an unknown variable '{variable}'",
                    path=path,
                    fix=did_you_mean(variable, known),
                )
        lookups = [(lookup.node, lookup.attr) for lookup in tree.find_all(nodes.Getattr)]
        lookups += [
            (lookup.node, lookup.arg.value)
            for lookup in tree.find_all(nodes.Getitem)
            if isinstance(lookup.arg, nodes.Const)
        ]
        roles = [
            str(key)
            for table, key in lookups
            if isinstance(table, nodes.Name) and table.name == "actions" and not hasattr(dict, str(key))
        ]
        for role in roles:
            if role not in self._team:
                raise ConfigError(
                    f"the template uses the actions of '{role}', which is not in the team",
                    path=path,
                    fix=did_you_mean(role, self._team),
                )


def _fields(observation: Any) -> dict[str, Any]:
    """The observation's fields by name: a mapping's items, a dataclass's fields, else none."""
    if isinstance(observation, Mapping):
        return dict(observation)
    if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        return {field.name: getattr(observation, field.name) for field in dataclasses.fields(observation)}
    return {}

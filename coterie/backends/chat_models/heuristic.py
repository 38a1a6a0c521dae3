"""The chat model `heuristic`: rules that score what a prompt shows, without a network or a model."""

from __future__ import annotations

import ast
import itertools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationInfo, model_validator

from coterie.backends.remote.secrets import path_of
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import ChatAnswer, ChatRequest

# ------------------------------------------------------------------------------------- equalities in a text

LONGEST = 200
"""Most characters of one side; a longer one is not read."""
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_LATEX = ((re.compile(r"\\(?:times|cdot)\b"), "*"), (re.compile(r"\\div\b"), "/"), (re.compile(r"[$]"), " "))
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_OTHER = re.compile(r"[<>!:≠≈]=?|=[<>]|={2,}|≤|≥")
"""Signs that are no equality; what stands at both sides of one is not compared."""
_END = re.compile(r"[\d\s.+\-*/()]*$")
_BEGINNING = re.compile(r"[\d\s.+\-*/()]*")
_LETTER = re.compile(r"[\w\\^%!\[\]{}]")
"""A character that binds a number to something that is no number: `2x`, `x^2`."""

_OPERAND = re.compile(r"(?:\b[A-Za-z]|[)\]}\d])\s*$")
"""What a minus after it is taken from: `x -3`; after a word, `-3` is a number."""


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_SUM = re.compile(r"[\d(][\d\s.+\-*/()]*")
_SPELT = re.compile(r"(?<=\d) +(?=\d)")
"""Blanks between digits: models that read words write `1 2` for 12."""
_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")


class Sum(NamedTuple):
    """A number or a sum of numbers, without blanks."""

    text: str
    value: Fraction


def last_sum(text: str) -> Sum | None:
    """The last number or sum in a text; digits with blanks between them are one number."""
    for match in reversed(list(_SUM.finditer(text.translate(_SAME)))):
        written = _ZEROS.sub("", _SPELT.sub("", match[0])).strip().rstrip(".").strip()
        value = _value(written) if len(written) <= LONGEST else None
        if value is not None:
            return Sum("".join(written.split()), value)
    return None


class Equality(NamedTuple):
    """Two sides that a text says are equal."""

    text: str
    true: bool


def equalities(text: str) -> list[Equality]:
    """All equalities between two numbers or sums, of which one has an operator; chains give several."""
    text = text.translate(_SAME)
    for pattern, sign in _LATEX:
        text = pattern.sub(sign, text)
    text = _THOUSANDS.sub("", text)
    parsed: list[Equality] = []
    for line in re.split(r"[\n;,]|\. ", _OTHER.sub("\n", text)):
        sides = line.split("=")
        for before, after in itertools.pairwise(sides):
            left, right = _left(before), _right(after)
            if left and right and not (_is_number(left) and _is_number(right)):
                first, second = _value(left), _value(right)
                if first is not None and second is not None:
                    parsed.append(Equality(f"{left} = {right}", _equal(left, right, first, second)))
    return parsed


def _left(side: str) -> str:
    """The sum at the end of a text; empty where it belongs to a larger one."""
    match = _END.search(side[-LONGEST:])
    written = match[0] if match is not None else ""
    before = side[: len(side) - len(written)]
    bare = written.strip()
    # `x + 3 =` and `2x - 1 =`: a part of a sum with a letter. `so 3 + 4 =` is whole.
    joined = bool(before) and (not written[:1].isspace() and _LETTER.match(before[-1]) is not None)
    minus = bare[:1] == "-" and (bare[1:2].isspace() or _OPERAND.search(before) is not None)
    unfinished = bare[:1] in ("+", "*", "/") or minus
    return "" if joined or unfinished else bare.strip(".").strip()


def _right(side: str) -> str:
    """The sum at the beginning of a text; empty where it belongs to a larger one."""
    match = _BEGINNING.match(side[:LONGEST])
    written = match[0] if match is not None else ""
    after, bare = side[len(written) :], written.strip().rstrip(".").strip()
    joined = bool(after) and not written[-1:].isspace() and _LETTER.match(after[0]) is not None
    return "" if joined or bare[-1:] in ("+", "-", "*", "/", "(") else bare


def _is_number(side: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", side) is not None


def _equal(left: str, right: str, first: Fraction, second: Fraction) -> bool:
    """Equal, or equal when rounded to the decimals of a side that is one number."""
    for side in (left, right):
        decimals = re.fullmatch(r"-?\d+\.(\d+)", side)
        if decimals is not None:
            return abs(first - second) <= Fraction(1, 2 * 10 ** len(decimals[1]))
    return first == second


def _value(side: str) -> Fraction | None:
    """The value of a sum; None: it is none, or has no value."""
    try:
        return _of(ast.parse(side, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
        return None


def _of(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -_of(node.operand) if isinstance(node.op, ast.USub) else _of(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_of(node.left), _of(node.right))
    raise ValueError("no sum of numbers")


# ------------------------------------------------------------------------------------------------ the rules

PARTS = (
    "team", "role", "guidance", "instruction", "seen", "wrote", "tool_output", "files", "outcome", "answer",
)  # fmt: skip
"""The parts of a coach's prompt, each between tags: `<wrote> ... </wrote>`."""
_ACTION = re.compile(r'^<action n="(\d+)">\n(.*?)^</action>$', re.DOTALL | re.MULTILINE)
"""One action in the prompt of a whole trajectory."""
_FAILED = re.compile(
    r"exit code (?!0\b)-?\d+|timed out|was killed|\bTraceback \(most recent call last\)"
    r"|^\w*(?:Error|Exception)(?::|\s*$)",
    re.MULTILINE,
)
END = 1500
"""Last characters of a tool's output in which a failure is looked for."""

Check = Literal[
    "pattern",
    "empty",
    "tool_failed",
    "wrong_equality",
    "right_equality",
    "has_answer",
    "no_answer",
    "repeats",
    "keeps_value",
    "answer_value",
]


class ScoringRule(PluginConfig):
    """A score for what meets a condition."""

    check: Check = Field(
        "pattern",
        description="`pattern`: the part matches; `empty`: it is empty; `tool_failed`: the tool's output "
        "ends in a failure; `wrong_equality`, `right_equality`: the part says `2 + 2 = 5`, or only true "
        "ones; `has_answer`, `no_answer`: the reference answer is shown, and the part has it or not; "
        "`repeats`: what was seen ends with the part; `keeps_value`, `answer_value`: the last sum in the "
        "part has the value of the last one in what was seen, or of the reference answer.",
    )
    roles: tuple[str, ...] = Field((), description="Roles whose actions it is for; empty: all.")
    part: str = Field("wrote", description="A part of the prompt by its tag; empty: the whole last message.")
    pattern: str = Field("", description="Regular expression, searched in the part; for check `pattern`.")
    score: float = Field(ge=0, le=10)
    reason: str = ""

    def check_at(self, path: str) -> None:
        """Refuse what can't be followed; `path` is the rule's.

        Raises:
            ConfigError: an unknown part, or a pattern that is missing, too many or no regular expression.
        """
        if self.part and self.part not in PARTS:
            raise ConfigError(
                f"a prompt has no part '{self.part}'",
                path=f"{path}.part",
                why=f"the parts are {', '.join(PARTS)}; empty is the whole last message",
                fix=did_you_mean(self.part, PARTS),
            )
        if (self.check == "pattern") != bool(self.pattern):
            raise ConfigError(
                "a rule has a pattern if its check is `pattern`, and only then",
                path=path,
                fix="{check: pattern, pattern: '[0-9]+', score: 7, reason: a number}",
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            what = f"{self.pattern!r} is no regular expression"
            raise ConfigError(what, path=f"{path}.pattern", why=str(error)) from None


RULES = (
    ScoringRule(check="empty", score=0, reason="Nothing was written."),
    ScoringRule(check="tool_failed", part="tool_output", score=2, reason="The program failed."),
    ScoringRule(check="wrong_equality", score=2, reason="An equality is wrong"),
    ScoringRule(check="has_answer", score=9, reason="The reference answer appears in what was written."),
    ScoringRule(
        check="no_answer", score=3, reason="The reference answer does not appear in what was written."
    ),
    ScoringRule(check="right_equality", score=8, reason="Every equality is right."),
)


class Heuristic(Plugin):
    """Scores by the first rule that applies, from 0 to 10, in the form that the request asks for.

    It reads the parts of a coach's prompt (`<wrote>`, `<tool_output>`, `<answer>`, ...) and, in the prompt of
    a trajectory, those of each `<action n="1">`. With a schema it answers in JSON that follows it (`score`
    and `reason`, or `scores` with one entry an action), else in the lines PROCESS_SCORE and REASONING. Equal
    requests have equal answers; defaults fit arithmetic.
    """

    class Config(PluginConfig):
        rules: tuple[ScoringRule, ...] = Field(
            RULES, description="The first rule that applies gives the score."
        )
        otherwise: float = Field(5.0, ge=0, le=10, description="The score where no rule applies.")

        @model_validator(mode="after")
        def _can_be_followed(self, info: ValidationInfo) -> Heuristic.Config:
            for number, rule in enumerate(self.rules):
                rule.check_at(f"{path_of(info, 'rules')}.{number}")
            return self

    config: Config
    structured = True

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        prompt = _prompt(request)
        actions = [match[2] for match in _ACTION.finditer(prompt)]
        shared = parts_of(_ACTION.sub("", prompt)) if actions else {}
        rows = [self.scored({**shared, **parts_of(text)}, text) for text in actions or [prompt]]
        if request.schema is None:
            return ChatAnswer(text=_text(rows, bool(actions)), version="rules")
        return ChatAnswer(text=json.dumps(_filled(request.schema, rows, 0)), version="rules")

    def scored(self, parts: Mapping[str, str], whole: str) -> tuple[float, str]:
        """The score of what the parts show, and the reason."""
        for rule in self.config.rules:
            detail = _applies(rule, parts, whole)
            if detail is not None:
                return rule.score, f"{rule.reason}: {detail}." if detail else rule.reason
        return self.config.otherwise, "No rule applies."


def parts_of(prompt: str) -> dict[str, str]:
    """The parts of a prompt by their tags: from a part's first opening tag to its last closing one.

    A tag stands on a line of its own; in other lines a prompt explains what the tags mean.
    """
    parts = {}
    for name in PARTS:
        begin = re.search(rf"^<{name}>$", prompt, re.MULTILINE)
        ends = list(re.finditer(rf"^</{name}>$", prompt, re.MULTILINE))
        if begin is not None and ends and begin.end() <= ends[-1].start():
            parts[name] = prompt[begin.end() : ends[-1].start()].strip()
    return parts


def _prompt(request: ChatRequest) -> str:
    """The last message with a coach's parts: after it, a re-ask may follow. Else the last message."""
    texts = [message["content"] for message in request.messages if message["role"] != "assistant"]
    with_parts = [text for text in texts if "<wrote>" in text]
    return (with_parts or texts or [""])[-1]


def _applies(rule: ScoringRule, parts: Mapping[str, str], whole: str) -> str | None:
    """The detail for the reason, often empty; None: the rule does not apply."""
    role = parts.get("role", "").partition(",")[0]
    if (rule.part and rule.part not in parts) or (rule.roles and role not in rule.roles):
        return None
    text = parts[rule.part] if rule.part else whole
    if rule.check == "pattern":
        return "" if re.search(rule.pattern, text) else None
    if rule.check == "empty":
        return "" if not text.strip() else None
    if rule.check == "tool_failed":
        return "" if _FAILED.search(text[-END:]) else None
    if rule.check in ("repeats", "keeps_value", "answer_value"):
        return "" if _follows(rule.check, text, parts) else None
    if rule.check in ("wrong_equality", "right_equality"):
        written = equalities(text)
        wrong = [equality.text for equality in written if not equality.true]
        if rule.check == "wrong_equality":
            return wrong[0] if wrong else None
        return "" if written and not wrong else None
    if not parts.get("answer"):
        return None
    return "" if _contains(text, parts["answer"]) == (rule.check == "has_answer") else None


def _follows(check: Check, text: str, parts: Mapping[str, str]) -> bool:
    """Whether a text goes on from what was seen, or comes to the answer, by the value of its last sum."""
    seen, written = last_sum(parts.get("seen", "")), last_sum(text)
    if check == "repeats":
        return seen is not None and written is not None and seen.text == written.text
    wanted = seen if check == "keeps_value" else last_sum(parts.get("answer", ""))
    return wanted is not None and written is not None and wanted.value == written.value


def _contains(text: str, answer: str) -> bool:
    """Whether an answer is a part of a text, and not of a longer number or word in it."""
    words = r"\s+".join(re.escape(word) for word in answer.split())
    return re.search(rf"(?<![\w.]){words}(?!\w|\.\d)", text) is not None


def _text(rows: Sequence[tuple[float, str]], trajectory: bool) -> str:
    lines = []
    for number, (score, reason) in enumerate(rows, 1):
        lines += [f"ACTION {number}"] * trajectory + [f"PROCESS_SCORE: {score:g}", f"REASONING: {reason}"]
    return "\n".join(lines)


def _filled(schema: Any, rows: Sequence[tuple[float, str]], at: int, name: str = "") -> Any:
    """A value by a JSON schema: numbers are scores (or the action's number), texts are reasons."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, list):
        kind = next((part for part in kind if part != "null"), None)
    if kind == "object":
        return {
            field: _filled(inner, rows, at, field) for field, inner in schema.get("properties", {}).items()
        }
    if kind == "array":
        return [_filled(schema.get("items"), rows, index) for index in range(len(rows))]
    if kind == "boolean":
        return rows[at][0] >= 5
    if kind == "string":
        return rows[at][1]
    if name in ("n", "action", "index", "number"):
        return at + 1
    return round(rows[at][0]) if kind == "integer" else rows[at][0]

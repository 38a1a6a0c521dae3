r"""How an answer is written, and what the reader of LaTeX would overlook in it.

`plain` gives one spelling to what is written in many ways: `√2`, `\sqrt2` and `\sqrt{2}`. `comparison` says
what is to be compared by value, after it has compared all else: units, bases, brackets and the number of
parts. What it can't read is equal to nothing but itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

# ---- one spelling ------------------------------------------------------------------------------------------

_SIGNS = str.maketrans(
    {
        **{"−": "-", "–": "-", "÷": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "°": r"^\circ "},
        **{"π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm "},
        **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "′": "'", "’": "'", "⁄": "/"},
    }
)
_FORMS = {"<super>": "^{{{}}}", "<sub>": "_{{{}}}"}
_ROOT = re.compile(r"√\s*(?:(\d+|[A-Za-z])|(?=[({]))", re.ASCII)
_SPACE = re.compile(r"(\\\\)|( *\\! *)|\\[,;:> ()\[\]]|~|\\q?quad(?![A-Za-z])|(?<!\\)\$|\s")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z.])\s*")
_BOLD = re.compile(r"\\math(?:bf|it|sf|rm(?=\{[ei]\}))\s*\{([^{}]*)\}")
_TEXT = re.compile(r"\\(?:mathrm|textrm|textbf|textit|textnormal|mbox)\s*(?=\{)")
_NUMBER_AS_TEXT = re.compile(r"\\text\s*\{\s*([-+\d.,/\s]*\d)\s*\}", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(\d|\{[^{}]*\})\s*(\d|\{[^{}]*\})", re.ASCII)
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_AND = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\{])(?<!\{ )(?:and|or)(?![A-Za-z}]))\s*"
)
_LOOSE = re.compile(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) ")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\d{3})+(?!,?\d)|(?: \d{3})+(?! ?\d))", re.ASCII)
_MIXED = re.compile(
    r"(?<![\w.^}])(\d{1,50})(?:\s*\\frac\{(\d{1,50})\}\{(\d{1,50})\}| (\d{1,50})/(\d{1,50})(?!\d))", re.ASCII
)
_REPEATING = re.compile(
    r"(?<!\d)(\d{0,50})\.(\d{0,50})\\(?:overline|bar|dot)\s*(?:\{(\d{1,50})\}|(\d))", re.ASCII
)
_POWER = re.compile(r"([_^])\s*(\d{0,500}\.\d{1,500})(?![\d.])", re.ASCII)
_DECIMAL = re.compile(r"(?<![\d._^])(\d{0,500})\.(\d{1,500})(?![\d.])", re.ASCII)


def plain(text: str) -> str:
    r"""The text in one spelling: signs as commands, no `$`, no commands of size, one sort of space.

    `1\,000`, `1{,}000` and `1,000` are `1000`; `3 1/2` and `3\frac{1}{2}` are `7/2`.
    """
    text = _signs(text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1]}}}" if match[1] else r"\sqrt", text)
    text = _SPACE.sub(lambda match: match[1] or ("" if match[2] else " "), " ".join(text.split()))
    text = " ".join(text.split()).replace("<=", r"\le ").replace(">=", r"\ge ").replace("'", r"^{\prime}")
    text = _TEXT.sub(lambda _: r"\text", _BOLD.sub(r" \1", _SIZE.sub("", text)))
    text = _NUMBER_AS_TEXT.sub(r" \1", text.replace("{,}", ","))
    text = _FRACTION.sub(lambda match: rf"\frac{_braced(match[1])}{_braced(match[2])}", text)
    if r"\choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", f"{{{text}}}")
    text = _thousands(" ".join(_AND.sub(", ", text).split()))
    text = _LOOSE.sub("", text).replace(",", ", ").rstrip(" .,;:")
    return _MIXED.sub(_mixed, _REPEATING.sub(_repeating, text))


def _quotient(above: int, below: int) -> str:
    return rf"(\frac{{{above}}}{{{below}}})"


def _signs(text: str) -> str:
    """Other signs than ASCII's as commands and digits: `²` as `^{2}`, `½` as a fraction, `４` as 4."""

    def form(sign: str) -> str:
        return unicodedata.decomposition(sign).partition(" ")[0]

    def written(sign: str) -> str:
        normal = unicodedata.normalize("NFKC", sign)
        if form(sign) == "<fraction>":
            return r"\frac{{{}}}{{{}}}".format(*normal.split("⁄")) if normal[-1] != "⁄" else sign
        return (normal if len(normal) == 1 else sign).translate(_SIGNS)

    parts = ((name, "".join(map(written, signs))) for name, signs in groupby(text, form))
    return "".join(_FORMS.get(name, "{}").format(part) for name, part in parts)


def _braced(text: str) -> str:
    return text if text.startswith("{") else f"{{{text}}}"


def _thousands(text: str) -> str:
    """Numbers in groups of three digits as one; with commas not in brackets, where `(1,234)` is a pair."""
    depths = list(_depths(text))

    def joined(match: re.Match[str]) -> str:
        pair = "," in match[0] and depths[match.start()]
        return match[0] if pair else match[0].replace(",", "").replace(" ", "")

    return _THOUSANDS.sub(joined, text)


def _repeating(match: re.Match[str]) -> str:
    before, again = match[1] + match[2], match[3] or match[4]
    value = int(before + again) - int(before or "0")
    return _quotient(value, (10 ** len(again) - 1) * 10 ** len(match[2]))


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = int(match[1]), int(match[2] or match[4]), int(match[3] or match[5])
    if above < below:
        alone = match.string.strip("+- ") == match[0]
        return f"{whole * below + above}/{below}" if alone else _quotient(whole * below + above, below)
    # `2\frac{3}{2}` is a product; `2 3/2` is nothing.
    return rf"{whole}\cdot\frac{{{above}}}{{{below}}}" if match[2] else match[0]


# ---- parts -------------------------------------------------------------------------------------------------

_OPENING, _CLOSING = "([{", ")]}"


def _depths(text: str) -> Iterator[int]:
    """For each character the number of brackets around it; a bracket counts itself."""
    depth = 0
    for sign in text:
        depth += sign in _OPENING
        yield depth
        depth -= sign in _CLOSING


def _split(text: str, signs: str) -> list[str]:
    """The parts between signs that are in no bracket."""
    parts, start = [], 0
    for place, depth in enumerate(_depths(text)):
        if not depth and text[place] in signs and text[max(place - 1, 0)] != "\\":
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _inside(text: str) -> tuple[str, str, str] | None:
    r"""Opening, content and closing of a text in brackets: `(1, 2]`, `\{1, 2\}`."""
    match = re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text)
    if match is None or not all(list(_depths(text))[len(match[1]) - 1 : -1]):
        return None
    return match[1], match[2], match[3]


# ---- units and bases ---------------------------------------------------------------------------------------

_NAMES = {
    **dict.fromkeys(("centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("kilometer", "kilometre"), "km"),
    **dict.fromkeys(("meter", "metre"), "m"),
    **dict.fromkeys(("inch", "inche"), "in"),
    **dict.fromkeys(("foot", "feet"), "ft"),
    **dict.fromkeys(("mile",), "mi"),
    **dict.fromkeys(("yard",), "yd"),
    **dict.fromkeys(("pound", "lb"), "lb"),
    **dict.fromkeys(("gram",), "g"),
    **dict.fromkeys(("kilogram",), "kg"),
    **dict.fromkeys(("liter", "litre"), "l"),
    **dict.fromkeys(("second", "sec"), "s"),
    **dict.fromkeys(("minute",), "min"),
    **dict.fromkeys(("hour", "hr"), "h"),
    **dict.fromkeys(("day", "week", "month", "year", "unit", "cent"), ""),
    "mph": "mi per h",
    **dict.fromkeys(("degree", "deg"), "degree"),
    **dict.fromkeys(("dollar",), "$"),
    **dict.fromkeys(("percent", "pct"), "%"),
}
"""Names of units, without the s of the plural, and what each is short for."""
_KNOWN = {*_NAMES, *(short for short in _NAMES.values() if len(short) > 1)}
_JOINING = {"per", "square", "sq", "cubic", "cu", "squared", "cubed"}
_NO_UNIT = {
    word
    for words in (
        "or and not no never maybe if for is where when to at least less most wrong point i pi",
        "base mod modulo power root negative plus minus times over divided factorial twice double",
        "half halves",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
        "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety",
        "hundred thousand million billion trillion lakh crore mil bn dozen score gross",
        "third quarter fourth fifth sixth seventh eighth ninth tenth hundredth thousandth",
    )
    for word in words.split()
}
"""Words that make it another answer; with an s, too."""
_POWER_OF = r"(?:\s*\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?"
_WORDED = re.compile(
    r"(?P<core>.*[\w)}\]|!])\s*"
    r"(?:\\text\s*\{(?P<text>[A-Za-z .,/]+)\}|(?<![A-Za-z\\])(?P<word>[A-Za-z][A-Za-z /]+))" + _POWER_OF,
    re.ASCII,
)
_DEGREES = re.compile(
    r"(?P<core>.*[\w)}\]])\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)(?:\s*(?:\\text\s*)?\{?([CF])\}?)?"
)
_PERCENT = re.compile(r"(?P<core>.*[\w)}\]])\s*\\?%")
_MONEY = re.compile(r"(?:\\\$|(?P<sign>[€£¥]))\s*(?P<core>.+)")
_ANGLE = re.compile(r"\\(?:a?rc)?(?:sin|cos|tan|cot|sec|csc)")
_BASE = re.compile(r"(?P<core>-?\d[0-9A-Z.]*)\s*_\s*\{?\s*(?P<base>\d+)\s*\}?", re.ASCII)


def _unit(text: str) -> tuple[str, str]:
    """The text without its unit, and the unit; "" for none."""
    if match := _PERCENT.fullmatch(text):
        return match["core"], "%"
    if match := _MONEY.fullmatch(text):
        return match["core"], match["sign"] or "$"
    if (match := _DEGREES.fullmatch(text)) and not _ANGLE.search(text):
        return match["core"], "degree" + (match[2] or "")
    match = _WORDED.fullmatch(text)
    if not match or match["core"].startswith(r"\text"):
        return text, ""
    words = re.split(r"[ ,.]+", (match["text"] or match["word"]).replace("/", " per ").strip(" .,"))
    names = [_name(word) for word in words]
    if match["word"] and not all(word.removesuffix("s") in _KNOWN or word in _JOINING for word in words):
        return text, ""  # letters without \text are variables
    spoken = {word.lower() for word in words}
    if _NO_UNIT & {*names, *spoken, *(word.removesuffix("s") for word in spoken)} or not {*names} - _JOINING:
        return text, ""
    return match["core"], _in_order(names, match["power"] or "")


def _name(word: str) -> str:
    low = word if len(word) < 3 else word.lower().removesuffix("s")
    return _NAMES.get(low) or low


def _in_order(names: list[str], power: str) -> str:
    """`square cm`, `cm squared` and `cm^2` as `cm2`."""
    for word, number in (
        ("square", "2"),
        ("sq", "2"),
        ("squared", "2"),
        ("cubic", "3"),
        ("cu", "3"),
        ("cubed", "3"),
    ):
        if word in names:
            names, power = [name for name in names if name != word], number
    return " ".join(names) + power


# ---- comparisons -------------------------------------------------------------------------------------------

_RELATION = re.compile(r"[<>]|\\(?:[lg]e(?:q|qslant)?|[lg]t|neq?)(?![A-Za-z])")
_IN = re.compile(r"\\in(?![A-Za-z])|:=|==")
_UNREADABLE = re.compile(
    r"(?<![\w.^}\\])\d[\d.]*(?:\s+\d|\s*\{)"  # the reader adds: `40 2` would be 42
    r"|\d\s*_|\\[lcd]?dots|\.\.|\\[bf]?box|\\not(?![a-z])|\\text\s*\{\s*not\s*\}",
    re.ASCII,
)
_IMAGINARY = re.compile(r"(?<![A-Za-z\\_])[iI](?![A-Za-z=])(?=(\s*\^)?)")
_BOUND = re.compile(r"\\(?:sum|prod|text)|_\s*\{?i|\bi\s*=")


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """What is left to compare by value: two expressions, and sides of the answer's equations.

    Attributes:
        sides: pairs that must be equal where the first has no variable: `43 = 42` is no answer 42.
    """

    answer: str
    reference: str
    sides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """`x = 5 cm`: sides, core and unit."""

    sides: tuple[str, ...]
    core: str
    unit: str = ""

    @property
    def equation(self) -> str:
        return " = ".join((*self.sides, self.core))


@dataclass(frozen=True, slots=True)
class _Written:
    """`(x, y) = (1, 2)`: sides, brackets and parts. Without brackets only the parts have sides."""

    sides: tuple[str, ...]
    brackets: tuple[str, str]
    parts: tuple[_Part, ...]

    @property
    def count(self) -> int:
        r"""How many values; `\pm 3` are two."""
        return sum(2 if re.search(r"\\[pm]{2}(?![A-Za-z])", part.core) else 1 for part in self.parts)

    @property
    def units(self) -> set[str]:
        return {part.unit for part in self.parts} - {""}

    @property
    def equations(self) -> tuple[tuple[str, str], ...]:
        r"""Each earlier side with the last one; not where their units differ, as in `0.42 = 42\%`."""
        pairs = []
        for part in self.parts:
            for side, unit in map(_unit, part.sides):
                if unit == part.unit or (part.unit != "%" and not unit):
                    pairs.append((side, part.core))
        return (*pairs, *((side, self.text(equations=False)) for side in self.sides))

    def text(self, *, equations: bool) -> str:
        parts = (part.equation if equations else part.core for part in self.parts)
        text = ", ".join(parts).join(self.brackets)
        return " = ".join((*self.sides, text)) if equations else text


def comparison(answer: str, reference: str) -> AnswerComparison | bool:
    """What is to be compared by value; or the result where that is known without."""
    answer, reference = plain(answer), plain(reference)
    if answer == reference:
        return bool(answer)
    if _same_base(answer, reference):
        return True
    if _UNREADABLE.search(answer) or _UNREADABLE.search(reference):
        return False
    given, expected = _read(answer), _read(reference)
    related = any(map(_RELATION.search, (answer, reference)))  # `x < 2` is an interval, too
    lists = {given.brackets, expected.brackets} <= {("", ""), (r"\{", r"\}")}
    if not related and (given.count != expected.count or not (lists or given.brackets == expected.brackets)):
        return False
    if given.units and expected.units and given.units != expected.units:
        return False
    if any(r"\circ" in written.text(equations=True) for written in (given, expected)):
        return False  # the reader drops degrees
    equations, wanted = any((expected.sides, *(part.sides for part in expected.parts))), ""
    if expected.units == {"%"} and not given.units:
        if len(expected.parts) > 1:
            return False
        wanted = rf"\frac{{{expected.text(equations=False)}}}{{100}}"
    return AnswerComparison(
        answer=_exact(given.text(equations=equations)),
        reference=_exact(wanted or expected.text(equations=equations)),
        sides=() if equations else tuple((_exact(side), _exact(last)) for side, last in given.equations),
    )


def _read(text: str) -> _Written:
    text = _IN.sub("=", text)
    parts = _split(text, ",;")
    if len(parts) == 1:
        *sides, last = _split(text, "=")
        brackets = _inside(last)
        if brackets and len(inner := _split(brackets[1], ",;")) > 1:
            return _Written(tuple(sides), (brackets[0], brackets[2]), tuple(map(_part, inner)))
    return _Written((), ("", ""), tuple(map(_part, parts)))


def _part(text: str) -> _Part:
    *sides, last = _split(text, "=")
    core, unit = _unit(last)
    return _Part(tuple(sides), core, unit)


def _same_base(answer: str, reference: str) -> bool:
    """Whether the reference is a number in a base, and the answer too: the problem names the base."""
    given, expected = _BASE.fullmatch(answer), _BASE.fullmatch(reference)
    if expected is None:
        return False
    digits, base = (given["core"], given["base"]) if given else (answer, expected["base"])
    return (digits.lstrip("0"), int(base)) == (expected["core"].lstrip("0"), int(expected["base"]))


def _exact(text: str) -> str:
    """Decimals as fractions, so that 0.333333 isn't a third; and `I` for an i that counts nothing."""
    text = _DECIMAL.sub(
        lambda match: _quotient(int(match[1] + match[2]), 10 ** len(match[2])), _POWER.sub(r"\1{\2}", text)
    )
    # The reader loses the exponent of `I^2`, not that of `(I)^2`.
    return text if _BOUND.search(text) else _IMAGINARY.sub(lambda match: "(I)" if match[1] else "I", text)

"""What models and run folders say, as text that can do nothing to a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ud800-\uf8ff\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U0010ffff]"
)
"""Characters that move the cursor, change colours, hide or turn text, or are seen as nothing, and those
without a meaning of their own: private ones and halves of pairs. Tabs and newlines stay. The report's
`text.js` has the same.
"""
MOST_MARKS = 8
"""Combining characters in a row that stay: more would be piled over the lines around them."""
_FOREIGN = re.compile(f"[^\x00-\u02ff]{{{MOST_MARKS + 1},}}")
"""Where so many of them may be."""
LONGEST_MESSAGE = 2000
LONGEST_ERROR = 8000


def harmless(text: str) -> str:
    r"""Text in which each control character is written out, as in `\x1b[31m`; lines and tabs stay.

    Of a row of combining characters eight stay, and the number of the rest.
    """
    return written_out(text.replace("\r\n", "\n"), _written)


def written_out(text: str, symbol: Callable[[str], str]) -> str:
    """Text with a symbol for each of `CONTROLS`, and without rows of combining characters."""
    return CONTROLS.sub(lambda match: symbol(match[0]), _FOREIGN.sub(_few_marks, text))


def _few_marks(match: re.Match[str]) -> str:
    """At most `MOST_MARKS` combining characters in a row, and how many more there were."""
    parts, row = [], 0
    for letter in f"{match[0]}.":
        if unicodedata.category(letter)[0] == "M":
            row += 1
            if row > MOST_MARKS:
                continue
        else:
            if row > MOST_MARKS:
                parts.append(f"⟨combining characters: {row - MOST_MARKS:d} more⟩")
            row = 0
        parts.append(letter)
    return "".join(parts)[:-1]


def message(text: str, most: int = LONGEST_MESSAGE) -> str:
    """Text of a message as harmless text; of a longer one its first three quarters and its end.

    A server's answer or a plugin's error may be in it, of any length.
    """
    if len(text) <= most and len(whole := harmless(text)) <= most:
        return whole
    last = most // 4
    first = most - last
    left_out = len(text) - most
    if left_out <= 0:  # it is long since much of it is written out
        return f"{whole[:first]} ... {whole[-last:]}"
    begin, end = harmless(text[:first])[:first], harmless(text[-last:])[-last:]
    return f"{begin} ... ({left_out:,} characters left out) ... {end}"


def one_line(text: object, most: int = 200) -> str:
    """Text as one harmless line of at most so many characters."""
    return cut(" ".join(harmless(str(text)).split()), most)


def cut(text: str, most: int) -> str:
    """Text of at most so many characters; where it was longer, the last three are `...`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shortened(text: str, *, first: int, last: int, width: int) -> list[str]:
    """The first and the last lines of a text, each cut at `width`, and how many lines are left out.

    >>> shortened("a\\nb\\nc\\nd", first=1, last=1, width=9)
    ['a', '... 2 lines left out', 'd']
    """
    lines = harmless(text).expandtabs(4).split("\n")
    out = len(lines) - first - last
    cut = [line if len(line) <= width else f"{line[:width]} ... {len(line) - width:,} more" for line in lines]
    return cut if out <= 1 else [*cut[:first], f"... {out} lines left out", *cut[len(cut) - last :]]


def encodable(text: str, encoding: str) -> str:
    """Text in which characters that an encoding lacks are written out."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def harmless_json(text: str) -> str:
    r"""JSON that means the same, with control characters written as `\u009b`."""
    return CONTROLS.sub(lambda match: _escaped(match[0]) if match[0] > "\x1f" else match[0], text)


def _written(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(letter: str) -> str:
    """A character as JSON writes it; beyond 16 bits as a pair."""
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"

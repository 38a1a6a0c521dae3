"""What models and run folders say, as text that can do nothing to a terminal."""

from __future__ import annotations

import re

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Characters that move the cursor, change colours or hide and turn text, and those that no terminal can show.
Tabs and newlines stay."""


def harmless(text: str) -> str:
    r"""Text in which each control character is written out, as in `\x1b[31m`; lines and tabs stay."""
    return CONTROLS.sub(lambda match: _written(match[0]), text.replace("\r\n", "\n"))


def one_line(text: object, most: int = 200) -> str:
    """Text as one harmless line of at most so many characters."""
    line = " ".join(harmless(str(text)).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


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

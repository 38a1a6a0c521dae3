"""Measures of two texts: lengths, words, and style, as MAGRPO weighs them (arXiv 2508.04652)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.plugins.envs.writing.words import STOP_WORDS, TRANSITIONS

_WORD = re.compile(r"\w+")
_PHRASES = {
    name: re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(phrase) for phrase in phrases)})(?!\w)")
    for name, phrases in TRANSITIONS.items()
}
FIRST_CATEGORY, FURTHER_CATEGORY = 0.4, 0.05
"""Of the transition words' share: for one category, and for each further one."""
TRANSITIONS_SHARE, OVERLAP_SHARE = 0.4, 0.6
"""Of the style."""


@dataclass(frozen=True, slots=True)
class Band:
    """A ratio's value: 1 inside, falling linearly to 0 at the outer ends, no value beyond them."""

    lowest: float
    low: float
    high: float = float("inf")
    highest: float = float("inf")

    def value(self, ratio: float) -> float | None:
        """A share in [0, 1]; None: the ratio is out of range, and the level failed."""
        if not self.lowest <= ratio <= self.highest:
            return None
        if ratio < self.low:
            return (ratio - self.lowest) / (self.low - self.lowest)
        if ratio > self.high:
            return (self.highest - ratio) / (self.highest - self.high)
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingForm:
    """The levels of a kind of text."""

    least: int
    most: int
    """Words that each text may have."""
    length: Band
    """Of the characters of the second text over those of the first."""
    vocabulary: Band
    """Of the distinct words of the second text over those of the first."""
    overlap: float
    """Share of common words (Jaccard, without stop words) that earns the whole overlap."""
    transitions_in_both: bool
    """Whether transition words of the first text count too."""


FORMS: Mapping[str, WritingForm] = {
    "tldr": WritingForm(
        least=8,
        most=256,
        length=Band(1.1, 1.6, 3.2, 5.0),
        vocabulary=Band(1.3, 2.0),
        overlap=0.03,
        transitions_in_both=False,
    ),
    "arxiv": WritingForm(
        least=128,
        most=256,
        length=Band(0.8, 1.3, 1.6, 2.0),
        vocabulary=Band(0.5, 0.7, 1.3, 1.7),
        overlap=0.23,
        transitions_in_both=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Two texts, measured. Levels are shares in [0, 1]; None: it failed, or an earlier one did."""

    words: tuple[int, int]
    """Separated by white space."""
    length_ratio: float
    word_ratio: float
    categories: int
    """Kinds of transition words that occur, of 12."""
    common: float
    """Common words over all words, without stop words."""
    structure: float | None
    length: float | None
    vocabulary: float | None
    style: float | None


def measure(first: str, second: str, form: WritingForm) -> Measures:
    """Measure two texts. A level that fails ends the measuring: later ones have no value.

    A run of white space counts as one character: a text can't be lengthened by spaces.
    """
    first, second = (" ".join(text.split()) for text in (first, second))
    counts = (len(first.split()), len(second.split()))
    length_ratio = len(second) / len(first) if first else 0.0
    distinct = [set(_WORD.findall(text.lower())) for text in (first, second)]
    word_ratio = len(distinct[1]) / len(distinct[0]) if distinct[0] else 0.0
    # Each text by itself: no phrase begins in one and ends in the other.
    kinds = categories(second) | (categories(first) if form.transitions_in_both else frozenset())
    common = overlap(first, second)
    structure = 1.0 if all(form.least <= count <= form.most for count in counts) else None
    length = form.length.value(length_ratio) if structure is not None else None
    vocabulary = form.vocabulary.value(word_ratio) if length is not None else None
    style = None
    if vocabulary is not None:
        transitions = min(1.0, FIRST_CATEGORY + FURTHER_CATEGORY * (len(kinds) - 1)) if kinds else 0.0
        style = TRANSITIONS_SHARE * transitions + OVERLAP_SHARE * min(common / form.overlap, 1.0)
    return Measures(
        words=counts,
        length_ratio=length_ratio,
        word_ratio=word_ratio,
        categories=len(kinds),
        common=common,
        structure=structure,
        length=length,
        vocabulary=vocabulary,
        style=style,
    )


def categories(text: str) -> frozenset[str]:
    """The kinds of transition words in a text; words, not parts of words."""
    line = " ".join(text.lower().replace("\u2019", "'").split())
    return frozenset(name for name, phrase in _PHRASES.items() if phrase.search(line))


def overlap(first: str, second: str) -> float:
    """The share of common words of two texts (Jaccard), without stop words; 0 where there are none."""
    left, right = ({*_WORD.findall(text.lower())} - STOP_WORDS for text in (first, second))
    return len(left & right) / len(left | right) if left | right else 0.0

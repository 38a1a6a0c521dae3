"""Measures of two texts, and findings on them: lengths, words, style, as in MAGRPO (arXiv 2508.04652)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.core.types import Finding

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    "elaboration": (
        *("also", "furthermore", "moreover", "additionally", "besides", "in addition", "as well as"),
        *("what is more", "not only", "along with", "together with"),
    ),
    "example": (
        *("for example", "for instance", "such as", "namely", "including", "in particular", "particularly"),
        *("specifically", "especially", "to illustrate", "notably"),
    ),
    "explanation": (
        *("that is", "in other words", "to clarify", "essentially", "basically", "in essence", "simply put"),
        *("more precisely", "put differently", "fundamentally", "actually"),
    ),
    "cause": (
        *("therefore", "thus", "hence", "consequently", "accordingly", "as a result", "for this reason"),
        *("because of this", "thereby", "due to", "owing to", "thanks to", "so"),
    ),
    "contrast": (
        *("however", "but", "yet", "whereas", "instead", "rather", "conversely", "by contrast"),
        *("in contrast", "on the other hand", "on the contrary", "alternatively", "otherwise"),
    ),
    "sequence": (
        *("first", "firstly", "second", "secondly", "third", "thirdly", "next", "then", "finally", "lastly"),
        *("to begin with", "initially", "subsequently", "afterward", "afterwards", "after that"),
    ),
    "emphasis": (
        *("indeed", "certainly", "clearly", "obviously", "of course", "in fact", "undoubtedly", "surely"),
        *("above all", "most importantly", "significantly", "definitely"),
    ),
    "summary": (
        *("in summary", "in conclusion", "to conclude", "to summarize", "to sum up", "in short", "in brief"),
        *("overall", "ultimately", "all in all", "on the whole", "briefly"),
    ),
    "comparison": (
        *("similarly", "likewise", "equally", "in the same way", "compared to", "compared with", "just as"),
        *("just like", "much like", "in comparison", "analogously"),
    ),
    "concession": (
        *("although", "though", "even though", "despite", "in spite of", "nevertheless", "nonetheless"),
        *("admittedly", "granted", "even so", "still", "regardless"),
    ),
    "condition": (
        *("if", "unless", "provided that", "assuming that", "given that", "as long as", "in case"),
        *("even if", "only if", "whether"),
    ),
    "time": (
        *("when", "while", "before", "after", "until", "since", "during", "meanwhile", "later", "earlier"),
        *("previously", "eventually", "recently", "currently", "at the same time", "simultaneously"),
    ),
}
"""Kind -> words and phrases in lower case."""

_STOP = """
a about all also am an and any are as at be because been being both but by can could did do does each for
from had has have he her here him his how i if in into is it its just may me might more most must my no
not now of on only or other our out over own same shall she should so some such than that the their them
then there these they this those to too up us very was we were what when where which who why will with
would you your
"""
STOP_WORDS = frozenset(_STOP.split())
"""Words that the overlap of two texts leaves out."""


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


def findings(measured: Measures, form: WritingForm) -> tuple[Finding, ...]:
    """The levels in order; those after one that failed are not there."""
    first, second = measured.words
    levels = [
        _finding(
            "structure",
            "Words of each text",
            measured.structure,
            f"the first has {first} and the second {second}, each needs {form.least} to {form.most}",
        )
    ]
    if measured.structure is not None:
        levels.append(_ratio("length", "Length", measured.length, measured.length_ratio, form.length))
    if measured.length is not None:
        levels.append(
            _ratio("vocabulary", "Distinct words", measured.vocabulary, measured.word_ratio, form.vocabulary)
        )
    if measured.vocabulary is not None:
        style = f"Style: {measured.categories} of {len(TRANSITIONS)} kinds of transition words"
        detail = f"{style}; {measured.common:.0%} of the words are in both texts"
        levels.append(Finding(name="style", passed=None, summary=style, details=(detail,)))
    return tuple(levels)


def _ratio(name: str, title: str, value: float | None, ratio: float, band: Band) -> Finding:
    wanted = f"{band.low:g} to {band.high:g}" if math.isfinite(band.high) else f"at least {band.low:g}"
    return _finding(
        name, title, value, f"the second has {ratio:.2f} times the first's, {wanted} is asked for"
    )


def _finding(name: str, title: str, value: float | None, detail: str) -> Finding:
    state = "as asked for" if value == 1.0 else "out of range" if value is None else "near what is asked for"
    return Finding(
        name=name, passed=value == 1.0, summary=f"{title}: {state}", details=(f"{title}: {state}; {detail}",)
    )

"""Word lists of the environment `writing`: transition words by kind, and stop words."""

from __future__ import annotations

from collections.abc import Mapping

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
        *(
            "however",
            "but",
            "yet",
            "whereas",
            "instead",
            "rather",
            "conversely",
            "by contrast",
            "in contrast",
        ),
        *("on the other hand", "on the contrary", "alternatively", "otherwise"),
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

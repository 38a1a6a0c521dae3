"""The measures of two texts: numbers worked out by hand, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.writing.measures import FORMS, TRANSITIONS, Band, categories, measure, overlap

TLDR, ARXIV = FORMS["tldr"], FORMS["arxiv"]
FIRST = "my dog ate the whole cake today again"
"""8 words, 37 characters, 8 distinct."""


def words(count, start=0):
    """Distinct words of three letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join(f"{letters[n // 26 % 26]}{letters[n % 26]}q" for n in range(start, start + count))


@pytest.mark.parametrize(("ratio", "value"), [
    (1.09, None), (1.1, 0.0), (1.35, 0.5), (1.6, 1.0), (2.0, 1.0), (3.2, 1.0), (4.1, 0.5), (5.0, 0.0), (5.01,
    None),
])  # fmt: skip
def test_the_length_of_tldr_has_linear_shoulders(ratio, value):
    assert TLDR.length.value(ratio) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(("ratio", "value"), [
    (0.79, None), (0.8, 0.0), (1.05, 0.5), (1.3, 1.0), (1.6, 1.0), (1.8, 0.5), (2.0, 0.0), (2.01, None),
])  # fmt: skip
def test_the_length_of_arxiv(ratio, value):
    assert ARXIV.length.value(ratio) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(("form", "ratio", "value"), [
    (TLDR, 1.29, None), (TLDR, 1.3, 0.0), (TLDR, 1.65, 0.5), (TLDR, 2.0, 1.0), (TLDR, 50.0, 1.0),
    (ARXIV, 0.49, None), (ARXIV, 0.6, 0.5), (ARXIV, 0.7, 1.0), (ARXIV, 1.3, 1.0), (ARXIV, 1.5, 0.5), (ARXIV,
    1.8, None),
])  # fmt: skip
def test_the_vocabulary(form, ratio, value):
    assert form.vocabulary.value(ratio) == (None if value is None else pytest.approx(value))


@given(st.floats(0, 10), st.floats(0, 10))
def test_bands_are_bounded_and_rise_and_fall_once(left, right):
    low, high = sorted((left, right))
    for band in (TLDR.length, ARXIV.length, ARXIV.vocabulary, TLDR.vocabulary):
        values = [band.value(low) or 0.0, band.value(high) or 0.0]
        assert all(0.0 <= value <= 1.0 for value in values)
        assert high > band.low or values[0] <= values[1]
        assert low < band.high or values[0] >= values[1]


def test_two_summaries_that_fit():
    """Ratio 3 in distinct words, about 2.5 in characters; one common word of 24; two kinds of transitions."""
    second = f"However the cake was also eaten {words(18)}"
    found = measure(FIRST, second, TLDR)
    assert found.words == (8, 24) and found.word_ratio == 3.0
    assert found.length_ratio == pytest.approx(len(second) / 37)
    assert (found.structure, found.length, found.vocabulary) == (1.0, 1.0, 1.0)
    assert found.categories == 2  # contrast and elaboration
    # Without stop words: dog ate whole cake today again | however cake eaten and 18 words; cake is in both.
    assert found.common == pytest.approx(1 / 26)
    assert found.style == pytest.approx(0.4 * (0.4 + 0.05) + 0.6)


def test_the_overlap_is_capped_and_scaled():
    """Less than the cap earns its share: of 100 words one in common is .01 of .03."""
    first, second = f"{words(30)} shared", f"shared {words(69, 100)}"
    found = measure(first, second, TLDR)
    assert found.common == pytest.approx(0.01)
    assert found.style == pytest.approx(0.6 * 0.01 / 0.03)


@pytest.mark.parametrize(("first", "second", "failed"), [
    ("seven words are one too few here", words(20), "structure"), (FIRST, words(257), "structure"), ("", "",
    "structure"), (FIRST, words(8), "length"), (FIRST, words(70), "length"), (FIRST, "word " * 16,
    "vocabulary"),
])  # fmt: skip
def test_a_level_that_fails_ends_the_measuring(first, second, failed):
    found = measure(first, second, TLDR)
    order = ("structure", "length", "vocabulary", "style")
    at = order.index(failed)
    assert all(getattr(found, name) is not None for name in order[:at])
    assert all(getattr(found, name) is None for name in order[at:])


def test_texts_without_words_have_no_vocabulary():
    signs = "! " * 10
    assert measure(signs, "? " * 20, TLDR).vocabulary is None


def test_transition_words_are_words():
    """The original finds `so` in "also" and "some", `if` in "life", `as` in "was"."""
    assert categories("Some life was sold lastingly, a shift of gifts") == frozenset()
    assert categories("So it ended. If not, wait!") == {"cause", "condition"}
    assert categories("ON the\nother   hand") == {"contrast"}
    assert len(TRANSITIONS) == 12
    for name, phrases in TRANSITIONS.items():
        assert all(name in categories(f"x {phrase}, y") for phrase in phrases), name


def test_transition_words_of_the_first_text_count_for_arxiv_alone():
    first = f"However {words(139)}"
    for form, count in ((ARXIV, 1), (TLDR, 0)):
        assert measure(first, words(150, 200), form).categories == count


@pytest.mark.parametrize(("end", "start", "count"), [
    ("so", "me", 1),  # glued, as in the original, it would be "some"
    ("al", "so", 1),  # ... and "also"
    ("in", "short", 0),  # the original finds none either
    ("in ", "short", 0),  # ... and "in short" where white space is between them
    ("as a", "result", 0),
    ("in short", "in fact", 2),
    ("in short", "in short", 1),
])  # fmt: skip
def test_each_text_is_searched_by_itself(end, start, count):
    assert measure(f"{words(130)} {end}", f"{start} {words(150, 200)}", ARXIV).categories == count


BRANCHES = [  # (name, form, first, second, the levels' shares), of the original's decisions in their order
    ("no text", TLDR, "", "", (None, None, None)),
    ("the first is too short", TLDR, words(7), words(20), (None, None, None)),
    ("the second is too long", TLDR, words(8), words(257), (None, None, None)),
    ("the ratio is too small", TLDR, words(20), words(21), (1.0, None, None)),
    ("the ratio is too large", TLDR, words(20), words(101), (1.0, None, None)),
    (
        "at the lower end, and on",
        TLDR,
        f"{words(10)}q",
        f"{' '.join('abcdefghijklmnopqrstuv')}v",
        (1.0, 0.0, 1.0),
    ),
    ("too few distinct words", TLDR, words(20), words(25) + " aaq" * 20, (1.0, 1.0, None)),
    ("some distinct words", TLDR, words(20), words(33), (1.0, 1.0, 0.5)),
    ("many distinct words", TLDR, words(20), words(40), (1.0, 1.0, 1.0)),
    ("the first is too short", ARXIV, words(127), words(160), (None, None, None)),
    ("the second is too short", ARXIV, words(150), words(127), (None, None, None)),
    ("the ratio is too small", ARXIV, words(200), words(159), (1.0, None, None)),
    ("the ratio is too large", ARXIV, words(128), "muchlonger " * 128, (1.0, None, None)),
    ("a ratio of one", ARXIV, words(150), words(150), (1.0, 0.4, 1.0)),
    ("a large ratio", ARXIV, words(130), words(234), (1.0, 0.5, None)),
    ("too many distinct words", ARXIV, f"{words(70)} {words(70)}", words(190), (1.0, 1.0, None)),
    ("many distinct words", ARXIV, f"{words(120)} {words(20)}", words(190), (1.0, 1.0, 0.29)),
    ("few distinct words", ARXIV, words(140), f"{words(95)} {words(95)}", (1.0, 1.0, 0.89)),
    ("too few distinct words", ARXIV, words(140), f"{words(61)} {words(61)} {words(61)}", (1.0, 1.0, None)),
]


@pytest.mark.parametrize(
    ("form", "first", "second", "levels"), [row[1:] for row in BRANCHES], ids=[row[0] for row in BRANCHES]
)
def test_the_levels_have_the_branches_of_the_original(form, first, second, levels):
    found = measure(first, second, form)
    values = (found.structure, found.length, found.vocabulary)
    assert values == tuple(None if level is None else pytest.approx(level, abs=0.011) for level in levels)
    assert (found.style is None) == (levels[-1] is None)


@pytest.mark.parametrize(("kinds", "share"), [(0, 0.0), (1, 0.4), (2, 0.45), (3, 0.5), (12, 0.95)])
def test_the_first_kind_of_transition_words_is_worth_most(kinds, share):
    phrases = [phrases[0] for phrases in list(TRANSITIONS.values())[:kinds]]
    found = measure(words(20), f"{words(45, 100)} {' '.join(phrases)}", TLDR)
    assert (found.categories, found.style) == (kinds, pytest.approx(0.4 * share))


def test_the_overlap_leaves_stop_words_out():
    assert overlap("the cat", "the dog") == 0.0 and overlap("", "") == 0.0 == overlap("the", "the")
    assert overlap("a red cat", "the red dog") == pytest.approx(1 / 3)


def test_the_overlap_reads_capitals_as_the_same_letters():
    assert overlap("Red Cat", "red cat") == 1.0 and overlap("THE Cat", "dog") == 0.0
    assert overlap("The cat", "dog") == overlap("cat", "dog") and overlap("The", "the") == 0.0


@given(st.text(max_size=300), st.text(max_size=300))
def test_levels_are_shares(first, second):
    for form in (TLDR, ARXIV):
        found = measure(first, second, form)
        for value in (found.structure, found.length, found.vocabulary, found.style):
            assert value is None or 0.0 <= value <= 1.0


def test_a_band_without_an_upper_end():
    assert Band(1.0, 2.0).value(1e9) == 1.0 and Band(1.0, 2.0).value(float("inf")) == 1.0


@given(st.lists(st.sampled_from([" ", "  ", "\n\n", "\t", " " * 400]), min_size=40, max_size=40))
def test_spaces_lengthen_no_text(spaces):
    plain = words(40).split()
    padded = "".join(word + space for word, space in zip(plain, spaces, strict=True))
    assert measure(FIRST, padded, TLDR) == measure(FIRST, " ".join(plain), TLDR)

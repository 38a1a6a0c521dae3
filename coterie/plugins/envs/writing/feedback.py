"""Findings on two texts, for transition modes."""

from __future__ import annotations

import math

from coterie.core.types import Finding
from coterie.plugins.envs.writing.measures import TRANSITIONS, Band, Measures, WritingForm


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

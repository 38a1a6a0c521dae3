r"""Forms in which an answer of AIME (a whole number from 0 to 999) is written: 20 right ones, 20 wrong ones.

They were written down before the verifier. Each is a function of the answer, so that any answer can be tried.
What counts, by convention:

- The last `\boxed{...}` counts, whatever precedes or follows it. `\fbox{...}` counts as one.
- Without a box, what follows the last "answer is" or "answer:" counts; without that, a text that is nothing
  but one expression.
- AIME fills its answers up to three digits, so zeros before a number change nothing; neither do `.0`, a plus
  sign, white space, font commands, a unit, degrees, a dollar sign or parentheses around it.
- An equation `m + n = 42` counts by its last side. An unevaluated expression counts by its value.
- A box that is empty, never closed, or holds two candidates is wrong. So is a list, even one that holds the
  right number. No earlier box replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Form = Callable[[int], str]


def _other(answer: int) -> int:
    """Another AIME answer, whose digits differ."""
    return (answer + 137) % 1000


RIGHT: Mapping[str, Form] = {
    "a box": lambda a: rf"\boxed{{{a}}}",
    "a box in dollars": lambda a: rf"So the total is $\boxed{{{a}}}$.",
    "three digits": lambda a: rf"$\boxed{{{a:03d}}}$",
    "a decimal point": lambda a: rf"\boxed{{{a}.0}}",
    "text": lambda a: rf"\boxed{{\text{{{a}}}}}",
    "bold": lambda a: rf"\boxed{{\mathbf{{{a}}}}}",
    "spaces": lambda a: rf"\boxed{{ {a} }}",
    "a sentence": lambda a: f"The answer is {a}.",
    "a sentence in dollars": lambda a: f"Adding up, the final answer is ${a}$",
    "a label": lambda a: f"We count the cases.\n\n**Answer:** {a}",
    "display": lambda a: f"Hence\n\\[\n\\boxed{{{a}}}\n\\]\nas wanted.",
    "the last of two boxes": lambda a: rf"First \boxed{{{_other(a)}}}. No, corrected: \boxed{{{a}}}",
    "an equation": lambda a: rf"\boxed{{m + n = {a}}}",
    "a sum": lambda a: rf"\boxed{{{a + 5} - 5}}",
    "a fraction": lambda a: rf"\boxed{{\dfrac{{{7 * a}}}{{7}}}}",
    "degrees": lambda a: rf"\boxed{{{a}^\circ}}",
    "a unit": lambda a: rf"\boxed{{{a}\text{{ cm}}}}",
    "dollars": lambda a: rf"\boxed{{\${a}}}",
    "parentheses": lambda a: rf"\boxed{{\left({a}\right)}}",
    "a number alone": lambda a: f"{a}\n",
}
"""Every one of them is the answer."""

WRONG: Mapping[str, Form] = {
    "another number": lambda a: rf"\boxed{{{_other(a)}}}",
    "one more": lambda a: rf"\boxed{{{a + 1}}}",
    "one less": lambda a: rf"\boxed{{{a - 1}}}",
    "negated": lambda a: rf"\boxed{{-{a or 1}}}",
    "the last of two boxes": lambda a: rf"First \boxed{{{a}}}. No, corrected: \boxed{{{_other(a)}}}",
    "an empty box": lambda a: rf"The answer is {a}: \boxed{{}}",
    "two candidates": lambda a: rf"\boxed{{{a} \text{{ or }} {_other(a)}}}",
    "two candidates in words": lambda a: rf"\boxed{{{a} or {a + 1}}}",
    "a list": lambda a: rf"\boxed{{{a}, {_other(a)}}}",
    "a pair": lambda a: rf"\boxed{{({a}, {a})}}",
    "plus or minus": lambda a: rf"\boxed{{\pm {a or 1}}}",
    "a digit more": lambda a: rf"\boxed{{{a}1}}",
    "half more": lambda a: rf"\boxed{{{a}.5}}",
    "a seventh": lambda a: rf"\boxed{{\frac{{{a + 1}}}{{7}}}}",
    "a power of ten": lambda a: rf"\boxed{{10^{{{a}}}}}",
    "a letter": lambda a: r"\boxed{x}",
    "an inequality": lambda a: rf"\boxed{{x < {a}}}",
    "never closed": lambda a: rf"so we get \boxed{{{a}",
    "only on the way": lambda a: rf"With ${a}$ cases, the answer is {_other(a)}.",
    "no answer": lambda a: f"There are {a} cases to look at, and I can't decide which of them are possible.",
}
"""None of them is the answer."""

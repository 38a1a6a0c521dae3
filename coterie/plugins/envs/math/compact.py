"""The compact rendering: prompts and messages of a few words, for generated problems and the smallest models.

A word is a digit, a sign or a verb. The roles of the chain hold different information: the first sees the
problem, `has 7 gets 5 loses 3`, and writes what is to be computed, `7 + 5 - 3`; each later action sees
nothing but the message before it and does one operation, `1 2 - 3`, then `9`; the last hands over the number.
So every action is needed, and a fault is one role's.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.math import generated
from coterie.plugins.envs.math.answers import number
from coterie.plugins.envs.math.config import CHAIN, COMPACT_ROLES
from coterie.plugins.envs.math.state import MathObservation, MathState, Writes

_MOST_WORDS = 16
"""Words of another message that a prompt shows."""


def vocabulary() -> Iterable[str]:
    """Every word of prompts and messages."""
    return (*generated.WORDS, *COMPACT_ROLES, "then", ":")


def seen(state: MathState, role: str) -> tuple[str, str]:
    """What a role sees: (the problem in words, the message that it goes on from); "" for neither."""
    last = " ".join(state.transcript[-1].text.split()[:_MOST_WORDS]) if state.transcript else ""
    if role in CHAIN and state.transcript:
        return "", last
    return state.problem.words, last


def prompt(observation: MathObservation) -> str:
    """`problem_solver has 7 gets 5 loses 3 :`, `code_executor then 7 + 5 - 3 :`."""
    then = ["then", observation.shown] if observation.shown or not observation.problem else []
    return " ".join(filter(None, [observation.role, observation.problem, *then, ":"]))


def value(text: str) -> Fraction | None:
    """The value of an expression in words; None where it can't be read."""
    return generated.evaluate(generated.unspell(text))


def answer(text: str, writes: Writes) -> str | None:
    """The number in a message, or for `work` the value of its expression; None where there is none."""
    text = generated.unspell(text)
    result = generated.evaluate(text) if writes == "work" else number(text)
    return None if result is None else str(result)


def read(text: str, writes: Writes) -> str:
    """The message, digits joined.

    Raises:
        PolicyFault: it is no expression, or no number where one is asked for.
    """
    if answer(text, writes) is None:
        raise PolicyFault(f"'{text[:40]}' is no {'expression' if writes == 'work' else 'number'}")
    return generated.unspell(text)


def sound(state: MathState, observation: MathObservation, text: str) -> bool:
    """Whether a message follows from what its role saw, also where that was wrong."""
    wanted = number(state.reference) if observation.problem else value(observation.shown)
    if wanted is None or answer(text, observation.writes) != str(wanted):
        return False
    fewer = len(generated.unspell(text).split()) < len(generated.unspell(observation.shown).split())
    return observation.writes == "answer" or bool(observation.problem) or fewer


def demonstration(
    state: MathState, observation: MathObservation, noise: float, rng: np.random.Generator
) -> str:
    """The oracle's message for what the role sees; where that is unreadable, for the problem itself.

    Each word becomes one of its sort with probability `noise`, unless the message can't be read then.
    """
    source = generated.unspell(observation.shown)
    if observation.problem or value(source) is None:
        source = state.problem.expression
    if observation.writes == "answer":
        message = str(value(source))
    elif observation.role == "problem_solver":
        message = state.problem.expression
    else:
        try:
            message = generated.reduce(source)
        except ValueError:  # less than 0, or a quotient: nothing that words can write
            message = generated.reduce(state.problem.expression)
    words = generated.spell(message).split()
    noisy = " ".join(generated.random_word(rng, word) if rng.random() < noise else word for word in words)
    return " ".join(words) if answer(noisy, observation.writes) is None else noisy

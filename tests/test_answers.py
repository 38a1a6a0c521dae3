"""`coterie.keep_answer` and `known_answer`: what programs answered, beside an episode's scores."""

from __future__ import annotations

import pickle

from coterie import Scores, keep_answer, known_answer
from coterie.answers import KEPT, KNOWN


def test_nobody_keeps_and_nobody_knows() -> None:
    keep_answer("question", 1)
    assert known_answer("question") is None


def test_an_episode_keeps_and_a_replay_knows() -> None:
    scores = Scores()
    kept, known = KEPT.set(scores.answers), KNOWN.set({"question": {"passed": 2}})
    try:
        assert known_answer("question") == {"passed": 2} and known_answer("other") is None
        keep_answer("other", [1])
    finally:
        KEPT.reset(kept)
        KNOWN.reset(known)
    step = Scores()
    step.merge(pickle.loads(pickle.dumps(scores)))  # it may come from another process
    assert step.answers == {"other": [1]}

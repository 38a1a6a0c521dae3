"""Compact pickles: `pickle.loads` makes of them what it makes of others."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st

from coterie.backends.cluster.wire import compact
from coterie.backends.executors.ray.host_client import HostAnswer, HostAnswers, HostRequest, News
from coterie.core.types import Call, Key, Request, Sampling

texts = st.text("a\u00e9\n\U0001f600", max_size=3)
ids = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
keys = st.builds(
    Key,
    task=texts,
    epoch=st.integers(0, 9),
    chain=st.integers(0, 9),
    role=st.sampled_from("ab"),
)
calls = st.builds(
    Call,
    prompt_ids=ids,
    token_ids=ids,
    logprobs=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    version=st.integers(0, 9),
    finish=st.sampled_from(["stop", "length", "abort"]),
    continues=st.booleans(),
)
requests = st.builds(
    Request,
    key=keys,
    policy=texts,
    prompt_ids=ids,
    sampling=st.builds(Sampling, max_new_tokens=st.integers(1, 9)),
    seed=st.integers(0, 2**64 - 1),
)


@given(calls=st.lists(calls, max_size=3), requests=st.lists(requests, max_size=3))
def test_a_value_comes_back(calls, requests):
    back = pickle.loads(compact((calls, requests)))
    assert back == (calls, requests) and [type(each) for each in back[0]] == [Call] * len(calls)


@given(calls=st.lists(calls, max_size=3), requests=st.lists(requests, max_size=3))
def test_messages_come_back_however_they_are_pickled(calls, requests):
    asked = tuple(HostRequest(n, "train", request) for n, request in enumerate(requests))
    news = News({"train": 3}, {"train": 1}, asked, (4, 5), {"p": ["a"]})
    answers = HostAnswers(
        [HostAnswer(n, call) for n, call in enumerate(calls)] + [HostAnswer(9, error=b"x")], {}
    )
    assert pickle.loads(pickle.dumps((news, answers))) == (news, answers)


@dataclass(frozen=True, slots=True)
class Secretive:
    """Pickled without its second field."""

    name: str
    secret: str = "none"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secretive, (self.name,)


@dataclass(slots=True)
class Numbers(dict[str, int]):
    """A dictionary with fields."""

    first: int = 0
    second: int = 0


@dataclass(frozen=True, slots=True)
class Base:
    one: int
    many: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Derived(Base):
    other: str = ""


@pytest.mark.parametrize(
    "value",
    [re.compile("a+"), Derived(1, [Base(2), Base(3, [None])], "x"), {1, 2}, len, Secretive("x"), ...],
)
def test_other_classes_are_pickled_as_ever(value):
    assert pickle.loads(compact(value)) == value


def test_a_class_that_says_how_it_is_pickled_is_heard():
    assert pickle.loads(compact(Secretive("x", "y"))) == Secretive("x")
    numbers = Numbers(1, 2)
    numbers["a"] = 5
    back = pickle.loads(compact(numbers))
    assert (dict(back), back.first, back.second) == ({"a": 5}, 1, 2)


def test_shared_objects_stay_shared_and_another_process_reads_them():
    base = Base(1)
    first, second = pickle.loads(compact([Derived(2, [base]), Derived(3, [base])]))
    assert first.many[0] is second.many[0]
    call = Call(prompt_ids=(1,), token_ids=(2,), logprobs=(-0.5,), version=3, finish="stop")
    script = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).version)"
    done = subprocess.run(
        [sys.executable, "-c", script], input=compact(call), capture_output=True, check=True
    )
    assert done.stdout == b"3\n"

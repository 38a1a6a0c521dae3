"""What `check_executor`, `check_data_source`, `check_tracker` and `check_chat_format` catch."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.protocols import ScoredRollout
from coterie.core.types import Scores
from coterie.testing import build, check_chat_format, check_data_source, check_executor, check_tracker
from coterie.testing.checks import executor as executor_check
from coterie.testing.support.toys import LetterTokenizer
from tests.testing.support import caught

TICK = itertools.count()

# ----------------------------------------------------------------------------------------------- executors


class Plays:
    """An executor of this process without a limit."""

    async def open(self, ctx):
        self.side = ctx.side
        await self.side.open(ctx.engine)

    async def play(self, job):
        return await self.side.play(job)

    async def close(self):
        await self.side.close()


async def in_turn(self, job):
    self.lock = getattr(self, "lock", None) or asyncio.Lock()
    async with self.lock:
        return await self.side.play(job)


async def one_for_all(self, job):
    played = await self.side.play(job)
    self.first = getattr(self, "first", played)
    return self.first


async def with_exceptions(self, job):
    (result,) = await asyncio.gather(self.side.play(job), return_exceptions=True)
    return result


async def renamed(self, job):
    try:
        return await Plays.play(self, job)
    except Exception as error:
        raise RuntimeError(str(error)) from error


async def wrapped(self, job):
    try:
        return await Plays.play(self, job)
    except SystemFault as error:
        raise SystemFault(f"wrapped: {error}") from error


async def cancels(self, job):
    try:
        return await Plays.play(self, job)
    except SystemFault as error:
        raise asyncio.CancelledError from error


async def cancels_all(self, job):
    self.tasks = [*getattr(self, "tasks", ()), asyncio.ensure_future(self.side.play(job))]
    try:
        return await self.tasks[-1]
    except asyncio.CancelledError:
        for task in self.tasks:
            task.cancel()
        raise


async def shielded(self, job):
    return await asyncio.shield(self.side.play(job))


async def unstoppable(self, job):
    playing = asyncio.ensure_future(self.side.play(job))
    try:
        return await asyncio.shield(playing)
    except asyncio.CancelledError:
        return await playing


async def twice(self, job):
    await self.side.play(job)
    return await self.side.play(job)


async def exits(self, job):
    raise SystemExit(3)


def with_job(**changes):
    """`play` of the job with changed fields."""

    async def play(self, job):
        return await self.side.play(replace(job, **changes))

    return play


async def greedy_evaluations(self, job):
    return await self.side.play(replace(job, greedy=job.evaluation))


def bare(tree):
    return replace(tree, root=replace(tree.root, turn=9))


def with_rollout(change):
    """`play` whose rollout is changed."""

    async def play(self, job):
        return change(await self.side.play(job))

    return play


def never():
    return asyncio.get_running_loop().create_future()


def done(value):
    future = never()
    future.set_result(value)
    return future


async def hangs(self, *arguments):
    await asyncio.sleep(3600)


async def opens_twice(self, ctx):
    await Plays.open(self, ctx)
    await ctx.side.open(ctx.engine)


async def closes_twice(self):
    await self.side.close()
    await self.side.close()


async def nothing(self, ctx=None):
    self.side = ctx.side if ctx else self.side


@pytest.mark.parametrize(("members", "message"), [
    pytest.param({"play": in_turn}, "one job after the other", marks=pytest.mark.long),
    ({"play": one_for_all}, "for the job train-"),
    ({"play": with_exceptions}, "swallowed an exception"), ({"play": renamed}, "raised RuntimeError("),
    ({"play": wrapped}, "wrapped: the job broke"), ({"play": cancels}, "nobody asked for that"),
    ({"play": cancels_all}, "nobody asked for that"), ({"play": exits}, "raised SystemExit: 3"),
    ({"play": shielded}, "after the call of long was cancelled"),
    ({"play": unstoppable}, "goes on when its call is cancelled"),
    ({"play": twice}, "gave the side 12 jobs for 6"), ({"play": hangs}, "has not ended after 0.5 s"),
    ({"play": with_job(evaluation=False)}, "a job that it was not given"),
    ({"play": with_job(evaluation=True)}, "a job that it was not given"),
    ({"play": with_job(greedy=True)}, "a job that it was not given"),
    ({"play": with_job(greedy=False)}, "a job that it was not given"),
    ({"play": with_job(cohort="")}, "a job that it was not given"),
    ({"play": with_job(cohort="all")}, "a job that it was not given"),
    ({"play": greedy_evaluations}, "a job that it was not given"),
    ({"play": with_job(versions={})}, "a job that it was not given"),
    ({"play": with_job(chain=0)}, "for the job train-"),
    ({"play": with_rollout(lambda rollout: rollout.tree)}, "return the Rollout of the rollout side"),
    ({"play": with_rollout(lambda rollout: replace(rollout, tree=None))}, "a Tree, and a future"),
    ({"play": with_rollout(lambda rollout: replace(rollout, tree=bare(rollout.tree)))},
     "a tree that the side didn't play"),
    ({"play": with_rollout(lambda rollout: replace(rollout, scored=None))}, "a Tree, and a future"),
    ({"play": with_rollout(lambda rollout: replace(rollout, scored=never()))}, "has not ended after 0.5 s"),
    ({"play": with_rollout(lambda rollout: replace(rollout, scored=done(Scores())))}, "whose `scored` is"),
    ({"play": with_rollout(lambda rollout: replace(rollout, scored=done(ScoredRollout(Scores(), {}))))},
     "whose `scored` is"),
    ({"play": lambda self, job: None}, "make it `async def play`"),
    ({"open": nothing}, "opened the rollout side 0 times"), ({"open": opens_twice}, "2 times"),
    ({"open": hangs}, "has not ended"), ({"close": hangs}, "has not ended"),
    ({"close": closes_twice}, "closed the rollout side 2 times"),
])  # fmt: skip
def test_a_broken_executor_is_caught(members, message, monkeypatch):
    if hangs in members.values() or "has not ended" in message:
        monkeypatch.setattr(executor_check, "CALL_SECONDS", 0.5)
    caught(message, check_executor, type("Broken", (Plays,), members)())


async def late(self, job):
    """Jobs begin at any time, and end at any time."""
    await asyncio.sleep(0.02 * (job.chain % 3))
    rollout = await self.side.play(job)
    await asyncio.sleep(0.02 * (job.chain % 2))
    return rollout


def test_sound_executors_pass():
    check_executor(Plays())
    check_executor(type("Late", (Plays,), {"play": late})())
    check_executor(build("executor", {"type": "local", "max_live": 2}))


def test_an_executor_that_leaves_the_side_open_is_caught():
    local = build("executor", "local")

    async def nothing() -> None: ...

    local.close = nothing
    caught("left the rollout side open", check_executor, local)


# -------------------------------------------------------------------------------------------- data sources


def data_source(records: Any) -> Any:
    return type("Source", (), {"records": lambda self, split: records(split)})()


ROWS = {split: [{"text": f"{split} {i}"} for i in range(3)] for split in ("train", "val", "test")}


class Loop(list):
    def __iter__(self) -> Any:
        return reversed(self)


def refused(split: str) -> Any:
    if split == "test":
        raise ConfigError("there is no such split")
    return ROWS[split]


def test_a_sound_source_passes():
    check_data_source(data_source(ROWS.get))
    check_data_source(data_source(refused))
    check_data_source(data_source(lambda split: ROWS["train"] if split == "train" else []))


@pytest.mark.parametrize(("records", "message"), [
    (lambda split: [], "has no record"),
    (lambda split: ["text"], "is no record"),
    (lambda split: [{1: "text"}], "is no record"),
    (lambda split: [{"text": "same"}], "is in 'train' and in 'val'"),
    (lambda split: iter(ROWS[split]), "raised TypeError"),
    (lambda split: Loop(ROWS[split]), "in a loop"),
    (lambda split: [{"n": next(TICK)}], "when called again"),
    (lambda split: [{"f": lambda: split}], "can't be pickled"),
])  # fmt: skip
def test_a_broken_source_is_caught(records, message):
    caught(message, check_data_source, data_source(records))


# ------------------------------------------------------------------------------------------------ trackers


class Rows:
    """A sound tracker with one file."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def open(self, folder: Path) -> None:
        self.path = folder / "rows"

    def rows(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path and self.path.exists() else []

    def write(self, rows: list[str]) -> None:
        assert self.path is not None
        self.path.write_text("".join(f"{row}\n" for row in rows))

    def track(self, step: int, metrics: Any) -> None:
        self.write([*self.rows(), json.dumps({"step": step, **metrics})])

    def truncate(self, step: int) -> None:
        self.write([row for row in self.rows() if json.loads(row)["step"] <= step])

    def close(self) -> None:
        self.path = None


def steps(folder: Path) -> list[int]:
    return [json.loads(row)["step"] for row in (folder / "rows").read_text().splitlines()]


def starts_over(self, folder):
    Rows.open(self, folder)
    self.write([])


def wipes(self, folder):
    for path in folder.iterdir():
        path.unlink()
    Rows.open(self, folder)


def records(self, folder):
    Rows.open(self, folder)
    (folder / "metrics.jsonl").write_text("")


def track_more(self, step, rows): ...


@pytest.mark.parametrize(("members", "message"), [
    ({"truncate": lambda self, step: None}, "kept the steps [1, 2, 3, 3, 4]"),
    ({"open": starts_over}, "kept the steps [3, 4]"),
    ({"open": wipes}, "config.yaml, which is not its own"),
    ({"open": records}, "metrics.jsonl, which is not its own"),
    ({"track": lambda self, step, metrics: metrics.update(step=step)}, "changed the metrics"),
    ({"track": lambda self, step, metrics: sum(metrics.values())}, "track: raised TypeError"),
    ({"close": lambda self: self.path.name}, "close: raised AttributeError"),
    ({"track_episodes": track_more, "log_episodes": -1}, "log_episodes: is -1"),
    ({"track_episodes": track_more, "log_episodes": 1.5}, "log_episodes: is 1.5"),
    ({"track_episodes": track_more, "log_episodes": property(starts_over)}, "log_episodes: raised TypeError"),
    ({"track_spans": track_more, "share": 1.5}, "share: is 1.5"),
    ({"track_spans": track_more, "share": "all"}, "share: is 'all'"),
    ({"track_spans": track_more, "share": float("nan")}, "share: is nan"),
    ({"track_spans": track_more, "share": property(lambda self: self.odd)}, "share: raised AttributeError"),
])  # fmt: skip
def test_a_broken_tracker_is_caught(members, message, tmp_path):
    check_tracker(Rows(), read=steps)
    caught(message, check_tracker, type("Broken", (Rows,), members)(), folder=tmp_path, read=steps)


# -------------------------------------------------------------------------------------------- chat formats


def chat_format(**members: Any) -> Any:
    """`auto` with a changed codec."""
    auto = build("chat_format", "auto")

    class Changed:
        def codec(self, tokenizer: Any, context: int | None) -> Any:
            codec = auto.codec(tokenizer, context)
            kind = type("Codec", (type(codec),), members)
            codec.__class__ = kind
            return codec

    return Changed()


def base() -> Any:
    return type(build("chat_format", "auto").codec(LetterTokenizer(), None))


def fresh(self, messages, previous=None, previous_messages=()):
    return base().encode(self, messages)


def claims(self, messages, previous=None, previous_messages=()):
    """Encode afresh, and set `continues`."""
    prompt = base().encode(self, messages)
    from dataclasses import replace

    return prompt if previous is None else replace(prompt, ids=(9, *prompt.ids), continues=True)


def trusts(self, messages, previous=None, previous_messages=()):
    """Reuse the previous ids without a comparison with the history."""
    from coterie.core.types import Prompt

    prompt = base().encode(self, messages)
    if previous is None:
        return prompt
    return Prompt(ids=(*previous.prompt_ids, *previous.token_ids, *prompt.ids), continues=True)


def without(role, first=False):
    """Encode without the messages of a role; with `first`, only behind the first message."""

    def encode(self, messages, previous=None, previous_messages=()):
        kept = [m for index, m in enumerate(messages) if m["role"] != role or (first and index == 0)]
        return base().encode(self, kept, previous, previous_messages)

    return encode


def last_question(self, messages, previous=None, previous_messages=()):
    """Encode without a second message of the user in a row."""
    users = [message["role"] == "user" for message in messages]
    kept = [m for index, m in enumerate(messages) if not (index and users[index] and users[index - 1])]
    return base().encode(self, kept, previous, previous_messages)


def drifts(self, messages, previous=None, previous_messages=()):
    from dataclasses import replace

    prompt = base().encode(self, messages)
    return replace(prompt, ids=(*prompt.ids, next(TICK)))


@pytest.mark.parametrize(("members", "message"), [
    ({"encode": fresh}, "afresh although it only went on"),
    ({"encode": claims}, "doesn't begin with the prompt"),
    ({"encode": trusts}, "the history holds another"),
    ({"encode": drifts}, "gave other ids"),
    ({"encode": lambda self, messages, *previous: list(map(ord, messages[0]["content"]))}, "returned ["),
    ({"decode": lambda self, call: base().decode(self, call).upper()}, "decode: gave 'GO LEFT'"),
    ({"decode": lambda self, call: self.tokenizer.decode(call.token_ids)}, "decode: gave"),
    ({"decode": lambda self, call: call.text}, "decode: raised AttributeError"),
    ({"encode": without("system")}, "leaves out a system message"),
    ({"encode": without("system", first=True)}, "leaves out a later system message"),
    ({"encode": without("tool")}, "leaves out a tool's result"),
    ({"encode": last_question}, "leaves out a second message of the user"),
    ({"encode_completion": lambda self, text: (*base().encode_completion(self, text), *[9] * (not text))},
     "gives '' the last id (9,), which is none of stop_ids"),
])  # fmt: skip
def test_a_broken_chat_format_is_caught(members, message):
    caught(message, check_chat_format, chat_format(**members))


def test_a_chat_format_may_rewrite_turns_where_continues_is_false():
    check_chat_format(chat_format(encode=fresh), continues=False)


def test_a_chat_format_may_refuse_a_role_with_an_error():
    from coterie.core.errors import UserError

    def encode(self, messages, *previous):
        if any(message["role"] in ("system", "tool") for message in messages):
            raise UserError("users only", path="chat")
        return base().encode(self, messages, *previous)

    check_chat_format(chat_format(encode=encode))


def test_a_codec_that_lacks_something_is_caught():
    bare = type("Chat", (), {"codec": lambda self, tokenizer, context: object()})()
    caught("its codec lacks encode", check_chat_format, bare)

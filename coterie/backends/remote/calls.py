"""Calls of remote models, for a component of any kind and any provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from coterie.backends.remote import budget as spending
from coterie.backends.remote.answers import Answer, Expected, Usage
from coterie.backends.remote.budget import Budget, CallCounts, Spent, report_usage
from coterie.backends.remote.database import Database, request_key, store_answer, stored_answer
from coterie.backends.remote.faults import Again, Failed, Refused, attempts
from coterie.backends.remote.secrets import redacted, without_keys
from coterie.backends.remote.settings import RemoteSettings
from coterie.core.errors import MissingExtra, SystemFault, UserError

log = logging.getLogger("coterie")
Send = Callable[[], Awaitable[Answer]]
MOST_TOKENS = 10**9
"""A server's count of one call above this is an error of the server."""
FOLDER = "remote"
"""Folder within a run's folder."""
MINUTE = 60.0


class RateLimits:
    """Keeps calls within the limits in every minute, also the first, and in the order in which they come.

    A limit is kept as a leaky bucket with one second's share, so that the calls of a minute are spread over
    it. Tokens are taken by an estimate; `correct` gives the difference to the next calls.

    Args:
        minute: seconds of a minute, for tests.
    """

    def __init__(
        self, concurrency: int, requests: float | None, tokens: float | None, minute: float = MINUTE
    ) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        self._requests = None if requests is None else _bucket(requests, minute)
        self._tokens = None if tokens is None else _bucket(tokens, minute)
        self._turn = asyncio.Lock()
        self._owed = 0.0
        self._not_before = 0.0

    async def acquire(self, tokens: float) -> None:
        """Wait until a call of about so many tokens may be sent; it may be larger than a minute's limit."""
        async with self._turn:  # one after the other: an early call is never overtaken
            loop = asyncio.get_running_loop()
            while (pause := self._not_before - loop.time()) > 0:
                await asyncio.sleep(pause)
            if self._requests is not None:
                await _take(self._requests, 1.0)
            if self._tokens is not None:
                wanted, self._owed = tokens + self._owed, 0.0
                if wanted < 0:
                    self._owed = wanted
                await _take(self._tokens, wanted)

    def correct(self, estimated: float, used: float) -> None:
        """Note what a call really used."""
        if self._tokens is not None:
            self._owed += used - estimated

    def pause(self, seconds: float) -> None:
        """Send nothing for so long: the server asked for it."""
        self._not_before = max(self._not_before, asyncio.get_running_loop().time() + seconds)


def _bucket(limit: float, minute: float) -> Any:
    """A limiter that lets at most `limit` pass in any minute: its burst and what leaks meanwhile."""
    try:
        from aiolimiter import AsyncLimiter
    except ImportError as error:
        raise MissingExtra("aiolimiter", "openai", needed_by="requests_per_minute") from error
    burst = max(1.0, limit / MINUTE)
    rate = (limit - burst if burst > 1 else limit) / minute
    return AsyncLimiter(burst, burst / rate)


async def _take(bucket: Any, amount: float) -> None:
    """Take an amount in parts of the bucket's size: a larger one is never acquired at once."""
    while amount > 0:
        part = min(amount, bucket.max_rate)
        await bucket.acquire(part)
        amount -= part


class RemoteCalls:
    """Sends requests within limits and a budget, with further attempts, and never pays for one twice.

    A provider's part is `send`: one attempt, which returns an `Answer` and raises `Again` (worth another
    attempt), `Refused` (the result is missing) or a UserError (no call can pass: the run stops).

    Args:
        endpoint: the address; it is a part of the cache's key.
        name: of the component, e.g. `engine`; its files in the run's folder are named like it.
        path: the component's dotted path, for errors.
        folder: the run's folder; None: there is none, and `cache: auto` stores nothing.
        minute: seconds of a minute, for tests of the limits.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        endpoint: str,
        name: str,
        path: str,
        folder: Path | None = None,
        minute: float = MINUTE,
    ) -> None:
        self.settings, self.endpoint, self.name, self.path = settings, endpoint, name, path
        self.counts = CallCounts()
        self.budget = Budget(settings.budget, settings.prices, path)
        self._folder = None if folder is None else folder / FOLDER
        self._minute = minute
        self._database: Database | None = None
        self._flying: dict[str, asyncio.Task[Answer]] = {}
        self._sending: set[asyncio.Task[Any]] = set()
        self._versions: dict[str, str] = {}
        """By model: the version that answered last, in this process."""
        self._stopped: UserError | None = None
        self._closing = self._warned = False
        self._down = False
        """Whether a call failed in all its attempts since the endpoint last answered."""

    async def open(self, models: Mapping[str, str]) -> None:
        """Open the database; a resumed run knows what it has spent.

        Args:
            models: the models that will be called, with the dotted paths of their names.

        Raises:
            ConfigError: the budget bounds money, and a model has no price.
            UserError: the database does not work, and a budget or `cache_errors: stop` depends on it.
        """
        self.budget.check(models)
        settings = self.settings
        self._limits = RateLimits(
            settings.concurrency, settings.requests_per_minute, settings.tokens_per_minute, self._minute
        )
        self._settled = asyncio.Condition()
        self._reserved = self._settlements = 0
        self._stopped, self._closing = None, False
        file = self._file()
        if file is not None:
            # With a budget, a database that can't be read would forget what is spent.
            strict = "stop" if settings.budget.bounded else settings.cache_errors
            self._database = Database(file, strict, f"{self.path}.cache")
            await self._database.open()
            self._database.on_error = settings.cache_errors
            self.budget.by_model = await self._database.run(spending.read) or {}
        elif settings.budget.bounded:
            log.warning(
                "%s.budget: nothing is stored (%s.cache), so the budget begins anew with every process",
                self.path, self.path,
            )  # fmt: skip

    async def close(self) -> None:
        """Let the calls that were sent finish, and store their answers; then log the usage."""
        self._closing = True
        for task in [*self._flying.values()]:
            if task not in self._sending:
                task.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=self.settings.timeout)
        for task in [*self._flying.values()]:
            task.cancel()
        await asyncio.gather(*self._flying.values(), return_exceptions=True)
        stored = self._database is not None and self._database.works
        if self._database is not None:
            await self._database.close()
        report_usage(
            self.name, self.counts, self.budget.by_model, self._folder, bool(self.settings.prices), stored
        )

    async def call(self, request: Mapping[str, Any], send: Send, expected: Expected) -> Answer:
        """The answer of a request: stored, of an identical call under way, or sent now.

        Args:
            request: everything that the answer depends on, as a JSON table with the key `model`.
            send: one attempt.
            expected: what it may use.

        Raises:
            SystemFault: no answer; the result is missing.
            UserError: no call can pass (a wrong key, an unknown model), or the budget is spent.
        """
        key = request_key(self.endpoint, request)
        self.counts.asked += 1
        task = self._flying.get(key)
        if task is None:
            task = asyncio.create_task(self._answer(key, str(request["model"]), send, expected))
            self._flying[key] = task
            task.add_done_callback(partial(self._landed, key))
        else:
            self.counts.joined += 1
        # A caller that is cancelled must not cancel those that joined it, nor lose what is paid.
        return await asyncio.shield(task)

    # ----------------------------------------------------------------------------------------- one call

    def _landed(self, key: str, task: asyncio.Task[Answer]) -> None:
        self._flying.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, although every caller may be gone

    async def _answer(self, key: str, model: str, send: Send, expected: Expected) -> Answer:
        stored = await self._stored(key, model)
        if stored is not None:
            self.counts.cached += 1
            return stored
        tries = 0
        async with self._limits.slots:
            try:
                async for attempt in attempts(self.settings, self._hopeless):
                    with attempt:
                        tries += 1
                        self.counts.again += tries > 1
                        return await self._attempt(key, model, send, expected)
            except Failed as fault:
                self.counts.missing += 1
                if isinstance(fault, Again) and not fault.busy and tries > self.settings.retries:
                    self._down = True
                often = f" (the last of {tries} attempts)" if tries > 1 else ""
                raise SystemFault(f"{fault}{often}") from None
            except UserError as error:
                self._stopped = error  # what has not been sent yet is not sent any more
                raise
        raise AssertionError("every attempt returns or raises")

    async def _attempt(self, key: str, model: str, send: Send, expected: Expected) -> Answer:
        self._check_stopped()
        await self._limits.acquire(expected.usage.tokens)
        self._check_stopped()
        most = self.budget.cost(model, expected.most, assumed=True)
        await self._reserve(model, most)
        charged, task = most, asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        try:
            self.counts.sent += 1
            answer = await self._send(send)
            self._down = False
            usage = answer.usage or expected.usage
            charged = self.budget.cost(model, usage, assumed=answer.usage is None)
            self._limits.correct(expected.usage.tokens, usage.tokens)
            if answer.version:
                self._versions[model] = answer.version
        except (Failed, UserError) as fault:
            if not (isinstance(fault, Failed) and fault.charged):
                charged = Spent()
            if isinstance(fault, Again) and fault.wait:
                self._limits.pause(min(fault.wait, self.settings.longest_wait))
            await self._settle(model, charged, most)
            raise
        except BaseException:  # cancelled: it may have been paid, so the reservation stays
            await self._settle(model, most, most)
            raise
        else:
            await self._settle(model, charged, most, key, answer)
            return answer
        finally:
            self._sending.discard(task)

    def _hopeless(self) -> bool:
        """Whether to give up early: on closing, and where another call has just waited in vain.

        So an endpoint that is down for good costs this time once, and not for each call.
        """
        return self._closing or self._down

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    async def _send(self, send: Send) -> Answer:
        """One attempt within the time limit: of the whole answer, however slowly it comes."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await send()
        except (Failed, UserError):
            raise
        except TimeoutError:
            seconds = self.settings.timeout
            raise Again(f"{self.endpoint}: no whole answer within {seconds:g} s", charged=True) from None
        except Exception as error:  # what a library raises on an answer that it can't read
            text = redacted(f"{type(error).__name__}: {error}")
            raise Refused(f"{self.endpoint}: {text}", charged=True) from None
        # Everything of it may be stored, so a key that the server repeats is redacted everywhere.
        return Answer(without_keys(answer.body), self._usage(answer), without_keys(answer.version))

    def _usage(self, answer: Answer) -> Usage | None:
        """The usage of an answer; None where its counts are no numbers of tokens."""
        usage = answer.usage
        if usage is None or all(
            0 <= count <= MOST_TOKENS for count in (usage.input_tokens, usage.output_tokens)
        ):
            return usage
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: %s counts %.3g + %.3g tokens for one call, which can't be: such calls count with their "
                "estimate",
                self.path, redacted(self.endpoint), usage.input_tokens, usage.output_tokens,
            )  # fmt: skip
        return None

    # -------------------------------------------------------------------------------- cache and budget

    def _file(self) -> Path | None:
        cache = self.settings.cache
        if cache == "auto":
            return None if self._folder is None else self._folder / f"{self.name}.sqlite"
        return None if cache == "off" else Path(cache).expanduser()

    async def _stored(self, key: str, model: str) -> Answer | None:
        if self._database is None:
            return None
        version = self._versions.get(model)
        return await self._database.run(lambda connection: stored_answer(connection, key, version))

    async def _reserve(self, model: str, most: Spent) -> None:
        """Reserve what a call may spend; calls under way may give back what they did not need.

        Raises:
            UserError: the budget is spent.
        """
        while True:
            before = self._settlements
            if await self._reserved_now(model, most):
                self._reserved += 1
                return
            if not self._reserved and self._settlements == before:
                raise self.budget.exhausted(most)
            async with self._settled:
                await self._settled.wait_for(lambda: self._settlements != before)  # noqa: B023
            self._check_stopped()

    async def _reserved_now(self, model: str, most: Spent) -> bool:
        budget = self.budget

        def reserve(connection: Any) -> tuple[bool, dict[str, Spent]]:
            spent = spending.read(connection)
            if not budget.fits(spending.total(spent), most):
                return False, spent
            return True, spending.store(connection, model, most)

        done = None if self._database is None else await self._database.run(reserve)
        if done is not None:
            budget.by_model = done[1]
            return done[0]
        if not budget.fits(budget.total, most):
            return False
        budget.add(model, most)
        return True

    async def _settle(
        self, model: str, charged: Spent, reserved: Spent, key: str = "", answer: Answer | None = None
    ) -> None:
        """Replace a reservation by what the call used, and store its answer, in one transaction."""
        change = charged + -reserved

        def settle(connection: Any) -> dict[str, Spent]:
            if answer is not None:
                store_answer(connection, key, answer)
            return spending.store(connection, model, change)

        try:
            done = None if self._database is None else await self._database.run(settle)
            if done is not None:
                self.budget.by_model = done
            else:
                self.budget.add(model, change)
        finally:
            self._reserved -= 1
            self._settlements += 1
            async with self._settled:
                self._settled.notify_all()

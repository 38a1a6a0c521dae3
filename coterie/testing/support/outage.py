"""What a reward source answers, and what it may answer while its backend fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from coterie.core.errors import PolicyFault, SystemFault, type_text
from coterie.core.protocols import SiblingsView
from coterie.testing.support.failure import ConformanceError, awaited, guarded, require

Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
Outage = Manager | Callable[[], Manager]
"""A context, or what makes one, inside which the backend of a source fails."""

FLOOR, MISSING = "the floor", "a missing score"
"""The answers of a source that raised PolicyFault or SystemFault."""


async def answer_of(source: Any, view: Any, where: str, fix: str = "") -> Any:
    """What a source answers to a view: what it returned, FLOOR, or MISSING.

    Raises:
        ConformanceError: `score` is not asynchronous, or raised something else.
    """
    try:
        fix = fix or "raise coterie.PolicyFault for what the output caused, SystemFault for an outage"
        return await awaited(where, source.score, view, fix=fix)
    except ConformanceError as error:
        if isinstance(error.__cause__, PolicyFault):
            return FLOOR
        if isinstance(error.__cause__, SystemFault):
            return MISSING
        raise


async def check_outage(source: Any, answers: Sequence[tuple[Any, Any]], outage: Outage, where: str) -> None:
    """Require missing scores while the backend of a source fails.

    A floor or a number that needs no backend stays as it was: that of an action that can't be read, or of an
    answer in a cache.

    Args:
        answers: the views, each with the source's answer while the backend worked.
        outage: see `check_reward`.

    Raises:
        ConformanceError: a score that only the outage explains; or no score is missing.
    """
    fix = "raise coterie.SystemFault where the backend can't be reached (`from error`)"
    missing = 0
    async with AsyncExitStack() as stack:
        await _enter(stack, outage, where)
        for view, before in answers:
            during = await answer_of(source, view, f"{where} in the outage", fix)
            if during is MISSING:
                missing += 1
                continue
            why = "gave the floor in the outage: the output didn't cause it"
            require(during is not FLOOR or before is FLOOR, why, where, fix=fix)
            if during is FLOOR:
                continue
            with guarded(f"{where} in the outage", "a table of scores, as while the backend works"):
                new, old = _scores(during, view), _scores(before, view)
            for place, value in new.items():
                what = (
                    f"gave {place} the score {value!r} in the outage, and {old.get(place, before)!r} before"
                )
                require(value is None or (place in old and value == old[place]), what, where, fix=fix)
            missing += not new or any(value is None for value in new.values())
    require(
        missing,
        "no score is missing in the outage",
        where,
        fix=f"let `outage` fail what `score` calls; where it does, {fix}",
    )


async def _enter(stack: AsyncExitStack, outage: Outage, where: str) -> None:
    made = outage if isinstance(outage, (AbstractContextManager, AbstractAsyncContextManager)) else outage()
    if isinstance(made, AbstractAsyncContextManager):
        await stack.enter_async_context(made)
        return
    fix = "a context manager, or a function that returns one (@contextlib.contextmanager)"
    is_context = isinstance(made, AbstractContextManager)
    require(is_context, f"`outage` made {type_text(made)}", where, fix=fix)
    stack.enter_context(made)


def _scores(answer: Any, view: Any) -> dict[Any, Any]:
    """The scores by place; those of siblings with the number of the branch."""
    if isinstance(answer, str):
        return {}
    if isinstance(view, SiblingsView) and not isinstance(answer, Mapping):
        return {(at, *place): value for at, table in enumerate(answer) for place, value in table.items()}
    return dict(answer)

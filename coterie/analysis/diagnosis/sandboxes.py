"""A sandbox by itself, without a run: opened, used and closed; and what protects this host from programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.core.errors import CoterieError, PluginError, PolicyFault, SystemFault, UserError
from coterie.core.plugins.origin import Origin, failure, origin_of, record_origin
from coterie.core.protocols import Program, Ran, Sandbox
from coterie.discovery import plugins
from coterie.discovery.members import ReportsProtections
from coterie.discovery.validation import validate

T = TypeVar("T")
HELLO = "print(sum(range(10)))"


@dataclass(frozen=True, slots=True)
class SandboxCheck:
    """What a sandbox made of a small program, and which protections it has on this host."""

    result: Ran
    protections: Sequence[Any]
    """Named tuples (name, active, stops, needs)."""
    left_open: Sequence[Any]
    """Named tuples (name, what): what is open without namespaces."""
    warnings: Sequence[str]

    @property
    def works(self) -> bool:
        """Whether the program's output is the expected one."""
        return self.result.ok and self.result.stdout.split() == ["45"]


def check_sandbox(settings: Mapping[str, Any]) -> SandboxCheck:
    """Open a sandbox, run a small program in it, and ask which protections are active.

    Args:
        settings: those of a recipe's table `sandbox`; the default `type` is `local`.
    """
    return use_sandbox(settings, _probe)


async def _probe(sandbox: Sandbox) -> SandboxCheck:
    result = await ran(sandbox, Program(code=HELLO))
    protections: list[Any] = []
    if isinstance(sandbox, ReportsProtections):
        with _of_plugin(sandbox, "report"):
            protections = list(sandbox.report())
    fields = ("name", "active", "stops", "needs", "_asdict")
    if wrong := [row for row in protections if not all(hasattr(row, field) for field in fields)]:
        raise _wrong(sandbox, "report", wrong[0], "named tuples (name, active, stops, needs)")
    left_open: list[Any] = list(getattr(sandbox, "left_open", list)())
    return SandboxCheck(result, protections, left_open, list(getattr(sandbox, "warnings", list)()))


def use_sandbox(settings: Mapping[str, Any], use: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Open the sandbox of these settings, call `use` with it, and close it.

    Raises:
        UserError: the settings are wrong, or the sandbox does not work on this host.
    """
    sandbox = _sandbox(dict(settings))

    async def go() -> T:
        with _of_plugin(sandbox, "open"):
            await sandbox.open()
        try:
            return await use(sandbox)
        finally:
            with _of_plugin(sandbox, "close"):
                await sandbox.close()

    try:
        return asyncio.run(go())
    except (PolicyFault, SystemFault) as fault:
        raise UserError(str(fault), path="sandbox") from fault


async def ran(sandbox: Sandbox, program: Program) -> Ran:
    """The result of a program. Raises PluginError where the sandbox returns something else."""
    with _of_plugin(sandbox, "run"):
        result: Any = await sandbox.run(program)
    if not isinstance(result, Ran):
        raise _wrong(sandbox, "run", result, "coterie.Ran")
    return result


@contextmanager
def _of_plugin(sandbox: Sandbox, method: str) -> Iterator[None]:
    """Turn what a sandbox raises, other than a fault or a user's error, into a PluginError that names it."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        if origin_of(sandbox).distribution == "coterie":  # a bug of Coterie's: with its traceback
            raise
        raise PluginError(failure(sandbox, method, error), path="sandbox") from error


def _wrong(sandbox: Sandbox, method: str, value: Any, fix: str) -> Exception:
    what = f"{origin_of(sandbox)}: {method} returned {value!r}"[:300]
    return PluginError(what, path="sandbox", fix=f"return {fix}")


def _sandbox(table: dict[str, Any]) -> Sandbox:
    name = table.pop("type", "local")
    if not isinstance(name, str) or not name.strip():
        raise UserError("no sandbox is named", path="sandbox.type", fix="leave it out, or set type=local")
    entry = plugins().registry.find("sandbox", name, path="sandbox.type")
    target: Any = entry.load("sandbox.type")
    sandbox: Sandbox = target(validate(target.Config, table, "sandbox"), None)
    record_origin(sandbox, Origin("sandbox", name, entry.distribution, "sandbox"))
    return sandbox

"""Sandbox `local`: runs programs in worker processes of this machine, isolated from Coterie and each other.

docs/sandbox.md describes the design and the protections.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from coterie.backends.sandboxes import distributions
from coterie.backends.sandboxes.distributions import Packages
from coterie.backends.sandboxes.job import CellSide, Keeping
from coterie.backends.sandboxes.judging import host as judging
from coterie.backends.sandboxes.lifetime import OpenableSandbox
from coterie.backends.sandboxes.pool import LostWorker, Module, Pool, UnusablePackage
from coterie.backends.sandboxes.programs import (
    check_fits,
    check_judged,
    check_program,
    limits_of,
)
from coterie.backends.sandboxes.protections import (
    Open,
    Protection,
    forgeable,
    left_open,
    protections,
    warnings,
)
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.plugins import MayChange, PluginConfig
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict
from coterie.discovery.members import KeptFiles

log = logging.getLogger("coterie")
LEAST_MB = 64
"""Least 2^20 bytes that a program has besides the packages that its worker has imported."""


class LocalSandbox(OpenableSandbox):
    """Runs programs in worker processes with the kernel's namespaces, limits and a system call filter."""

    class Config(PluginConfig):
        workers: Annotated[int | None, MayChange(exact=True)] = Field(
            None, ge=1, description="Most programs at the same time; default: number of CPUs."
        )
        limits: Limits = Field(
            default_factory=Limits, description="Limits of each program without its own limits."
        )
        namespaces: Literal["auto", "required", "off"] = Field(
            "auto", description="`auto`: use namespaces; warn and go without if the host forbids them."
        )
        packages: tuple[str | Path, ...] = Field(
            (),
            description="What programs can import: distributions by name, such as scikit-learn, with all "
            "that they require; and folders, by a path with a `/`.",
        )
        preload: tuple[str, ...] | None = Field(
            None,
            description="Modules of `packages` that workers import before the first program; default: those "
            "of the distributions. `[]`: each program imports for itself.",
        )
        keep_files_in: Annotated[str | None, MayChange(exact=True)] = Field(
            None,
            description="Folder of files that a program leaves and a later one finds; default: "
            "coterie-files-UID in the system's folder of temporary files.",
        )

        @model_validator(mode="after")
        def _preloads_packages(self) -> Self:
            if self.preload and not self.packages:
                raise ValueError("modules of `packages`, which is empty")
            return self

    config: Config
    without: tuple[str, ...] = ()
    """Protections that tests switch off where there are no namespaces: "landlock", "filter"."""

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.pool: Pool | None = None
        self.hello: dict[str, Any] = {}

    def use_slots(self, slots: Callable[[str, int], asyncio.Semaphore]) -> None:
        """Bound programs at once over all processes of a run: `workers`, or each machine's CPUs."""
        path = self._path
        if self.config.workers is not None:
            self._slots = slots(path, self.config.workers)
        else:
            self._slots = slots(f"{path} of {socket.gethostname()}", _cpus())

    async def _start(self) -> None:
        """Start the workers.

        Raises:
            ConfigError: namespaces are required and this host forbids them, a package is missing or can't be
                imported, or this machine has too little memory.
            SystemFault: no worker can be started.
        """
        self._check_memory({})
        packages = self._packages()
        count = self.config.workers or _cpus()
        why = ""
        if self.config.namespaces != "off":
            try:
                await self._use(Pool(count, alone=True, packages=packages, preload=_judge()))
                return
            except (OSError, LostWorker) as error:
                why = str(error)
            if self.config.namespaces == "required":
                raise ConfigError(
                    "this host does not let programs be isolated by namespaces",
                    why=why,
                    fix="allow unprivileged user namespaces (docs/sandbox.md), or set namespaces: auto",
                    path="sandbox.namespaces",
                )
        try:
            pool = Pool(count, alone=False, packages=packages, preload=_judge(), without=self.without)
            await self._use(pool)
        except (OSError, LostWorker) as error:
            if packages.modules and isinstance(error, LostWorker):
                raise ConfigError(
                    "no worker of the sandbox has come through the imports that it makes ahead",
                    path=f"{self._path}.packages",
                    why=f"{error}, and it imports {', '.join(packages.modules)}",
                    fix="name other modules in preload; with preload: [] each program imports for itself",
                ) from error
            raise SystemFault(f"no worker of the sandbox can be started: {error}") from error
        missing = ", no ".join(protection.name for protection in self.report() if not protection.active)
        log.warning(
            "sandbox `local` runs with less protection here: no %s%s; %s`coterie sandbox check` says more",
            missing,
            f" ({why})" if why else "",
            "".join(f"{warning}; " for warning in self.warnings()),
        )

    async def _use(self, pool: Pool) -> None:
        try:
            self.hello = await pool.open()
        except UnusablePackage as error:
            raise ConfigError(
                f"workers can't import {error.module}",
                path=f"{self._path}.packages",
                why=error.why,
                fix="name other modules in preload; with preload: [] each program imports for itself",
            ) from error
        self.pool = pool
        self._check_holds(self.config.limits, f"{self._path}.limits")

    def _packages(self) -> Packages:
        packages = distributions.find(self.config.packages, f"{self._path}.packages")
        return packages if self.config.preload is None else packages._replace(modules=self.config.preload)

    def _check_holds(self, limits: Limits, path: str) -> None:
        """Raise ConfigError for a limit of memory that the packages alone take; `path`: of the limits."""
        imported = self.hello.get("mb", 0)
        least = imported + LEAST_MB
        if self.config.packages and self.config.preload != () and limits.memory_mb < least:
            raise ConfigError(
                f"memory_mb is {limits.memory_mb}, and the imported packages take {imported} MB",
                path=path,
                why="a program begins with them, and the limit counts its whole address space",
                fix=f"raise it: {least} at least, 2048 for work with data; or set preload: []",
            )

    def check_host(self, limits: Mapping[str, Limits]) -> None:
        """Look for the packages, and for the memory that programs may take, before the sandbox is opened.

        Args:
            limits: of programs with limits of their own, by the path of the setting.

        Raises:
            ConfigError: a package is not there, or this machine has too little memory.
        """
        self._packages()
        self._check_memory(limits)

    def _check_memory(self, limits: Mapping[str, Limits]) -> None:
        workers = self.config.workers
        check_fits(
            workers or _cpus(),
            {f"{self._path}.limits": self.config.limits, **limits},
            in_memory=self.config.namespaces != "off",
            path=self._path,
            by_default=workers is None,
        )

    async def _end(self) -> None:
        if self.pool is not None:
            await self.pool.close()
            self.pool = None
        self._files.close()

    def report(self) -> tuple[Protection, ...]:
        """The protections, and which are active on this host; call it after `open`."""
        return protections(self.hello)

    def left_open(self) -> tuple[Open, ...]:
        """What programs can do on this host for want of namespaces; call it after `open`."""
        return left_open(self.hello)

    def warnings(self) -> tuple[str, ...]:
        """What else programs and verdicts suffer from on this host; call it after `open`."""
        return warnings(self.hello)

    async def run(self, program: Program) -> Ran:
        """Run a program.

        Raises ConfigError if the program can't be run (`check_program`), SystemFault if the sandbox failed,
        PolicyFault if the program ended its worker twice.
        """
        ran, _ = await self._during(lambda: self._tried([program]))
        return ran[0]

    async def run_on(self, program: Program, files: KeptFiles, most_mb: int) -> tuple[Ran, KeptFiles]:
        """Run a program on copies of kept files, and keep what it leaves of what `collect` matches.

        A program that takes its cell down with it leaves the files as they were. Raises as `run` does;
        WriteError if the disk is full.
        """
        given = self._files.given(program, files)
        room = min(most_mb, limits_of(program, self.config.limits).disk_mb) << 20
        keeping = Keeping(self._files.store, files, program.files, room)
        ran, _ = await self._during(lambda: self._tried([given], keeping))
        return ran[0], keeping.files

    async def run_pair(
        self, first: Program, second: Program, entries: Sequence[str] = ("", "")
    ) -> tuple[Ran, Ran, bytes]:
        """Run two programs that are isolated from each other, with a socket pair between their descriptors 3.

        `first` may write a report to its file descriptor 4, which only this process reads. When `first` ends,
        `second` is killed. Raises as `run` does.

        Args:
            entries: of programs that are no Python but the arguments of a module of the judge: its name.

        Returns:
            the results of both, and what `first` wrote to its descriptor 4.
        """
        ran, report = await self._during(lambda: self._tried([first, second], entries=entries))
        return ran[0], ran[1], report

    async def judge(self, judged: Judged) -> Verdict:
        """Find which tests the candidate passes; it runs in a separate cell. Raises as `run` does.

        Raises:
            ConfigError: this host can't keep the two apart, and the user has not set `namespaces: off`.
        """
        check_judged(judged, self.config.limits)
        doubt = forgeable(self.hello)
        if doubt and self.config.namespaces != "off":
            raise ConfigError(
                "this host can't keep a candidate and its tests apart, so verdicts could be forged",
                why=f"it has no namespaces and no Landlock, and they run as one user: {doubt}",
                fix="allow user namespaces (docs/sandbox.md), run as root, use Linux 6.2 with Landlock, or "
                "set namespaces: off to take verdicts that may be forged",
                path="sandbox.namespaces",
            )
        sides = judging.programs(judged, self.config.limits, loaded=True)
        tests, candidate, report = await self.run_pair(*sides, judging.ENTRIES)
        verdict = judging.verdict(report, tests, candidate)
        return dataclasses.replace(verdict, warning=doubt)

    async def _tried(
        self, programs: list[Program], keeping: Keeping | None = None, entries: Sequence[str] = ("",)
    ) -> tuple[list[Ran], bytes]:
        """Run with one retry after a lost worker; a program that loses two workers is a PolicyFault."""
        for program in programs:
            limits = limits_of(program, self.config.limits)
            check_program(program, limits)
            _check_language(program)
            self._check_holds(limits, "limits")
        why = ""
        for _ in range(2):
            try:
                async with self._slots:
                    return await self._once(programs, keeping, entries)
            except LostWorker as error:
                why = str(error)
        raise PolicyFault(f"a program ended its worker twice: {why}")

    async def _once(
        self, programs: list[Program], keeping: Keeping | None, entries: Sequence[str]
    ) -> tuple[list[Ran], bytes]:
        if self.pool is None:
            raise SystemFault("the sandbox is not open")
        pool = self.pool
        worker = await pool.take()
        sides: list[CellSide] = []
        try:
            self._make_sides(programs, sides, keeping, entries)
        except OSError as error:
            pool.give(worker)
            raise SystemFault(f"this process could not start a run: {error}") from error
        try:
            wall = max(side.limits.wall_seconds for side in sides)
            worker.begin([side.order() for side in sides], [side.descriptors() for side in sides], wall)
            for number, side in enumerate(sides):
                side.start(functools.partial(worker.stop, number), answers=not pool.alone)
            ended = await worker.answers(len(sides), wall)
            ran = [await side.finish(how) for side, how in zip(sides, ended, strict=True)]
        except BaseException:
            if worker.parent != os.getpid():  # a forked copy of this run; the descriptors are its parent's
                raise
            for side in sides:
                side.abandon()
            pool.lose(worker)
            raise
        pool.give(worker)
        return ran, sides[0].reported

    def _make_sides(
        self, programs: list[Program], sides: list[CellSide], keeping: Keeping | None, entries: Sequence[str]
    ) -> None:
        """Add a side for each program, or none and raise OSError, e.g. where no descriptor is left."""
        paired = len(programs) == 2
        links = socket.socketpair() if paired else (None,)
        try:
            for number, (program, link) in enumerate(zip(programs, links, strict=True)):
                limits = program.limits or self.config.limits
                reports = paired and number == 0
                entry = entries[number]
                sides.append(
                    CellSide(program, limits, link=link, reports=reports, keeping=keeping, entry=entry)
                )
        except BaseException:
            for side in sides:
                side.abandon()
            for link in filter(None, links):
                link.close()
            raise


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _judge() -> list[Module]:
    """The modules of the judge's two sides; a preloaded worker need not compile them in every run."""
    names = ("plain_types", "plain", "changes", "asserts", *judging.ENTRIES, "warm_up")
    return [("judging", True, ""), *((f"judging.{name}", False, judging.source(name)) for name in names)]


def _check_language(program: Program) -> None:
    if program.language != "python":
        raise ConfigError(
            f"sandbox `local` does not run '{program.language}'",
            why="its workers are Python interpreters",
            fix="set language: python, or use sandbox_fusion",
        )

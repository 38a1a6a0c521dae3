"""The diagnosis of a machine: what of it a run would meet, a line each, with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.analysis.diagnosis import machine_hardware, machine_packages
from coterie.analysis.diagnosis.health import HealthCheck, fault, ok, warning
from coterie.analysis.diagnosis.sandboxes import check_sandbox
from coterie.analysis.diagnosis.self_test import self_test
from coterie.core.errors import CoterieError


@dataclass(frozen=True, slots=True)
class MachineDiagnosis:
    """What was checked of this machine."""

    checks: tuple[HealthCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether a run would meet nothing that is broken."""
        return all(check.status != "fault" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return {"ok": self.ok, "checks": [check.as_dict() for check in self.checks]}


def sandbox() -> Iterator[HealthCheck]:
    """Whether programs run, and which protections are missing, as `coterie sandbox check` shows them."""
    more = "coterie sandbox check shows each protection"
    try:
        checked = check_sandbox({})
    except CoterieError as error:
        yield fault("sandbox", " ".join(str(error).split())[:400], more)
        return
    if not checked.works:
        result = checked.result
        what = f"it does not run programs: {result.status} {result.reason} {result.stderr}"
        yield fault("sandbox", " ".join(what.split())[:400], more)
        return
    missing = [row for row in checked.protections if not row.active]
    active = len(checked.protections) - len(missing)
    if missing:
        needs = sorted({row.needs for row in missing if row.needs})
        what = f"{len(missing)} protections are missing: {', '.join(row.name for row in missing)}"
        fix = f"programs of a model need {'; '.join(needs) or 'another host'}. {more}"
        yield warning("sandbox", what, fix, missing=[row.name for row in missing])
    else:
        yield ok("sandbox", f"it runs programs, and all {active} protections are active")


CHECKS: dict[str, Callable[[], Iterable[HealthCheck]]] = {
    "versions": machine_packages.versions,
    "extras": machine_packages.extras,
    "plugins": machine_packages.plugin_faults,
    "gpu": machine_hardware.gpus,
    "threads": machine_hardware.threads,
    "memory": machine_hardware.memory,
    "disk": machine_hardware.disks,
    "shared memory": machine_hardware.shared_memory,
    "open files": machine_hardware.open_files,
    "sandbox": sandbox,
}
"""By name, what yields the lines of a check; in the order in which they are shown."""


def diagnose_machine(*, with_self_test: bool = True) -> MachineDiagnosis:
    """Check this machine. A check that fails itself is a line too, and hides no other one.

    Args:
        with_self_test: whether to make a run of seconds as well.
    """
    lines: list[HealthCheck] = []
    checks = {**CHECKS, **({"self-test": lambda: [self_test()]} if with_self_test else {})}
    for name, check in checks.items():
        try:
            lines += check()
        except Exception as error:  # whatever a machine makes of a check
            why = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            lines.append(warning(name, why, "please report it, with this line"))
    return MachineDiagnosis(tuple(lines))

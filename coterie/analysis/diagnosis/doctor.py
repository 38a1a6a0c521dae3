"""`coterie.doctor`: what is wrong with this machine, or with a run."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from coterie.analysis.diagnosis.machine import MachineDiagnosis, diagnose_machine
from coterie.analysis.diagnosis.run import RunDiagnosis, diagnose_run


@overload
def doctor(folder: None = None, *, self_test: bool = True) -> MachineDiagnosis: ...


@overload
def doctor(folder: Path | str, *, self_test: bool = True) -> RunDiagnosis: ...


def doctor(folder: Path | str | None = None, *, self_test: bool = True) -> MachineDiagnosis | RunDiagnosis:
    """Say what is wrong with this machine, or with a run.

    Args:
        folder: a run's folder, whose metrics and rollout files are searched for known sicknesses; None: this
            machine is checked.
        self_test: of the machine, whether to train a tiny run of seconds too.

    Raises:
        RunFolderError: the folder is no run's, or its rows are damaged.
    """
    return diagnose_machine(with_self_test=self_test) if folder is None else diagnose_run(folder)

"""Roles of environment `data_science`: data engineer, modeler, analyst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.plugins.agents.roles import ProseRole
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.data_science.state import PipelineObservation, ProgramRun, TranscriptEntry

_TEAM = (
    "a team of three that works on a data-science competition: the data engineer prepares the features, the "
    "modeler trains a model, the analyst writes the submission. All work in one folder, one after another."
)
_FORM = (
    "Write one Python program into a block that starts with ```python and ends with ```. It runs in the "
    "shared folder, in a new process: it finds the files there, and no variables of earlier programs. It "
    "can't be asked anything, and has no network. You see what it prints, and its error."
)


class DataScienceRole(ProseRole):
    """A role of environment `data_science`. Its prompt: competition, files, what was done, what to do."""

    game = "data_science"

    def sections(self, seen: PipelineObservation, shows_task: bool) -> Sequence[Sequence[str]]:
        return (
            ("Competition:", seen.task.strip()),
            ("Data, the same for every program:", *seen.data),
            ("Files of the team:", *(seen.files or ("none yet",))),
            *(_lines(entry, self.role) for entry in seen.transcript),
        )

    def asked(self, seen: PipelineObservation) -> str:
        lines = [f"You are in turn {seen.turn} of at most {seen.turns}."]
        if seen.inherited:
            lines.append("Earlier roles have not left what they were to: " + "; ".join(seen.inherited) + ".")
        if seen.required:
            lines.append(f"You have to leave these files in the folder: {', '.join(seen.required)}.")
            lacking = f"Missing of them: {', '.join(seen.missing)}." if seen.missing else ""
            lines.append(lacking or "All of them are there.")
        lines.append(f"A program may take {seen.limits}.")
        lines.append(
            "Write a program. If your work is done with it, add the word DONE on a line of its own; if it is "
            "done already, write DONE without a program."
        )
        return "\n".join(lines)

    def parse(self, text: str, observation: Any) -> Any:
        """The program; "" for a message without one, which hands over.

        Raises:
            PolicyFault: the message is empty, or its program is never closed.
        """
        if not text.strip():
            raise PolicyFault("the message is empty")
        try:
            return read_program(text)
        except PolicyFault:
            if any(line.strip().lower().startswith("```py") for line in text.splitlines()):
                raise
            return ""


def _lines(entry: TranscriptEntry, role: str) -> list[str]:
    """An earlier action in a prompt, with what came of its program."""
    mine = entry.role == role
    who = "You" if mine else f"The {entry.role.replace('_', ' ')}"
    lines = [f"{who} wrote in turn {entry.turn}:", entry.text.strip() or "(nothing)"]
    if entry.note:
        lines.append(f"({entry.note})")
    if entry.run is not None:
        lines += ["", *_run_lines(entry.run)]
    return lines


def _run_lines(run: ProgramRun) -> list[str]:
    if run.status == "unused":
        return [f"The program was not run: {run.problem}."]
    ended = {"finished": "finished", "failed": "failed", "timeout": "was out of time", "killed": "was ended"}
    head = f"The program {ended[run.status]}" + (f" ({run.problem})" if run.problem else "")
    lines = [f"{head}."]
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        if text.strip():
            lines += [f"Its {name}:", text.rstrip()]
    return lines


class DataEngineer(DataScienceRole):
    """First of three: makes features of the tables."""

    role = "data_engineer"
    task = (
        f"You are the data engineer, the first of {_TEAM} You look at the tables, clean them, and make "
        "features for the modeler: from the train table X_train and y_train, from the test table X_test with "
        "the same columns in the same order and all its rows. Numbers only, nothing missing; use nothing "
        "that the test table doesn't have. Save each as a pickle under the name that you are told, and print "
        "what the modeler and the analyst need to know: shapes, columns, how the target was encoded, where "
        f"the ids are. {_FORM}"
    )


class Modeler(DataScienceRole):
    """Second of three: trains a model on the features."""

    role = "modeler"
    task = (
        f"You are the modeler, the second of {_TEAM} You load X_train.pkl and y_train.pkl, compare a few "
        "models by cross-validation with the competition's metric, train the best one on all rows, and save "
        "it with pickle under the name that you are told. Print its validation score, and how the analyst "
        f"gets predictions of the form that the competition asks for. {_FORM}"
    )


class Analyst(DataScienceRole):
    """Last of three: writes the submission."""

    role = "analyst"
    task = (
        f"You are the analyst, the last of {_TEAM} You load the model and X_test.pkl, predict, and write the "
        "submission in CSV: the id column and the target columns that the competition names, and no other, "
        "with one row for each row of the test table and nothing missing. Check the file by reading it "
        f"again. {_FORM}"
    )

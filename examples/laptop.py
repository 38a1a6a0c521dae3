"""Train two writers on this machine, and show two of their episodes before and after, side by side.

    python examples/laptop.py [--model FOLDER] [--data FILE] [--steps N] [--out FOLDER]

`make laptop` calls it. It runs commands of Coterie and prints each, so that you can run them yourself. After
an interrupt the same call goes on where it stopped. docs/laptop.md says what to expect.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

RECIPE = ("magrpo_tldr", "--scale", "laptop")
TASKS, SHOWN = 16, 2
"""Posts of test that both teams write on, and how many of them are shown."""
NARROW = 70
"""Columns of a terminal below which texts stand below each other."""
LONGEST = 600
"""Most characters of a post that are shown."""
LEVELS = {
    "success": "both texts fit each other",
    "outcome/structure": "texts of 8 to 256 words",
    "outcome/length": "ratio of the lengths",
    "outcome/vocabulary": "ratio of the words",
    "outcome/style": "transition words, common words",
}
"""Metrics of an evaluation that are compared, and what they measure."""
WRONG_INPUT, INTERRUPTED = 2, 130
"""Exit codes of a command: something in the input is wrong; Ctrl-C."""


class StoppedError(Exception):
    """A command did not end well; it has printed why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Options(NamedTuple):
    """The arguments of the call."""

    model: str
    data: str
    steps: int | None
    out: Path


def main() -> int:
    """Evaluate, train, evaluate again, and print both; the exit code."""
    options = arguments()
    run = options.out / "run"
    try:
        settings = kept_settings(options)
        before = evaluated(options.out / "before.json", [*RECIPE, *settings])
        steps = trained(run, settings, options.steps)
        after = evaluated(options.out / f"after-{steps}.json", [f"{run}@latest"])
    except StoppedError as stopped:
        advise(stopped.code, options)
        return stopped.code
    except OSError as error:
        print(
            f"Error: {error}\n  fix: free space, or name another folder: make laptop OUT=FOLDER",
            file=sys.stderr,
        )
        return 2
    show(before, after, steps)
    print(f"\nthe run: {run}; its report: coterie report {shlex.quote(str(run))} -o report.html")
    return 0


def arguments() -> Options:
    """The arguments; an empty one is none, as `make` gives it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="a folder, or an id of the hub [SmolLM2-135M-Instruct]")
    parser.add_argument("--data", default="", help="a JSONL file with a field `prompt` [TL;DR, of the hub]")
    parser.add_argument("--steps", default="", help="steps of training [the recipe's]")
    parser.add_argument("--out", default="runs/laptop", help="folder of the run [runs/laptop]")
    given = parser.parse_args()
    if given.steps and not (given.steps.isascii() and given.steps.isdigit() and int(given.steps) > 0):
        parser.error(f"--steps {given.steps}: a whole number from 1 on is needed (make laptop STEPS=20)")
    model = given.model if not given.model or is_id(given.model) else str(absolute(given.model))
    data = str(absolute(given.data)) if given.data else ""
    return Options(model, data, int(given.steps) if given.steps else None, Path(given.out).expanduser())


def is_id(model: str) -> bool:
    """Whether a model's name is an id of the hub rather than a folder's."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) is not None and not Path(model).exists()


def absolute(path: str) -> Path:
    """The path from the root on, with the home folder for `~`."""
    return Path(path).expanduser().absolute()


def kept_settings(options: Options) -> list[str]:
    """The overrides of the recipe; they are kept in the folder, since a run that goes on has one model.

    Raises:
        StoppedError: the folder's are other ones.
        OSError: they can't be written.
    """
    settings = []
    if options.model:
        settings.append(f"policies.*.model={json.dumps(options.model)}")
    if options.data:
        settings.append(f"data={json.dumps({'type': 'jsonl', 'path': options.data})}")
    kept = options.out / "settings.json"
    if kept.is_file():
        others = json.loads(kept.read_text(encoding="utf-8"))
        if others != settings:
            there, here = (" ".join(each) or "the recipe's model and data" for each in (others, settings))
            print(
                f"Error: {options.out} holds a run of other settings\n  why: {there} there, and {here} here\n"
                f"  fix: make laptop OUT=runs/other, or remove {options.out}",
                file=sys.stderr,
            )
            raise StoppedError(2)
        return settings
    options.out.mkdir(parents=True, exist_ok=True)
    write(kept, json.dumps(settings))
    return settings


def evaluated(file: Path, source: list[str]) -> dict[str, Any]:
    """The JSON of `coterie eval`, which is kept in a file, so that it is made once."""
    if file.is_file():
        return dict(json.loads(file.read_text(encoding="utf-8")))
    text = coterie("eval", *source, "--split", "test", "--tasks", str(TASKS), "--show", str(SHOWN), "--json")
    result = json.loads(text)
    write(file, text)
    return dict(result)


def trained(run: Path, settings: list[str], steps: int | None) -> int:
    """Train to the end, or go on where an earlier call stopped; the run's steps."""
    given = [f"schedule.steps={steps}"] if steps else []
    if not (run / "config.yaml").is_file():
        coterie("run", *RECIPE, *settings, *given, "--out", str(run), shown=True)
    elif steps is None or steps != last_step(run):
        coterie("run", "--resume", str(run), *given, shown=True)
    return last_step(run)


def last_step(run: Path) -> int:
    """The latest step in a run's metrics; 0 where there is none."""
    file = run / "metrics.jsonl"
    rows = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return int(json.loads(rows[-1])["step"]) if rows else 0


def coterie(*words: str, shown: bool = False) -> str:
    """Run a command of Coterie; what it prints to stdout, unless that is shown.

    Ctrl-C reaches the command too, which finishes its step and saves; so it is waited for.

    Raises:
        StoppedError: it ended with another exit code than 0.
    """
    print(f"$ {shlex.join(('coterie', *words))}", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", *words],
        stdout=None if shown else subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    while True:
        try:
            text, _ = process.communicate()
            break
        except KeyboardInterrupt:
            continue
    if process.returncode:
        raise StoppedError(process.returncode)
    return text or ""


def write(file: Path, text: str) -> None:
    """Write a file whole: after a kill it is there or it is not."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)


def advise(code: int, options: Options) -> None:
    """Say how to go on after a command that did not end well."""
    if code == INTERRUPTED:
        print("interrupted; the same command goes on from here", file=sys.stderr)
    elif code == WRONG_INPUT and not (options.model and options.data):
        lacking = ["MODEL=FOLDER"] * (not options.model) + ["DATA=FILE"] * (not options.data)
        print(
            f"without the hub: make laptop {' '.join(lacking)}: a folder that holds a model and its "
            "tokenizer, a JSONL file whose records have a field `prompt` (docs/laptop.md)",
            file=sys.stderr,
        )


# --------------------------------------------------------------------------------------- side by side


class Turn(NamedTuple):
    """What a role was asked and wrote."""

    role: str
    prompt: list[str]
    answer: list[str]


def read(episode: str) -> tuple[str, list[Turn], str]:
    """(task, turns, how it ended) of an episode's text, as `coterie eval --show` prints it."""
    task, end = "", ""
    turns: list[Turn] = []
    for line in episode.splitlines():
        if line.startswith("    | ") and turns:
            turns[-1].prompt.append(line[6:])
        elif line.startswith("    > ") and turns:
            turns[-1].answer.append(line[6:])
        elif found := re.match(r"  turn \d+  (\S+) \(", line):
            turns.append(Turn(found[1], [], []))
        elif line.startswith("task "):
            task = line[5:]
        elif line.startswith("  end: "):
            end = line[7:]
    return task, turns, end


def show(before: dict[str, Any], after: dict[str, Any], steps: int) -> None:
    """Print the measures of both teams, and their episodes side by side."""
    console = Console(highlight=False)
    titles = ("before", f"after {steps} steps")
    console.print(measures(before, after, titles))
    for old, new in zip(before["episodes"], after["episodes"], strict=False):
        console.print(side_by_side(old, new, titles, console.width))


def measures(before: dict[str, Any], after: dict[str, Any], titles: tuple[str, str]) -> Table:
    """A table of the metrics of both teams."""
    table = Table(
        title=f"mean of {before['success']['n']} posts of test, each from 0 to 1", title_justify="left"
    )
    for title in ("", *titles):
        table.add_column(Text(title), justify="left" if not title else "right")
    for name, what in LEVELS.items():
        values = (each["metrics"].get(name) for each in (before, after))
        table.add_row(Text(what), *("-" if value is None else f"{value:.2f}" for value in values))
    return table


def side_by_side(old: str, new: str, titles: tuple[str, str], width: int) -> RenderableType:
    """An episode of both teams: the post once, then what each role wrote before and after."""
    (task, turns, ended), (_, later, ended_later) = read(old), read(new)
    parts: list[RenderableType] = [Text(harmless(post(turns)), style="dim")]
    if width < NARROW:
        for one, two in zip(turns, later, strict=False):
            for title, turn in zip(titles, (one, two), strict=True):
                parts += [Text(f"\n{turn.role}, {title}:", style="bold"), written(turn)]
        parts += [Text(f"\n{titles[0]}: {ended}"), Text(f"{titles[1]}: {ended_later}")]
    else:
        table = Table(expand=True, show_lines=True)
        table.add_column("")
        for title in titles:
            table.add_column(Text(title), ratio=1, overflow="fold")
        for one, two in zip(turns, later, strict=False):
            table.add_row(Text(one.role, style="bold"), written(one), written(two))
        table.add_row(Text("end", style="bold"), Text(ended), Text(ended_later))
        parts.append(table)
    return Panel(Group(*parts), title=Text(harmless(task)), title_align="left")


def post(turns: list[Turn]) -> str:
    """The source of the first prompt, shortened: all but the system message and what is asked for."""
    lines = turns[0].prompt[1:-1] if turns else []
    text = "\n".join(lines).strip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def written(turn: Turn) -> Text:
    """What a role wrote."""
    return Text(harmless("\n".join(turn.answer)))


def harmless(text: str) -> str:
    """Text without characters that move a terminal's cursor, change its colours or turn its lines."""
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in text)


if __name__ == "__main__":
    sys.exit(main())

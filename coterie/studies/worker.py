"""One job of a study in a process of its own: `python -m coterie.studies.worker job.json`.

`job.json` specifies the job; its paths are absolute. The worker writes `result.json` beside it, atomically,
or `error.json` if the job fails. With `--with-parent` the job ends when its standard input is closed. The
runner holds the other end of that pipe, so that no job outlives the runner, however the runner ends. A
training first finishes its step and saves.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie import (
    ConfigError,
    CoterieError,
    RunFolderError,
    TrainResult,
    UserError,
    WriteError,
    __version__,
    evaluate as evaluate_run,
    export,
    load,
    load_plugin_file,
    locked,
    read_metrics,
    to_json,
    train as train_run,
    vocabulary,
    write_atomic,
)
from coterie.studies.answers import mean

INTERRUPTED = 130
LOCK_SECONDS = 300.0
"""What another process, whose runner is gone, may still work in the job's folder."""
PACKAGES = ("numpy", "torch", "transformers", "peft", "tokenizers")
"""Packages whose versions a result records."""


def main(arguments: list[str]) -> int:
    """Exit code: 0 done, 1 failed, 130 interrupted."""
    file = Path(arguments[0])
    spec = json.loads(file.read_text(encoding="utf-8"))
    interrupt = threading.Event()
    if "--with-parent" in arguments:
        threading.Thread(target=_watch, args=(interrupt, spec["kind"]), daemon=True).start()
    folder = file.parent
    with _alone(folder) as alone:
        if (folder / "result.json").is_file():
            return 0
        (folder / "error.json").unlink(missing_ok=True)
        try:
            if not alone:
                raise RunFolderError(
                    f"another process still works in {folder} after {LOCK_SECONDS:g} s",
                    why="it outlived an earlier call, and hangs or is stopped",
                    fix="end it, and give the same command again",
                )
            result = _do(spec, folder, interrupt)
            if result is None:
                return INTERRUPTED
            write_atomic(folder / "result.json", to_json(result) + "\n")
            return 0
        except Exception as error:
            # The message of a UserError is complete; any other error is a bug, which needs a traceback.
            if not isinstance(error, UserError):
                traceback.print_exc()
            message = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
            print(f"Error: {message}", file=sys.stderr)
            with suppress(WriteError):  # on a full disk the log may still have room
                write_atomic(folder / "error.json", json.dumps({"error": message}) + "\n")
            return 1


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """The lock of a job's folder; yields whether this process has it: a job may outlive its runner."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        with locked(folder, wait=False) as acquired:
            if acquired or time.monotonic() > end:
                yield acquired
                return
        time.sleep(0.1)


def _do(spec: Mapping[str, Any], folder: Path, interrupt: threading.Event) -> dict[str, Any] | None:
    """Do the job and return its result; None: interrupted."""
    begin = time.perf_counter()
    for plugin in spec["plugins"]:
        load_plugin_file(plugin)
    result = HANDLERS[spec["kind"]](spec, folder, interrupt)
    if result is None:
        return None
    return {
        "id": spec["id"],
        "kind": spec["kind"],
        "label": spec["label"],
        "command": spec["command"],
        "seconds": time.perf_counter() - begin,
        "versions": {**versions(), **result.pop("versions", {})},
        **result,
    }


def _watch(interrupt: threading.Event, kind: str) -> None:
    """Interrupt the job when the runner's end of the pipe closes; only a training has something to save."""
    os.read(0, 1)
    interrupt.set()
    if kind != "train":
        os._exit(INTERRUPTED)


def base(spec: Mapping[str, Any], folder: Path, interrupt: threading.Event) -> dict[str, Any]:
    """Make common initial weights: a run of no steps (its warm start only), exported."""
    result, _ = _train(spec, folder, interrupt)
    shutil.rmtree(folder / "base", ignore_errors=True)
    export(result.folder, spec["policy"], folder / "base", merge=spec["merge"], checkpoint="latest")
    model = load(result.folder).config.policies[spec["policy"]].model
    words = not isinstance(model, str) and dict(model).get("tokenizer") == "words"
    known = sorted(vocabulary(result.folder)) if words else None
    write_atomic(folder / "words.json", json.dumps(known) + "\n")
    return {"run": "run", "base": "base", "tokens": 0, "versions": result.versions}


def train(spec: Mapping[str, Any], folder: Path, interrupt: threading.Event) -> dict[str, Any] | None:
    """Train to the token budget, from the latest checkpoint if there is one; None: interrupted."""
    result, start_up = _train(spec, folder, interrupt)
    if not result.finished:
        if interrupt.is_set():
            return None
        raise CoterieError(f"the run stopped at step {result.step}, before its budget was spent")
    rows = read_metrics(result.folder / "metrics.jsonl")
    # The steps of all processes that worked on the run, including the finished steps of a killed one.
    steps = sum((row.get("time/step") or 0.0) + (row.get("time/evaluate") or 0.0) for row in rows)
    return {
        "run": "run",
        "steps": result.step,
        "tokens": result.tokens,
        "budget": spec["tokens"],
        "seconds": start_up + steps,
        "config_digest": load(result.folder).digest(),
        "versions": result.versions,
    }


def _train(spec: Mapping[str, Any], folder: Path, interrupt: threading.Event) -> tuple[TrainResult, float]:
    """(the result, the seconds of this process outside the steps)."""
    run, begin = folder / "run", time.perf_counter()
    check_vocabulary(spec)
    if (run / "config.yaml").is_file():
        result = train_run(None, resume=run, interrupt=interrupt)
    else:
        result = train_run(
            spec["recipe"],
            overlays=spec["overlays"],
            overrides=spec["overrides"],
            scale=spec["scale"],
            out=run,
            interrupt=interrupt,
        )
    return result, time.perf_counter() - begin - result.seconds


def evaluate(spec: Mapping[str, Any], folder: Path, interrupt: threading.Event) -> dict[str, Any]:
    """Evaluate on the test split, sampled, from the latest checkpoint: nothing is chosen on test."""
    trained = spec["run"] is not None
    check_vocabulary(spec)
    evaluation = evaluate_run(
        Path(spec["run"]) if trained else spec["recipe"],
        overlays=() if trained else spec["overlays"],
        overrides=spec["overrides"],
        scale=None if trained else spec["scale"],
        split="test",
        tasks=spec["tasks"],
        checkpoint="latest",
        swap=tuple(spec["swap"]) if spec["swap"] else None,
        policies=spec["policies"],
    )
    files = evaluation.facts.get("plugin_files", {})
    result = {
        **evaluation.as_dict(),
        "versions": {
            **evaluation.facts["versions"],
            **{Path(file).name: f"sha256 {digest[:12]}" for file, digest in files.items()},
        },
        "per_task": dict(evaluation.per_task),
        "returns": dict(evaluation.returns),
        "answer_tokens": mean(evaluation.lengths),
        "answer_seconds": evaluation.seconds / len(evaluation.lengths) if evaluation.lengths else None,
    }
    if evaluation.comparison is not None:
        result["changed_per_task"] = dict(evaluation.comparison.changed_per_task)
    return result


def check_vocabulary(spec: Mapping[str, Any]) -> None:
    """Check that the tokenizer of the common initial weights knows every word of the variant.

    Raises:
        ConfigError: it lacks one; it would read all unknown words as one and the same token.
    """
    if spec["base"] is None:
        return
    known = json.loads((Path(spec["base"]) / "words.json").read_text(encoding="utf-8"))
    words = vocabulary(spec["recipe"], **{key: spec[key] for key in ("overlays", "overrides", "scale")})
    unknown = sorted({*words} - {*(known or words)})
    if unknown:
        raise ConfigError(
            f"the common initial weights don't know the word '{unknown[0]}'",
            path="forms.base",
            why=f"{len(unknown)} words of this variant are not in their vocabulary",
            fix="give the variant `base` an environment and roles that use all words of the column",
        )


HANDLERS = {"base": base, "train": train, "evaluate": evaluate}


def versions() -> dict[str, str]:
    """Versions of everything that may change a number."""
    machine = f"{platform.system()} {platform.machine()}"
    by_name = {"coterie": __version__, "python": platform.python_version(), "machine": machine}
    for package in PACKAGES:
        try:
            by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return by_name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Export of a policy as a Hugging Face folder or a PEFT adapter."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.api.model_card import CARD, model_card
from coterie.api.open_run import to_its_end
from coterie.api.run_record import load_run, read_record
from coterie.core.errors import ConfigError, UserError, did_you_mean
from coterie.core.plugins.origin import closed, plugin_call
from coterie.core.storage.atomic import TEMPORARY, written

log = logging.getLogger("coterie")


def export(
    run_dir: Path | str,
    policy: str,
    out: Path | str,
    *,
    merge: bool = False,
    checkpoint: Literal["best", "latest"] | int = "best",
    overwrite: bool = False,
) -> Path:
    """Write a policy of a run as a Hugging Face folder, or as a PEFT adapter where it is one.

    The folder has a model card, unless the trainer writes one.
    The files appear in `out` once all of them are written; an export that fails leaves `out` as it was.

    Args:
        merge: merge an adapter into the weights it was trained on, and write a whole model.
        overwrite: replace files of the same names in a folder that holds files. Its other files stay.

    Returns:
        the folder `out`.

    Raises:
        UserError: the run, the checkpoint or the policy does not exist, or `out` holds files.
        WriteError: `out` can't be written.
    """
    folder, out = Path(run_dir), Path(out)
    restore = find_checkpoint(folder, checkpoint)
    run = load_run(folder)
    if policy not in run.config.policies:
        raise ConfigError(
            f"unknown policy '{policy}'", path="--policy", fix=did_you_mean(policy, run.config.policies)
        )
    _check_free(out, overwrite)

    async def go() -> None:
        try:
            await run.open_trainer(restore.path)  # the engine may need what this machine lacks
            with _complete(out) as part, plugin_call(run.trainer, "export"):
                run.trainer.export(policy, part, merge=merge)
                if not (part / CARD).exists():  # a trainer may write its own
                    card = model_card(run, read_record(folder), folder, restore, policy)
                    (part / CARD).write_text(card, encoding="utf-8")
        finally:
            await closed(run.trainer)

    to_its_end(go())
    return out


def _check_free(out: Path, overwrite: bool) -> None:
    """Refuse a target that holds files, before a model is loaded.

    Raises:
        UserError: `out` is a file, or a folder that holds files and is not to be overwritten.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", path="--out", fix="name a folder")
    files = _names(out) if out.exists() else []
    if files and not overwrite:
        raise UserError(
            f"the folder {out} is not empty",
            path="--out",
            why=f"it holds {_few(files)}",
            fix="choose another folder, or replace files of the same names with --overwrite",
        )


@contextmanager
def _complete(out: Path) -> Iterator[Path]:
    """A hidden folder. When all is written, its files move to `out`; after an error it is removed.

    Raises:
        WriteError: the disk is full, or `out` can't be written.
    """
    new = not out.exists()
    with written(f"the export {out}"):
        parent = out.parent if new else out  # on the file system of `out`
        parent.mkdir(parents=True, exist_ok=True)
        part = parent / f"{TEMPORARY}{out.name}-{secrets.token_hex(4)}"
        part.mkdir()
        try:
            yield part
            _name_itself(part, out)
            if new:
                os.rename(part, out)
                return
            _warn_of_others(out, part)
            for file in [path for path in part.rglob("*") if path.is_file()]:
                target = out / file.relative_to(part)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _name_itself(part: Path, out: Path) -> None:
    """Replace the hidden folder's path in JSON files: an adapter names the folder of its base."""
    hidden, final = (json.dumps(str(path.resolve()))[1:-1].encode() for path in (part, out))
    for file in part.rglob("*.json"):
        raw = file.read_bytes()
        if hidden in raw:
            file.write_bytes(raw.replace(hidden, final))


def _warn_of_others(out: Path, part: Path) -> None:
    """Name the files that stay beside an export: weights of another kind would be loaded with it."""
    others = [name for name in _names(out) if not (part / name).exists()]
    if others:
        log.warning("%s keeps files that this export has not written: %s", out, _few(others))


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(TEMPORARY))


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

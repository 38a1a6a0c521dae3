"""Export of a policy as a Hugging Face folder or a PEFT adapter, with its model card.

The card is `README.md` with YAML front matter, in the format of the Hugging Face Hub. It states what the
run's folder has on record and no more, without paths of this machine. A licence is for whoever publishes the
model to state.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.api.open_run import to_its_end
from coterie.api.rollouts import read_rollouts
from coterie.api.run_record import RunRecord, load_run, read_record
from coterie.compose.contents import replaced
from coterie.compose.settings import settings_of
from coterie.core.config import to_yaml
from coterie.core.errors import ConfigError, UserError, did_you_mean
from coterie.core.plugins.origin import closed, plugin_call
from coterie.core.storage.atomic import TEMPORARY, written
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.secret_settings import without_secrets

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


CARD = "README.md"
SYSTEM = "[system]\n"
"""How a recorded prompt with a system message begins."""


def model_card(run: Run, record: RunRecord | None, folder: Path, checkpoint: Checkpoint, policy: str) -> str:
    """The card of a policy.

    Args:
        record: `resolved.yaml`; None: the folder has none, and the card neither versions nor digests.
        folder: the run's.
    """
    record = None if record is None else record.at(checkpoint.step)
    config, known = run.config, settings_of(run.config)
    settings = without_secrets(known.table)
    local = {path for path, file in known.files.items() if os.path.isabs(file.text)}
    for path in local:
        settings = replaced(settings, known.files[path].keys, Path(known.files[path].text).name)
    roles = [role for role, played in run.team.policies.items() if played == policy]
    plays = f"the role{'s' * (len(roles) > 1)} " + ", ".join(f"`{r}`" for r in roles) if roles else "no role"
    version = record.versions.get("coterie", "") if record is not None else "(version not recorded)"
    parts = [
        f"# {policy}, of the run {folder.resolve().name}",
        f"The policy `{policy}` of a team of language models, trained with Coterie {version} "
        f"to step {checkpoint.step}. It plays {plays}.",
        "## Weights",
        origin_of_weights(
            settings["policies"][policy], record, policy, local=f"policies.{policy}.model" in local
        ),
        "## Training",
        _training(run, record, folder, checkpoint),
        "## Team",
        f"`team.order` is {json.dumps(settings['team']['order'])}, for up to {config.team.max_turns} turns.",
    ]
    system = dict(_system_messages(RunFolder(folder)))
    for role in run.team.members:
        stated = settings["team"]["roles"][role]
        shown = {key: value for key, value in stated.items() if value is not None}
        parts += [f"### Role {role}, played by `{run.team.policies[role]}`", _fenced(to_yaml(shown), "yaml")]
        if role in system:
            parts += ["Its system message, as it was recorded in training:", _fenced(system[role])]
    parts += ["## Environment and rewards"]
    game = {key: settings[key] for key in ("env", "data", "rewards", "transition") if settings.get(key)}
    parts += [_fenced(to_yaml(game), "yaml")]
    return (
        f"---\n{to_yaml(front_matter(settings, policy, local=f'policies.{policy}.model' in local))}---\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def front_matter(table: Mapping[str, Any], policy: str, *, local: bool) -> dict[str, Any]:
    """The front matter; a base is named only where it is an id of a hub."""
    settings = table["policies"][policy]
    front: dict[str, Any] = {"tags": ["coterie", "reinforcement-learning", str(table["algorithm"]["type"])]}
    if isinstance(settings["model"], str) and not local:
        front["base_model"] = settings["model"]
    return front


def origin_of_weights(
    settings: Mapping[str, Any], record: RunRecord | None, policy: str, *, local: bool
) -> str:
    """The model card's sentences on the base of a policy, and on what was trained."""
    model, revision = settings["model"], settings.get("revision")
    if not isinstance(model, str):
        source = f"The base has random initial weights: `{json.dumps(model)}`."
    elif local:
        entry = record.files.get(f"policies.{policy}.model", {}) if record is not None else {}
        digest = f", sha256 `{entry['sha256']}`" if "sha256" in entry else ""
        source = f"The base is the local folder `{model}`{digest}."
    else:
        source = f"The base is `{model}`, {_revision(revision)}."
    lines = [source]
    if settings.get("from"):
        lines.append(f"It began with the weights of `{Path(str(settings['from'])).name}`.")
    elif settings.get("warm_start"):
        lines.append("It was first trained on demonstrations of the environment's oracle (`warm_start`).")
    trained = {
        "full": "All weights were trained.",
        "lora": f"A LoRA adapter was trained: `{json.dumps(settings.get('lora'))}`.",
        "none": "Nothing was trained.",
    }
    return " ".join([*lines, trained[settings["train"]]])


def _training(run: Run, record: RunRecord | None, folder: Path, checkpoint: Checkpoint) -> str:
    config = run.config
    rows = [
        ("run", folder.resolve().name),
        ("step", checkpoint.step),
        ("algorithm", config.algorithm["type"]),
        ("loss", config.loss["type"]),
        ("seed", config.seed),
        ("configuration", checkpoint.meta.get("config_digest", "not recorded")),
    ]
    if record is not None:
        rows += [("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items()))]
        rows += [(setting, _file(entry)) for setting, entry in record.files.items()]
        files = record.plugin_files.items()
        rows += [(f"plugin file {Path(file).name}", f"sha256 {digest}") for file, digest in files]
        changes = (change for change in record.changes if change["settings"])
        rows += [(f"changed at step {change['step']}", ", ".join(change["settings"])) for change in changes]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in rows)])


def _file(entry: Mapping[str, Any]) -> str:
    if "sha256" in entry:
        return f"{Path(entry.get('path', '')).name} sha256 {entry['sha256']}".strip()
    return f"{entry['id']}, {_revision(entry.get('revision'))}"


def _revision(revision: Any) -> str:
    return f"revision {revision}" if revision else "no revision stated"


def _system_messages(folder: RunFolder) -> Iterator[tuple[str, str]]:
    """(role, text) of the system messages in the newest recorded rollouts."""
    newest = max(folder.rollouts.glob("step-*"), default=None)
    for row in read_rollouts(newest) if newest is not None else ():
        prompt = row.get("prompt", "")
        if row.get("kind") == "node" and prompt.startswith(SYSTEM):
            yield row["role"], prompt.removeprefix(SYSTEM).partition("\n\n[user]\n")[0]


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"

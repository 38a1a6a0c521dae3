"""The model card of an export: `README.md` with YAML front matter, in the format of the Hugging Face Hub.

It states what the run's folder has on record and no more, without paths of this machine. A licence is for
whoever publishes the model to state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.api.rollouts import read_rollouts
from coterie.api.run_record import RunRecord
from coterie.compose.contents import replaced
from coterie.compose.settings import settings_of
from coterie.core.config import to_yaml
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.secret_settings import without_secrets

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
    parts = [
        f"# {policy}, of the run {folder.resolve().name}",
        f"The policy `{policy}` of a team of language models, trained with Coterie {_version(record)} "
        f"to step {checkpoint.step}. It plays {_listed(roles) if roles else 'no role'}.",
        "## Weights",
        _weights(settings["policies"][policy], record, policy, local=f"policies.{policy}.model" in local),
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
        f"---\n{to_yaml(_front(settings, policy, local=f'policies.{policy}.model' in local))}---\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def _front(table: Mapping[str, Any], policy: str, *, local: bool) -> dict[str, Any]:
    """The front matter; a base is named only where it is an id of a hub."""
    settings = table["policies"][policy]
    front: dict[str, Any] = {"tags": ["coterie", "reinforcement-learning", str(table["algorithm"]["type"])]}
    if isinstance(settings["model"], str) and not local:
        front["base_model"] = settings["model"]
    return front


def _weights(settings: Mapping[str, Any], record: RunRecord | None, policy: str, *, local: bool) -> str:
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


def _version(record: RunRecord | None) -> str:
    return record.versions.get("coterie", "") if record is not None else "(version not recorded)"


def _listed(roles: list[str]) -> str:
    return ("the role " if len(roles) == 1 else "the roles ") + ", ".join(f"`{role}`" for role in roles)

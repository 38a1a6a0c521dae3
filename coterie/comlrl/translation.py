"""A configuration of the original as a recipe of ours, with what has no counterpart."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie import ConfigError, TableFrom, did_you_mean
from coterie.comlrl.mapping import (
    CHOOSING,
    MODES,
    ONE_TURN,
    ROWS,
    WITH_TESTS,
    Dropped,
    KeyRow,
    TranslatedCase,
    choice,
    text,
    truth,
    whole,
)
from coterie.comlrl.reading import Given, Original

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class DataSetType:
    """A type of data set of the original."""

    name: str
    """The end of our recipes' names, and our data source."""
    hub: str
    """The set on the Hub that our source reads by default."""
    turns: bool = True
    """Whether it can be played in several turns."""


KINDS = {
    "humaneval": DataSetType("humaneval", "openai/openai_humaneval"),
    "coophumaneval": DataSetType("coop_humaneval", "CoMLRL/CoopHumanEval"),
    "mbpp": DataSetType("mbpp", "google-research-datasets/mbpp"),
    "tldr": DataSetType("tldr", "trl-lib/tldr", turns=False),
    "arxiv": DataSetType("arxiv", "OpenMLRL/arXiv_abstract", turns=False),
}
"""By `dataset.type`."""
ROLES = {True: (("aux", "main"), ("solver",)), False: (("first", "second"), ("solver",))}
"""By whether it is code: the roles of a team, and of a single agent."""
ALL_WEIGHTS = {"policies.*.train": "full", "policies.*.lora": None}
"""The original trains all weights, and knows no adapters; our recipes train adapters."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What a configuration of the original becomes."""

    table: TableFrom
    """A recipe that extends one of ours: a source of `load`, `train` and `compose`."""
    recipe: str
    """The recipe that it extends."""
    base_dir: str | None
    """The folder in which the original makes its run folders."""
    dropped: Mapping[str, str]
    """By dotted key: why it has no counterpart, or no effect."""
    mentions: Mapping[str, str]
    """By dotted key: what a user should know of a value that has an effect."""

    def warn(self) -> None:
        """Name in one warning every key that has no counterpart, with the reason; then what to know."""
        name = self.table.origin.removeprefix("file ")
        if self.dropped:
            keys = [f"\n  {key}: {why}" for key, why in self.dropped.items()]
            count = "1 key changes" if len(keys) == 1 else f"{len(keys)} keys change"
            log.warning("of %s, %s nothing:%s", name, count, "".join(keys))
        for key, mention in self.mentions.items():
            log.warning("%s of %s: %s", key, name, mention)


def translate(original: Original) -> Translation:
    """The original's configuration as a recipe of ours.

    Raises:
        ConfigError: a value is of the wrong type, or there is no recipe for it; the path is a key of theirs.
    """
    kind, coder = _kind(original)
    agents = _agents(original)
    path = f"{original.program}.num_turns"
    turns = whole(1)(original.get(path, 1), path)
    if turns > 1 and not kind.turns:
        raise ConfigError(f"'{kind.name}' is played in one turn", path=path, fix=f"set {path}=1")
    case = TranslatedCase(
        turns=turns,
        mode=_mode(original) if turns > 1 else "",
        roles=ROLES[kind.turns][agents == 1],
        # The programs of writing process rewards by default, those of code don't.
        processed=truth(original.get("reward_processor.enabled", not kind.turns), "reward_processor.enabled"),
    )
    prefix = "grpo" if agents == 1 else "mt_magrpo" if turns > 1 else "magrpo"
    recipe = f"{prefix}_{kind.name}"
    settings: dict[str, Any] = {"data.type": coder, **ALL_WEIGHTS}
    hub = original.get("dataset.name")
    if hub is not None and hub != next(each.hub for each in KINDS.values() if each.name == coder):
        settings["data.hub"] = text(hub, "dataset.name")
    if turns > 1:
        settings |= {"team.max_turns": turns, "transition.type": case.mode}
    if case.mode in WITH_TESTS:
        settings["env.feedback_tests"] = "hidden"  # there is no choice of them there
    dropped: dict[str, str] = {}
    mentions: dict[str, str] = {}
    for row in ROWS:
        key = _apply(row, original, case, settings, dropped)
        mentions |= {key: row.mention} if key and row.mention else {}
    dropped |= _others(original, case)
    mentions |= _one_turn(mentions, settings)
    table = _nested(settings) | {"extends": recipe, "name": original.file.stem}
    table["summary"] = f"{original.file.name} of CoMLRL's {original.program.upper()}."
    table["scales"] = {"smoke": _smoke(table)}
    base = original.get("output.base_dir")
    base_dir = None if base is None else text(base, "output.base_dir")
    return Translation(TableFrom(table, f"file {original.file}"), recipe, base_dir, dropped, mentions)


def _kind(original: Original) -> tuple[DataSetType, str]:
    """The kind of a configuration's data, and the data source that reads its rows."""
    named = original.get("dataset.type")
    name = str(original.get("dataset.name", ""))
    if named is None:
        bare = name.lower().replace("_", "").replace("-", "")
        near = [word for word in ("coophumaneval", "humaneval", "mbpp", "tldr", "arxiv") if word in bare]
        if not near:
            fix = f"set dataset.type to one of {', '.join(KINDS)}"
            raise ConfigError("the type of the data is not set", path="dataset.type", fix=fix)
        named = near[0]
    kind: DataSetType = choice(KINDS)(named, "dataset.type")
    # The original's copies of MBPP have the columns of HumanEval.
    published = kind.name != "mbpp" or name in ("", kind.hub)
    return kind, kind.name if published else "coop_humaneval"


def _agents(original: Original) -> int:
    path = f"{original.program}.num_agents"
    alone = original.program == "grpo"
    agents = whole(1)(original.get(path, 1 if alone else 2), path)
    if agents > 2 or (alone and agents > 1):
        why = "the section grpo is a single agent's" if alone else "the teams of these tasks have two roles"
        fix = "move the settings to the section magrpo" if alone else f"set {path}=2, or 1 for a single agent"
        raise ConfigError(f"there is no recipe for {agents} agents", path=path, why=why, fix=fix)
    return agents


def _mode(original: Original) -> str:
    keys = [key.format(p=original.program) for key in CHOOSING["`transition.type`"]]
    key, given = _first(original, keys)
    if given is None or given.value is None:
        return "expert_edits"
    return str(choice({mode: mode for mode in MODES})(given.value, key))


def _first(original: Original, keys: Sequence[str]) -> tuple[str, Given | None]:
    """The key that holds: of the command line, then of the file, the earliest in `keys`."""
    present = [(key, original.values[key]) for key in keys if key in original.values]
    present.sort(key=lambda item: (not item[1].on_command_line, item[1].value is None))
    return present[0] if present else (keys[0], None)


def _apply(
    row: KeyRow, original: Original, case: TranslatedCase, settings: dict[str, Any], dropped: dict[str, str]
) -> str:
    """Add a row's settings, and name its keys that change nothing; the key that has an effect, or ""."""
    keys = [key.format(p=original.program) for key in row.keys]
    if not row.ours:
        dropped |= {key: row.why for key in _set_below(original, keys)}
        return ""
    key, given = _first(original, keys)
    absent = given is None or (given.value is None and row.default is None and not row.null)
    why = row.when(case) if row.when is not None else ""
    others = [name for name in keys if name != key and original.get(name) is not None]
    dropped |= {name: f"{key} precedes it" for name in others if original.get(name) != original.get(key)}
    if why:
        dropped |= {key: why} if given is not None and given.value is not None else {}
        return ""
    if absent and row.default is None:
        return ""
    value = row.default if given is None else given.value
    assert row.read is not None
    value = row.read(row.default if value is None and row.default is not None else value, key)
    if isinstance(value, Dropped):
        dropped[key] = value.why
        return ""
    _check_length(row, key, value, case)
    made = row.make(value, case) if row.make is not None else dict.fromkeys(row.ours, value)
    for path, item in made.items():
        if path in settings and settings[path] != item:
            dropped[key] = f"an earlier key has set {path}"
        else:
            settings[path] = item
    return key


def _one_turn(mentions: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """What to add to the mention of a threshold that every joint action earns: levels begin at 0."""
    lowest = settings.get("rewards.*.shift", 0.0)
    if settings.get("algorithm.termination_threshold", lowest + 1) > lowest:
        return {}
    added = f". The lowest reward is {lowest:g}, so no joint action plays a second turn"
    return {key: text + added for key, text in mentions.items() if "threshold" in key}


def _check_length(row: KeyRow, key: str, value: Any, case: TranslatedCase) -> None:
    """Refuse a list that has not one entry for each turn or role."""
    wanted = {"algorithm.turn_weights": (case.turns, "turn"), "policies.*.model": (len(case.roles), "role")}
    if isinstance(value, list) and len(value) != wanted[row.ours[0]][0]:
        count, what = wanted[row.ours[0]]
        fix = f"give {count} values, one for each {what}"
        raise ConfigError(f"there are {len(value)} values for {count} {what}s", path=key, fix=fix)


def _set_below(original: Original, keys: Sequence[str]) -> Iterator[str]:
    """Keys that are set, at one of `keys` or below it."""
    for name, given in original.values.items():
        if given.value is not None and any(name == key or name.startswith(key + ".") for key in keys):
            yield name


def _others(original: Original, case: TranslatedCase) -> dict[str, str]:
    """Keys that change nothing although they are no row's: unknown ones, and a mode with one turn.

    Raises:
        ConfigError: a section is no table.
    """
    known = [key for row in ROWS for key in row.keys] + [key for keys in CHOOSING.values() for key in keys]
    known = [key.format(p=original.program) for key in known]
    modes = [key.format(p=original.program) for key in CHOOSING["`transition.type`"]]
    taken = _first(original, modes)[0]
    dropped = {}
    for name in original.values:
        if name in modes and original.get(name) is not None:
            if case.turns < 2:
                dropped[name] = ONE_TURN
            elif name != taken and original.get(name) != original.get(taken):
                dropped[name] = f"{taken} precedes it"
        elif not any(name == key or name.startswith(key + ".") for key in known):
            hint = did_you_mean(name, known) if name.count(".") else ""
            near = f"; {hint}" if hint.startswith("did") else ""
            within = [key for key in known if key.startswith(name + ".")]
            if within and original.get(name) is not None:
                what = f"a table is needed, not {original.get(name)!r:.60}"
                raise ConfigError(what, path=name, fix=f"write its keys below it, such as {within[0]}")
            if not within:  # an empty section, such as `external: null`, holds nothing to name
                dropped[name] = f"an unknown key{near}"
    return dropped


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for path, value in settings.items():
        *around, last = path.split(".")
        at = table
        for part in around:
            at = at.setdefault(part, {})
        at[last] = value
    return table


def _smoke(table: Mapping[str, Any]) -> dict[str, Any]:
    """What our scale `smoke` needs on top: no length in epochs, and a mode that needs no key."""
    block: dict[str, Any] = {"schedule": {"epochs": None}}
    mode = table.get("transition")
    if mode is not None:
        offline = {"type": "level_feedback"}
        block["transition"] = offline if mode["type"] == "expert_edits" else dict(mode)
    return block

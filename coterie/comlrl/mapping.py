"""What each key of the original becomes: one table, which `docs/comlrl.md` shows too.

`{p}` in a key is the section of the file's program, `grpo` or `magrpo`. Where several keys of a row are set,
the command line precedes the file, and then the earlier key the later one. A row without settings of ours has
the reason; `when` says for which configurations a row has no effect.
The readers of values come first: each checks the type of one, and its errors name the original's key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie import ConfigError, did_you_mean

Reader = Callable[[Any, str], Any]
"""(value, dotted key of theirs) -> our value, or `Dropped`."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a reader returns for a value that nothing of ours stands for, with the reason."""

    why: str


def wrong(value: Any, key: str, wanted: str) -> ConfigError:
    """The error of a value of another type than the key's."""
    return ConfigError(f"{wanted} is needed", path=key, why=f"it is {value!r}", fix=f"set {key} to {wanted}")


def whole(least: int) -> Reader:
    """A reader of whole numbers from `least` on; 2.0 is one, true and "2" are none."""
    wanted = f"a whole number of {least} or more"

    def read(value: Any, key: str) -> int:
        number = _number(value, key, wanted)
        if number != int(number) or number < least:
            raise wrong(value, key, wanted)
        return int(number)

    return read


def number(value: Any, key: str) -> float:
    """A finite number, as a float."""
    return _number(value, key, "a number")


def text(value: Any, key: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise wrong(value, key, "a text")
    return value.strip()


def truth(value: Any, key: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(value, key, "true or false")
    return value


def numbers(value: Any, key: str) -> list[float]:
    """A list of numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise wrong(value, key, "a list of numbers")
    return [_number(item, key, "a list of numbers") for item in value]


def names(value: Any, key: str) -> str | list[str]:
    """A name, or a list of names."""
    if isinstance(value, str):
        return text(value, key)
    if not isinstance(value, Sequence) or not value:
        raise wrong(value, key, "a name, or a list of names")
    return [text(item, key) for item in value]


def choice(words: Mapping[str, Any]) -> Reader:
    """A reader of words, in upper or lower case, each with our value.

    Raises:
        ConfigError: another word; it names the nearest one.
    """

    def read(value: Any, key: str) -> Any:
        word = text(value, key).lower()
        if word not in words:
            raise ConfigError(f"unknown value {value!r}", path=key, fix=did_you_mean(word, words))
        return words[word]

    return read


def slice_of_tests(value: Any, key: str) -> int:
    """`sandbox_slice`: a whole number, as a text too; null, 0 and `all` are 0, all tests."""
    if value is None:
        return 0
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("all", "none", "null", ""):
            return 0
        if not word.removeprefix("-").isdigit():
            raise wrong(value, key, "a whole number, or all")
        return int(word)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(value, key, "a whole number, or all")
    return value


def dtype(value: Any, key: str) -> str | Dropped:
    """The type of a model's weights."""
    word = text(value, key).lower().removeprefix("torch.")
    if word in ("float16", "fp16", "half"):
        return Dropped("weights are trained in bfloat16 or float32; the recipe's dtype stays")
    if word == "auto":
        return Dropped("the recipe's dtype stays")
    names = {"bf16": "bfloat16", "fp32": "float32", "float": "float32"}
    word = names.get(word, word)
    if word not in names.values():
        raise ConfigError(f"unknown value {value!r}", path=key, fix=did_you_mean(word, names.values()))
    return word


def turned_off(value: Any, key: str) -> Any:
    """`top_k`: null and 0 are 0, which turns it off."""
    return whole(0)(0 if value is None else value, key)


def _number(value: Any, key: str, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise wrong(value, key, wanted)
    return float(value)


# ---------------------------------------------------------------------------------------------- the rows


MODES = ("expert_edits", "level_feedback", "level_passed", "passed", "plain")
WITH_TESTS = ("level_feedback", "level_passed", "passed")
ONE_TURN = "it has no effect with one turn, there too"


@dataclass(frozen=True, slots=True)
class TranslatedCase:
    """What decides which rows have an effect."""

    turns: int
    mode: str
    """The transition mode; "" with one turn."""
    roles: tuple[str, ...]
    processed: bool
    """Whether `reward_processor` is enabled."""


When = Callable[[TranslatedCase], str]
"""The reason why a row has no effect; "" where it has one."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of the original, under each of its names, with our settings."""

    keys: tuple[str, ...]
    ours: tuple[str, ...] = ()
    """Dotted settings; each gets the value that `read` returns, unless `make` returns a table of settings."""
    read: Reader | None = None
    make: Callable[[Any, TranslatedCase], Mapping[str, Any]] | None = None
    when: When | None = None
    why: str = ""
    """Where `ours` is empty: why there is no counterpart. Else a remark for the documentation."""
    mention: str = ""
    """What the command says where the row has an effect."""
    null: bool = False
    """Whether null is a value to read; else it means that the key is not set."""
    default: Any = None
    """The value where no key is set; it is set for a row that has an effect alone."""


def several_turns(case: TranslatedCase) -> str:
    """For rows that need a second turn."""
    return "" if case.turns > 1 else ONE_TURN


def in_mode(*modes: str, because: str) -> When:
    """For rows of some transition modes."""

    def reason(case: TranslatedCase) -> str:
        if case.turns < 2:
            return ONE_TURN
        return "" if case.mode in modes else f"{because}, and the mode is {case.mode}"

    return reason


def processed(case: TranslatedCase) -> str:
    """For the settings of the reward processor."""
    return "" if case.processed else "reward_processor.enabled is not true"


def model_each(chosen: str | Sequence[str], case: TranslatedCase) -> Mapping[str, Any]:
    """One model for all roles, or a model for each role in the team's order."""
    if isinstance(chosen, str):
        return {"policies.*.model": chosen}
    return {f"policies.{role}.model": name for role, name in zip(case.roles, chosen, strict=True)}


def in_epochs(epochs: int, case: TranslatedCase) -> Mapping[str, Any]:
    """A schedule in epochs in the place of the recipe's steps."""
    return {"schedule.epochs": epochs, "schedule.steps": None}


def rows_of(split: str) -> Callable[[str, TranslatedCase], Mapping[str, Any]]:
    """The rows of a split; the original has no test split, and the recipe's may overlap."""
    return lambda rows, case: {f"data.{split}": rows, "data.test": None}


def whitened(on: bool, case: TranslatedCase) -> Mapping[str, Any]:
    """Advantages over their deviation, or as they are."""
    return {"algorithm.normalise": {"type": "scale" if on else "none"}}


def _none(why: str, *keys: str) -> KeyRow:
    return KeyRow(keys, why=why)


def _model(name: str) -> tuple[str, str]:
    return f"agent_model.{name}", f"model.{name}"


ROWS: tuple[KeyRow, ...] = (
    # ---- the model
    KeyRow(
        ("agents", "model_name", *_model("name")),
        ("policies.*.model",),
        names,
        make=model_each,
        why="`agents` has a name for each role",
    ),
    KeyRow(
        (*_model("torch_dtype"), *_model("dtype"), *_model("model_kwargs.torch_dtype")),
        ("policies.*.dtype",),
        dtype,
        why="`auto` and float16 leave the recipe's",
    ),
    KeyRow(("{p}.temperature", *_model("temperature")), ("sampler.sampling.temperature",), number),
    KeyRow(("{p}.top_p", *_model("top_p")), ("sampler.sampling.top_p",), number),
    KeyRow(("{p}.top_k", *_model("top_k")), ("sampler.sampling.top_k",), turned_off, null=True),
    _none("a model's family is read from its own files", *_model("type")),
    _none("it is only printed there; the context is the model's (policies.*.context)", *_model("max_length")),
    _none("a prompt is text without markers of a model's own", *_model("special_tokens")),
    _none("code from a model's repository is not run", *_model("tokenizer_kwargs.trust_remote_code"),
          *_model("model_kwargs.trust_remote_code")),
    _none("sequences are packed, so nothing is padded", "tokenizer.padding_side"),
    _none("neither algorithm has a critic", "critic_model", "critics"),
    # ---- the data
    KeyRow(("dataset.train_split",), ("data.train",), text, make=rows_of("train")),
    KeyRow(("dataset.eval_split",), ("data.val",), text, make=rows_of("val")),
    _none("the Hub's own login decides (huggingface-cli login)", "dataset.private"),
    # ---- the length
    KeyRow(("{p}.num_train_epochs",), ("schedule.epochs",), whole(1), make=in_epochs),
    KeyRow(
        ("{p}.train_batch_size", "{p}.per_device_train_batch_size", "{p}.rollout_buffer_size"),
        ("schedule.tasks_per_step",),
        whole(1),
        why="tasks of a step, all of whose turns and branches make one update",
    ),
    KeyRow(("{p}.save_steps",), ("schedule.checkpoint_every",), whole(0)),
    KeyRow(("{p}.eval_interval",), ("schedule.evaluate_every",), whole(0)),
    KeyRow(("{p}.eval_num_samples",), ("schedule.evaluate_tasks",), whole(1)),
    _none("every step is logged", "{p}.logging_steps"),
    _none("an evaluation is played in the engine's batches (engine.max_batch)", "{p}.eval_batch_size"),
    _none("the engine and the trainer place the policies", "{p}.parallel_training", "{p}.agent_devices"),
    KeyRow(("seed", "{p}.seed"), ("seed",), whole(0)),
    # ---- sampling
    KeyRow(("{p}.num_generations",), ("sampler.branches",), whole(2)),
    KeyRow(("{p}.max_new_tokens",), ("sampler.sampling.max_new_tokens",), whole(1)),
    KeyRow(
        ("{p}.joint_mode",),
        ("sampler.pairing",),
        choice({"aligned": "aligned", "align": "aligned", "cross": "cross", "crossed": "cross"}),
    ),
    # ---- the algorithm
    KeyRow(
        ("{p}.agent_learning_rate", "{p}.learning_rate"), ("policies.*.optimizer.learning_rate",), number
    ),
    KeyRow(("{p}.discount",), ("algorithm.gamma",), number),
    KeyRow(("{p}.turn_gradient_weights",), ("algorithm.turn_weights",), numbers, when=several_turns),
    KeyRow(
        ("{p}.early_termination_threshold", "{p}.termination_threshold"),
        ("algorithm.termination_threshold",),
        number,
        when=several_turns,
        why="off where the file doesn't set it; there -0.2 is the default",
        mention="a joint action that earns this or more plays no further turn; null turns it off",
    ),
    KeyRow(
        ("{p}.advantage_normalization", "{p}.normalize_advantage"),
        ("algorithm.normalise",),
        truth,
        make=whitened,
        why="`{type: scale}`, or `{type: none}`",
    ),
    _none("there is one update a rollout, so the ratio is 1 and no clip acts", "{p}.epsilon_clip"),
    _none("a KL coefficient is loss.kl, and the original's is 0", "{p}.beta"),
    _none("the early trainer's; `coterie run magrpo_v1` has its algorithm", "{p}.handoff"),
    _none("a branch that stops keeps its weight", "{p}.early_termination_weight"),
    # ---- the reward
    KeyRow(("{p}.reward_shift",), ("rewards.*.shift",), number),
    KeyRow(("reward_processor.shift",), ("rewards.*.shift",), number, when=processed),
    KeyRow(("reward_processor.scale_factor",), ("rewards.*.scale",), number, when=processed),
    # ---- later turns
    KeyRow(
        ("{p}.sandbox_slice", "{p}.external_sandbox_slice", "external.sandbox_slice"),
        ("transition.sandbox_slice",),
        slice_of_tests,
        null=True,
        when=in_mode(*WITH_TESTS, because="only level_feedback, level_passed and passed run tests"),
    ),
    KeyRow(
        ("{p}.external_original_prompt", "external.original_prompt"),
        ("transition.original_prompt",),
        truth,
        when=several_turns,
        default=False,
    ),
    KeyRow(
        ("{p}.expert_model", "{p}.expert_edits_model", "external.expert_model"),
        ("transition.expert_model",),
        text,
        when=in_mode("expert_edits", because="only expert_edits asks an expert"),
        default="deepseek-coder",
    ),
    _none("a role always reads its previous answer in a later turn", "{p}.external_previous_response",
          "external.previous_response"),
    _none("a later prompt is not wrapped by the first turn's formatter",
          "external.external_prompt_passthrough", "{p}.external_prompt_passthrough"),
    # ---- the output
    _none("checkpoints are kept in the run's folder; `coterie export` writes a model",
          "output.save_final_model", "output.save_path"),
    _none("progress is shown on stderr", "output.verbose"),
    _none("metrics are in the run's metrics.jsonl; `trackers: {wandb: {type: wandb}}` sends them to W&B",
          *(f"wandb.{name}" for name in ("project", "entity", "name", "dir", "tags", "group", "mode"))),
)  # fmt: skip
"""Every key but those of CHOOSING."""

CHOOSING: Mapping[str, tuple[str, ...]] = {
    "the recipe": ("dataset.type", "{p}.num_agents", "{p}.num_turns"),
    "`data.type`, `data.hub`": ("dataset.name",),
    "`transition.type`": ("{p}.external_mode", "external.mode"),
    "the run's folder, where `--out` is not given": ("output.base_dir",),
    "whether the two keys below count": ("reward_processor.enabled",),
}
"""Keys that decide over more than one setting, by what they decide."""

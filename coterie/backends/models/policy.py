"""The fields of a policy's table that the built-in trainers and engines declare; imports nothing heavy."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from coterie.backends.models.policy_settings import (
    LARGEST_RATE as LARGEST_RATE,
    UNUSUAL_RATE as UNUSUAL_RATE,
    LoraSettings,
    ModelInit,
    OptimizerSettings,
    Rate as Rate,
    WarmStart,
)
from coterie.backends.models.sources import (
    ARCHITECTURE,
    MODEL_FILES as MODEL_FILES,
    TABLE_FILE as TABLE_FILE,
    KnownWeights,
    architecture_in,
    bounded_context,
    check_model_folder,
    check_source,
    known_context,
    local_folder as local_folder,
    weights_in,
)
from coterie.backends.models.tokenizers import check_vocabulary
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import MayChange
from coterie.discovery.validation import validate

log = logging.getLogger("coterie")
Schema = TypeVar("Schema", bound=PolicyConfig)


class ModelFields(PolicyConfig):
    """The model, in full."""

    model: str | ModelInit = Field(  # type: ignore[assignment]  # narrower than the core's
        description="Hub id, folder, or a table for random initial weights.",
        json_schema_extra={"format": "model-path"},
    )

    @property
    def weights_kind(self) -> str:
        init = "qwen3" if isinstance(self.model, str) else self.model.init
        return {"none": "", "tabular": "tables"}.get(init, "tensors")

    def external(self, folder: Path) -> PolicyConfig:
        """The frozen policy in a folder of a model, of an adapter, or of a table."""
        check_model_folder(folder)
        model = {"init": "tabular"} if (folder / TABLE_FILE).is_file() else str(folder)
        kept = self.model_dump(include={"dtype", "context"})
        return type(self).model_validate({**kept, "model": model, "train": "none"})


class TensorFields(ModelFields):
    """A model of tensors."""

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Of the weights. `auto`: bfloat16 with fp32 masters on a GPU, and on a CPU where its "
        "products are clearly faster, for models of 100 M parameters and more; else float32.",
    )
    revision: str | None = Field(None, description="Revision of a hub id.")
    context: Annotated[int | None, MayChange(asked=True)] = Field(
        None,
        ge=2,
        description="Longest prompt plus completion, in tokens; at most the model's, which is the default.",
    )


class TrainingFields(TensorFields):
    """A model and its training: what recipes set, whatever trainer they are played with."""

    lora: LoraSettings | None = None
    optimizer: Annotated[OptimizerSettings, MayChange(asked=True)] = OptimizerSettings()
    warm_start: WarmStart | None = None

    @property
    def follows_budget(self) -> bool:
        return self.optimizer.horizon == "budget"

    @property
    def warm_started(self) -> bool:
        """Weights that `from` names are not warm-started: they have been trained."""
        return self.warm_start is not None and self.from_ is None

    @property
    def weights(self) -> KnownWeights:
        """What is known of the weights without loading them."""
        lora = (self.lora or LoraSettings()).model_dump() if self.train == "lora" else None
        if isinstance(self.model, str):
            return KnownWeights(self.weights_kind, lora, architecture_in(self.model))
        table = self.model.model_dump()
        table["kv_heads"] = table["kv_heads"] or table["heads"]
        known = {name: table[field] for name, field in ARCHITECTURE.items()}
        return KnownWeights(self.weights_kind, lora, known)

    def check_source(self, path: str, source: PolicyConfig | Path) -> None:
        """Refuse a `from` whose weights this policy can't begin with; see `sources.check_source`."""
        at = f"{path}.from"
        if isinstance(source, TrainingFields):
            theirs = source.weights
        elif isinstance(source, Path):
            theirs = weights_in(source, at)
        else:
            theirs = KnownWeights(source.weights_kind)
        check_source(self.weights, theirs, self.train, path)

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse settings without an effect, and a decay without an end; warn of an unusual learning rate."""
        check_settings(self, path)
        rates = {"warm_start": self.warm_start.learning_rate} if self.warm_start is not None else {}
        if self.train != "none":
            rates["optimizer"] = self.optimizer.learning_rate
        for table, rate in rates.items():
            if rate > UNUSUAL_RATE:
                log.warning(
                    "%s.%s.learning_rate: %g is far above the rates at which a model learns (1e-6 to 1e-2): "
                    "a step of AdamW moves every weight by about the rate", path, table, rate,
                )  # fmt: skip
        if self.follows_budget and run.schedule.tokens is None:
            raise ConfigError(
                "there is no token budget to decay over",
                path=f"{path}.optimizer.horizon",
                why="schedule.tokens is not set",
                fix="set schedule.tokens, or the horizon to a number of optimiser steps",
            )
        super().check(path, run)


class TensorPolicy(TensorFields):
    """A model that is loaded in the run's process: what the engine `hf` declares."""

    @property
    def _known_context(self) -> int | None:
        """The model's longest input in tokens, where its configuration is on this machine."""
        return known_context(self.model) if isinstance(self.model, str) else self.model.context

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse a folder that isn't there, a `model.init` without tensors, and too long a context."""
        if isinstance(self.model, str):
            local_folder(self.model, f"{path}.model")
        else:
            check_init(self.model, path)
            if self.model.tokenizer not in ("words", "bytes"):
                local_folder(self.model.tokenizer, f"{path}.model.tokenizer")
        bounded_context(self._known_context, self.context, path)
        super().check(path, run)

    def check_words(self, path: str, vocabulary: Sequence[str] | None, longest: Mapping[str, int]) -> None:
        """Refuse `tokenizer: words` without words; warn of answers that are longer than the context."""
        if getattr(self, "behind_endpoint", False):
            return
        by_words = isinstance(self.model, ModelInit) and self.model.tokenizer == "words"
        if by_words and vocabulary is not None:
            check_vocabulary(vocabulary, f"{path}.model.tokenizer")
        context = self.context or self._known_context or math.inf
        beyond = {role: tokens for role, tokens in longest.items() if tokens >= context}
        if beyond:
            log.warning(
                "sampler: an answer of %s may have %s tokens (max_new_tokens), and the context of %s is %s "
                "for prompt and answer together: answers are cut where it ends",
                *(" and ".join(beyond), f"{max(beyond.values()):,}", path, f"{context:,}"),
            )


class TorchPolicy(TrainingFields, TensorPolicy):
    """A model that is loaded and trained by PyTorch: what the trainer `torch` declares.

    A trainer that declares it has `set_progress(share)`, which `optimizer.horizon: budget` needs.
    """


class TablePolicy(ModelFields):
    """A table of logits: what the engine `tabular` declares."""

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse another model."""
        check_table(self, path, "the engine `tabular` can't play")
        super().check(path, run)


class TabularPolicy(TrainingFields):
    """What the trainer `tabular` declares: all that recipes set. It refuses what it can't follow."""

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse another model, an adapter, and an optimiser: the trainer has settings of its own."""
        super().check(path, run)
        refuse_budget(self, path, "tabular")
        kept = (("dtype", ("auto", "float32")), ("revision", (None,)), ("context", (None,)))
        for name, neutral in kept:
            if getattr(self, name) not in neutral:
                log.warning("%s.%s has no effect: a table has no tensors", path, name)
        if self.warm_started:
            raise ConfigError(
                "the trainer has no supervised steps", path=f"{path}.warm_start", fix="remove it"
            )
        check_trained_table(self, path)


class UntrainedPolicy(TrainingFields):
    """What the trainer `none` declares: all that recipes set, so that it can play each of them."""

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse a policy that is to be trained."""
        super().check(path, run)
        refuse_budget(self, path, "none")
        check_untrained(self, path)


def declared(policies: Mapping[str, PolicyConfig], schema: type[Schema]) -> dict[str, Schema]:
    """The policies as instances of the schema that a trainer or an engine declares, by name.

    A run's own policies are; one of another run may have been made for another trainer.

    Raises:
        ConfigError: a value of the policy is wrong in this schema.
    """
    return {
        name: policy
        if isinstance(policy, schema)
        else validate(
            schema,
            {
                field.alias or key: getattr(policy, key)
                for key, field in schema.model_fields.items()
                if key in type(policy).model_fields
            },
            f"policies.{name}",
        )
        for name, policy in policies.items()
    }


def of_tensors(policies: Mapping[str, PolicyConfig]) -> dict[str, TorchPolicy]:
    """The policies whose models are tensors, in the schema of trainer `torch`, for estimates of memory."""
    tensors = {
        name: policy
        for name, policy in policies.items()
        if (isinstance(policy.model, str) and not getattr(policy, "behind_endpoint", False))
        or (isinstance(policy.model, ModelInit) and policy.model.init == "qwen3")
    }
    return declared(tensors, TorchPolicy)


def diverged(policy: str, step: int, path: str, loss: float) -> UserError:
    """The error that ends a run whose update left a policy weights that are no numbers.

    Args:
        step: updates before this one.
        path: of the learning rate.
        loss: of the update.
    """
    return UserError(
        f"policy '{policy}', step {step + 1}: the weights are not finite after the update",
        path=path,
        why=f"the loss of the update is {loss:g}: the learning rate is too large, or the loss is not finite",
        fix="lower the learning rate in a new run; the newest checkpoint has the weights of before",
    )


# ------------------------------------------------------------------------------------------------- the checks


def check_settings(policy: TrainingFields, path: str) -> None:
    """Check the training of a policy by itself.

    Raises:
        ConfigError: LoRA settings without `train: lora`, a decay without its horizon, or a horizon without a
            decay.
    """
    if policy.lora is not None and policy.train != "lora":
        raise ConfigError(
            "nothing reads these settings",
            path=f"{path}.lora",
            why=f"{path}.train is {policy.train}",
            fix=f"set {path}.train=lora, or remove the table",
        )
    check_schedule(policy.optimizer, f"{path}.optimizer")


def check_schedule(settings: OptimizerSettings, path: str) -> None:
    """Raise ConfigError for a decay without its horizon, and for a horizon without a decay."""
    if settings.schedule == "constant":
        if settings.horizon is not None:
            raise ConfigError("nothing reads this", path=f"{path}.horizon", why="the schedule is constant")
    elif settings.horizon is None:
        raise ConfigError(
            f"a {settings.schedule} schedule needs its horizon",
            path=f"{path}.horizon",
            why="a decay over `schedule.steps` would change when a resumed run is made longer",
            fix="set it to a number of optimiser steps, or to `budget` with schedule.tokens",
        )


def refuse_budget(policy: TrainingFields, path: str, trainer: str) -> None:
    """Raise ConfigError for a rate that decays over the token budget, for trainers without `set_progress`."""
    if policy.follows_budget:
        raise ConfigError(
            f"the trainer '{trainer}' can't decay over the token budget",
            path=f"{path}.optimizer.horizon",
            why="it has no set_progress(share)",
            fix="set a number of optimiser steps",
        )


def check_init(init: ModelInit, path: str) -> None:
    """Raise ConfigError for a model without tensors; `path` is the policy's."""
    if init.init == "qwen3":
        return
    users = {
        "tabular": "the engine and the trainer `tabular`",
        "none": "engines without weights (`scripted`)",
    }
    raise ConfigError(
        f"`init: {init.init}` is for {users[init.init]}; there are no tensors in it",
        path=f"{path}.model.init",
        fix="choose `init: qwen3`, or an engine and a trainer that take it",
    )


def check_table(policy: ModelFields, path: str, what: str) -> None:
    """Raise ConfigError unless the model is a table of logits; `what` begins the message."""
    if isinstance(policy.model, str) or policy.model.init != "tabular":
        name = path.rpartition(".")[2]
        raise ConfigError(
            f"{what} the model of policy '{name}'", path=f"{path}.model", fix="set it to {init: tabular}"
        )


def check_trained_table(policy: TrainingFields, path: str) -> None:
    """Raise ConfigError for what the trainer `tabular` can't train."""
    check_table(policy, path, "the trainer `tabular` can't train")
    if policy.train == "lora":
        raise ConfigError("a table has no adapters", path=f"{path}.train", fix="set it to `full`")
    if policy.optimizer != OptimizerSettings():
        raise ConfigError(
            "this table has no effect",
            path=f"{path}.optimizer",
            why="the trainer `tabular` has its own settings",
            fix="set trainer.learning_rate and trainer.optimizer",
        )


def check_untrained(policy: PolicyConfig, path: str) -> None:
    """Raise ConfigError for a policy that the trainer `none` would have to train."""
    if policy.train != "none":
        raise ConfigError(
            f"trainer 'none' can't train policy '{path.rpartition('.')[2]}'",
            path=f"{path}.train",
            fix=f"set {path}.train=none, or choose another trainer",
        )

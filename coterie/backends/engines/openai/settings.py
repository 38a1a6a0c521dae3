"""The settings of engine `openai` and of its policies; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from coterie.backends.models.policy import TensorFields
from coterie.backends.remote.settings import LIMITS, RemoteSettings, further_fields, omitted_fields
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange

_LIMIT = "set sampler.sampling.max_new_tokens; engine.limit_field chooses the limit's name"
_BRANCHES = "set sampler.branches: each branch is a request of its own, with a seed of its own"
_MESSAGES = "the prompts of team.roles make it"
_TEXT = "remove it: the engine reads a whole answer at once"
_LOGPROBS = "remove it; engine.api=completions asks for token ids and their log-probs"
SET_BY_ENGINE = {
    "model": "set policies.NAME.model",
    "messages": _MESSAGES,
    "prompt": _MESSAGES,
    **dict.fromkeys((*LIMITS, "max_output_tokens", "max_new_tokens"), _LIMIT),
    **dict.fromkeys(("n", "best_of", "use_beam_search"), _BRANCHES),
    **{name: f"set sampler.sampling.{name}" for name in ("temperature", "top_p", "top_k", "stop")},
    "seed": "set seed, the run's: every request has a seed of its own from it",
    **dict.fromkeys(("stream", "stream_options", "echo"), _TEXT),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"), _LOGPROBS),
}
"""Field that the engine sets itself, and `engine.fields` can't -> the setting that is meant instead."""
NEEDED = ("model", "messages", "prompt", "return_token_ids")
"""Fields without which there is no answer that the engine can read."""


def _further(fields: Any, info: ValidationInfo) -> Any:
    return further_fields(fields, info, SET_BY_ENGINE, "the engine")


def _omitted(names: Any, info: ValidationInfo) -> Any:
    return omitted_fields(names, info, NEEDED, "engine.limit_field")


Fields = Annotated[dict[str, Any], BeforeValidator(_further)]
"""Further fields of a request's body."""
Omitted = Annotated[list[str], BeforeValidator(_omitted)]
"""Names of fields that are left out of a request's body."""

ADDRESS = "https://api.openai.com/v1"
KEY = "${OPENAI_API_KEY}"


class OpenAIConfig(RemoteSettings):
    """Generates with models behind an endpoint; no weights are loaded, and no policy is trained."""

    api: Literal["auto", "chat", "completions"] = Field(
        "auto",
        description="`chat`: messages in, text out; `completions`: token ids in and out, which vLLM's server "
        "has; `auto`: completions for a policy with a `tokenizer`, else chat.",
    )
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens",
        description="Name of the token limit in a chat request; OpenAI's reasoning models take the second.",
    )
    omit: Omitted = Field(
        default_factory=list,
        description="Fields that are not sent, such as temperature or seed where a model refuses them.",
    )
    fields: Fields = Field(
        default_factory=dict,
        description="Further fields of every request, such as reasoning_effort; none that the engine sets.",
    )

    @property
    def url(self) -> str:
        return self.base_url or ADDRESS

    @property
    def key(self) -> str | None:
        """The setting of the key; an endpoint of one's own needs none."""
        return self.api_key or (KEY if self.base_url is None else None)


class RemotePolicy(TensorFields):
    """A model behind an endpoint: what the engine `openai` declares."""

    tokenizer: Annotated[str | None, MayChange()] = Field(
        None, description="Hub id or folder of the model's tokenizer, for `engine.api: completions`."
    )

    @model_validator(mode="before")
    @classmethod
    def _plays_all(cls, table: Any) -> Any:
        if isinstance(table, dict) and "remote" in table and "remote" not in cls.model_fields:
            raise ConfigError(
                "the engine `openai` plays every policy by the endpoint, and has no key 'remote'",
                path="policies.*.remote",
                fix="remove it; or set engine.type=mixed, which plays policies with `remote: true` by its "
                "`remote` engine, and the others by its `local` one",
            )
        return table

    @property
    def behind_endpoint(self) -> bool:
        """Whether the model is an endpoint's: trainers and estimates of memory leave the policy out."""
        return True

    @property
    def weights_kind(self) -> str:
        return ""

    def external(self, folder: Path) -> PolicyConfig:
        raise ConfigError(
            f"{folder} can't play on a remote endpoint",
            why="the engine `openai` loads no weights: the models are the endpoint's",
            fix="serve the folder (e.g. with vLLM) and name it in the endpoint",
        )

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse a policy that is to be trained, a table of random weights, and a trainer with weights."""
        trainer = str(run.trainer.get("type"))
        check_remote(self, path, str(run.engine.get("api", "auto")))
        if trainer in ("torch", "deepspeed", "tabular"):
            raise ConfigError(
                f"the trainer '{trainer}' would load the model of a policy that is behind an endpoint",
                path="trainer.type",
                why="the engine `openai` plays models that it has no weights of",
                fix="set trainer=none",
            )
        super().check(path, run)


def check_remote(policy: PolicyConfig, path: str, api: str) -> None:
    """Check that an endpoint can play a policy.

    Raises:
        ConfigError: the policy is to be trained, begins with other weights, or names no model.
    """
    if policy.train != "none":
        tokens = api == "completions" or (api == "auto" and getattr(policy, "tokenizer", None) is not None)
        why = (
            "the endpoint gives token ids, but no update could reach it: no weights can be loaded there"
            if tokens
            else "the endpoint gives text without token ids and their log-probs, which an update needs; and "
            "no weights can be loaded there"
        )
        raise ConfigError(
            f"policy '{path.rpartition('.')[2]}' can't be trained through a remote endpoint",
            path=f"{path}.train",
            why=why,
            fix=f"set {path}.train=none, or train with an engine that loads weights (engine=hf, engine=vllm)",
        )
    if policy.from_ is not None:
        raise ConfigError(
            "weights can't be loaded into a remote endpoint", path=f"{path}.from", fix="remove it"
        )
    if not isinstance(policy.model, str):
        raise ConfigError(
            "a remote policy's model is a name that the endpoint knows",
            path=f"{path}.model",
            why=f"it is a table: {dict(policy.model) if isinstance(policy.model, dict) else policy.model!r}",
            fix=f"set {path}.model=gpt-4.1-mini, or what GET /v1/models of the endpoint lists",
        )

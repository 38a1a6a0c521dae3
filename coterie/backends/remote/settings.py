"""The settings of every component that calls a remote model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from coterie.backends.remote.address import Address
from coterie.backends.remote.secrets import Headers, SecretName
from coterie.core.plugins import MayChange, PluginConfig


class Price(PluginConfig):
    """Prices of one model per million tokens, in any currency."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class BudgetSettings(PluginConfig):
    """The most that all calls together may spend; a null is no bound."""

    calls: int | None = Field(None, ge=0, description="Calls that are sent; answers of the cache are free.")
    tokens: int | None = Field(None, ge=0, description="Tokens of prompts and answers.")
    money: float | None = Field(None, ge=0, description="In the currency of `prices`, which it needs.")

    @property
    def bounded(self) -> bool:
        return (self.calls, self.tokens, self.money) != (None, None, None)


class RemoteSettings(PluginConfig):
    """Calls of a remote model: the endpoint, limits, retries, the cache and the budget."""

    base_url: Annotated[Address | None, MayChange()] = Field(
        None,
        description="Address of the endpoint; default: the provider's own. ${NAME} in its path stands for a "
        "variable.",
    )
    api_key: Annotated[SecretName | None, MayChange(exact=True)] = Field(
        None, description="`${NAME}` of an environment variable; a key itself is refused."
    )
    headers: Annotated[Headers, MayChange()] = Field(
        default_factory=dict, description="HTTP headers; ${NAME} in a value stands for a variable."
    )
    concurrency: Annotated[int, MayChange(exact=True)] = Field(16, ge=1, description="Most calls at once.")
    requests_per_minute: Annotated[float | None, MayChange(exact=True)] = Field(None, gt=0)
    tokens_per_minute: Annotated[float | None, MayChange(exact=True)] = Field(
        None, gt=0, description="Of prompts and answers; estimated before a call, corrected by its usage."
    )
    timeout: Annotated[float, MayChange(exact=True)] = Field(
        120.0, gt=0, description="Seconds of one attempt, to the last byte of its answer."
    )
    retries: Annotated[int, MayChange(exact=True)] = Field(
        5, ge=0, description="Further attempts after 408, 429, 5xx, a lost connection or a time-out."
    )
    backoff: Annotated[float, MayChange(exact=True)] = Field(
        1.0, ge=0, description="Seconds before the second attempt, at most; doubles each time (with jitter)."
    )
    longest_wait: Annotated[float, MayChange(exact=True)] = Field(
        60.0, ge=0, description="Most seconds between two attempts, whatever the server's Retry-After says."
    )
    cache: Annotated[str, MayChange(exact=True)] = Field(
        "auto",
        description="`auto`: a database in the run's folder; `off`; or the path of a database, which several "
        "runs may share.",
    )
    cache_errors: Annotated[Literal["warn", "stop"], MayChange(exact=True)] = Field(
        "warn", description="A damaged database or a full disk: go on without the cache, or stop."
    )
    budget: Annotated[BudgetSettings, MayChange(exact=True)] = BudgetSettings()
    prices: Annotated[dict[str, Price], MayChange(exact=True)] = Field(
        default_factory=dict, description="By model: {input, output} per million tokens."
    )

    @field_validator("cache", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # `off` of YAML 1.1

"""An engine for teams of trained and of remote policies: each policy is played by one of two engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from coterie.backends.engines.openai.settings import RemotePolicy, check_remote
from coterie.backends.models.policy import ModelFields, TensorPolicy
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols.engine import LeasesVersions
from coterie.core.types import Call, Request, Weights
from coterie.discovery.optional import EngineDefaults, with_defaults

if TYPE_CHECKING:
    from coterie.core.protocols import Codec, Engine, EngineContext


class MixedPolicy(RemotePolicy, TensorPolicy):
    """A policy of engine `mixed`: a model that is loaded, or one behind the endpoint."""

    remote: bool = Field(False, description="Played by `engine.remote`; the trainer has no weights of it.")

    @property
    def behind_endpoint(self) -> bool:
        return self.remote

    @property
    def weights_kind(self) -> str:
        return "" if self.remote else ModelFields.weights_kind.__get__(self)

    def external(self, folder: Path) -> Any:
        return (RemotePolicy if self.remote else ModelFields).external(self, folder)

    def check(self, path: str, run: RunConfig) -> None:
        """Check the policy as that of the engine that plays it."""
        if self.remote:
            remote = run.engine.get("remote")
            check_remote(self, path, str(remote.get("api", "auto")) if isinstance(remote, dict) else "auto")
            trainer = str(run.trainer.get("type"))
            if trainer not in ("torch", "none"):
                raise ConfigError(
                    f"the trainer '{trainer}' can't leave out a policy that is behind an endpoint",
                    path="trainer.type",
                    fix="set trainer=torch, or trainer=none",
                )
        else:
            TensorPolicy.check(self, path, run)


class MixedEngine(Plugin):
    """Plays policies with `remote: true` by one engine, and the others by another.

    A batch of engine `hf` forms when every active rollout waits for it, so it waits for remote answers too.
    """

    class Config(PluginConfig):
        local: Annotated[Any, Composed("engine")] = Field(
            default_factory=lambda: {"type": "hf"}, validate_default=True, description="Plays the others."
        )
        remote: Annotated[Any, Composed("engine")] = Field(
            description="Plays policies with `remote: true`: `openai` and its settings."
        )

    Policy = MixedPolicy
    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._engine_of: dict[str, Engine] = {}

    def use_run_folder(self, folder: Path) -> None:
        """Hand the run's folder to the engines that store files there."""
        for engine in self._engines:
            if hasattr(engine, "use_run_folder"):
                engine.use_run_folder(folder)

    def check_ahead(self, policies: Mapping[str, PolicyConfig], ahead: int, pinned: bool) -> None:
        """Have the engine of the policies with weights refuse what it can't play ahead."""
        local = with_defaults(self.config.local, EngineDefaults)
        local.check_ahead(_played(policies, remote=False), ahead, pinned)

    async def open(self, ctx: EngineContext) -> None:
        """Open each engine with its policies."""
        for engine, remote in ((self.config.local, False), (self.config.remote, True)):
            policies = _played(ctx.policies, remote=remote)
            if policies:
                await engine.open(replace(ctx, policies=policies))
            self._engine_of |= dict.fromkeys(policies, engine)

    async def close(self) -> None:
        for engine in self._engines:
            if engine in self._engine_of.values():
                await engine.close()
        self._engine_of = {}

    async def load_weights(self, weights: Weights) -> None:
        await self._engine_of[weights.policy].load_weights(weights)

    async def lease(self, policy: str, version: int) -> None:
        """Lease from the engine of a policy with weights; one behind an endpoint has one version."""
        engine = self._engine_of[policy]
        if isinstance(engine, LeasesVersions):
            await engine.lease(policy, version)

    async def release(self, policy: str, version: int) -> None:
        engine = self._engine_of[policy]
        if isinstance(engine, LeasesVersions):
            await engine.release(policy, version)

    def codec(self, policy: str) -> Codec:
        return self._engine_of[policy].codec(policy)

    async def codecs(self, ctx: EngineContext) -> dict[str, Codec]:
        """Those that the two engines make."""
        made: dict[str, Codec] = {}
        for engine, remote in ((self.config.local, False), (self.config.remote, True)):
            if hasattr(engine, "codecs"):
                made |= await engine.codecs(replace(ctx, policies=_played(ctx.policies, remote=remote)))
        return made

    async def generate(self, request: Request) -> Call:
        """Generate one call by the engine of its policy."""
        return await self._engine_of[request.policy].generate(request)

    @property
    def _engines(self) -> tuple[Engine, Engine]:
        return self.config.local, self.config.remote


def _played(policies: Mapping[str, PolicyConfig], *, remote: bool) -> dict[str, PolicyConfig]:
    """The policies of one of the two engines."""
    return {name: policy for name, policy in policies.items() if getattr(policy, "remote", False) is remote}

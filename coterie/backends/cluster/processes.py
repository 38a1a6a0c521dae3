"""The processes of a run on a cluster, and what each takes. Imports neither Ray nor torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from coterie.backends.cluster.placement import RUN, TRAINER, ClusterNode, Process
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import check_engine
from coterie.backends.models.policy import TensorFields
from coterie.backends.models.precision import with_dtype
from coterie.backends.models.sources import bases_of
from coterie.backends.remote.settings import RemoteSettings
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.discovery import plugins
from coterie.discovery.validation import validate

ENGINE, MODELS, HOST = "engine", "models", "rollout host"
FOLDER = "cluster.weights_folder"


def processes_of(
    run: RunConfig, settings: ClusterConfig, nodes: Sequence[ClusterNode]
) -> tuple[Process, ...]:
    """The processes of a run: the run itself and the trainers' ranks, the engine, its replicas, the rest.

    Args:
        nodes: the cluster. A replica takes GPUs if any node has some, and so does a rank; but where rank 0 is
            the run's process, ranks do if the first node has some, which is the run's.

    Raises:
        ConfigError: `layout: colocate`, and nothing that could share GPUs; or settings that no cluster has.
    """
    check_weights(settings)
    engine, trainer = _settings(run.engine, "engine"), _settings(run.trainer, "trainer")
    _check(run, settings, engine, trainer)
    gpus = any(node.gpus for node in nodes)
    policies = _with_dtype(run.policies, gpus)
    if settings.updates == "at_once":
        first = [_rank(RUN, settings, holds="the run's loop")]
        owners = _trainers(settings, trainer, trainer_sets(policies), gpus=settings.rank_gpus if gpus else 0)
    else:
        first = _ranks(settings, trainer, gpus=settings.rank_gpus if nodes and nodes[0].gpus else 0)
        owners = dict.fromkeys(policies, first)
    ranks = {
        process.name: process
        for process in (*first, *(rank for members in owners.values() for rank in members))
    }
    processes = [*ranks.values(), _engine(run, settings, engine)]
    if _has_replicas(engine):
        processes += _replicas(run, settings, engine, policies, owners, gpus)
    if _calls_servers(run, engine):
        processes.append(Process(MODELS, 0, with_run=True, holds="limits and budget of remote models"))
    return (*processes, *(_host(number, settings) for number in range(settings.workers)))


def check_weights(settings: ClusterConfig) -> None:
    """Refuse a folder that nothing is written to, and files of weights that the run's process doesn't have.

    Raises:
        ConfigError: `weights` says that weights are in no files, or `updates` that trainers send them.
    """
    if settings.weights == "disk" and settings.updates == "at_once":
        raise ConfigError(
            "trainers of their own send their weights through Ray's object store, and not by files",
            path="cluster.weights",
            why="cluster.updates is at_once",
            fix="set cluster.weights=auto, or cluster.updates=in_turn",
        )
    if settings.weights_folder is not None and settings.weights != "disk":
        raise ConfigError(
            "nothing is written to this folder",
            path=FOLDER,
            why=f"cluster.weights is {settings.weights}",
            fix="set cluster.weights=disk, or remove it (cluster.weights_folder=null)",
        )


def _settings(component: Mapping[str, Any], kind: str) -> Any:
    """The settings of a plugin, which isn't made; None: it has none."""
    declared = plugins().registry.config_of(kind, component["type"], path=f"{kind}.type")
    if declared is None:
        return None
    table = {key: value for key, value in component.items() if key != "type"}
    return validate(declared, table, kind, also=("type",))


def _has_replicas(engine: PluginConfig | None) -> bool:
    """Whether an engine's models are in processes of their own. On a cluster, `process: auto` means `own`."""
    return hasattr(engine, "tensor_parallel") and getattr(engine, "process", "own") != "inside"


def _ranks(settings: ClusterConfig, trainer: Any, gpus: int) -> list[Process]:
    """The run's process, which is rank 0, and the other ranks."""
    device = getattr(trainer, "device", None)
    if device is None:  # a trainer without weights, or of tables
        return [_rank(RUN, settings, holds="the run's loop and its trainer")]
    gpus = 0 if str(device).startswith("cpu") else gpus
    ranks = getattr(trainer, "ranks", 1)
    setting = "trainer.ranks" if ranks > 1 else ""
    rank_0 = _rank(RUN, settings, gpus, setting, holds="rank 0 of the trainer, and the run's loop")
    others = [_rank(f"rank {n}", settings, gpus, setting, holds="trainer") for n in range(1, ranks)]
    return [rank_0, *others]


def _rank(
    name: str, settings: ClusterConfig, gpus: int = 0, setting: str = "", fix: str = "", holds: str = ""
) -> Process:
    return Process(
        name,
        settings.rank_cpus,
        gpus,
        with_run=name == RUN,
        setting=setting,
        fix=fix,
        cpu_setting="cluster.rank_cpus",
        holds=holds,
    )


def trainer_sets(policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
    """The sets of weights that have a trainer each with `updates: at_once`, by the first policy.

    A set without a trained policy has nothing to update: its policies are with the first that has one.

    Returns:
        by name: the policies in the configuration's order; every policy is in one set.
    """
    sets = bases_of(policies)
    trained = [name for name, members in sets.items() if any(policies[m].train != "none" for m in members)]
    first = trained[0] if trained else next(iter(sets))
    owner = {
        member: name if name in trained else first for name, members in sets.items() for member in members
    }
    return {
        name: tuple(policy for policy in policies if owner[policy] == name) for name in trained or [first]
    }


def sets_of(policies: Mapping[str, PolicyConfig], *, gpus: bool) -> dict[str, tuple[str, ...]]:
    """`trainer_sets` of a run's policies, on a cluster with or without GPUs."""
    return trainer_sets(_with_dtype(policies, gpus))


def trainer_name(name: str, rank: int = 0) -> str:
    """The name of the process with a rank of a set's trainer."""
    return f"{TRAINER} {name}/{rank}"


def _trainers(
    settings: ClusterConfig, trainer: Any, sets: Mapping[str, Sequence[str]], gpus: int
) -> dict[str, list[Process]]:
    """By policy: the ranks of its trainer."""
    computes = getattr(trainer, "device", None)
    gpus = 0 if computes is None or str(computes).startswith("cpu") else gpus
    ranks = getattr(trainer, "ranks", 1)
    setting, fix = "cluster.updates", "set cluster.updates=in_turn"
    if ranks > 1:
        setting, fix = "trainer.ranks", f"lower trainer.ranks, {fix}"
    owners: dict[str, list[Process]] = {}
    for name, policies in sets.items():
        holds = f"trainer: {', '.join(policies)}"
        ranks_of_set = [
            _rank(trainer_name(name, number), settings, gpus, setting, fix, holds) for number in range(ranks)
        ]
        owners |= dict.fromkeys(policies, ranks_of_set)
    return owners


def _engine(run: RunConfig, settings: ClusterConfig, engine: Any) -> Process:
    served = ", ".join(run.policies)
    holds = "requests to replicas" if _has_replicas(engine) else f"engine {run.engine['type']}: {served}"
    return Process(
        ENGINE,
        settings.engine_cpus,
        settings.engine_gpus,
        with_run=isinstance(engine, RemoteSettings),  # its answers and its budget are in the run's folder
        setting="cluster.engine_gpus",
        cpu_setting="cluster.engine_cpus",
        holds=holds,
    )


def _host(number: int, settings: ClusterConfig) -> Process:
    holds = "episodes: environment, roles, rewards"
    return Process(f"{HOST} {number}", settings.worker_cpus, cpu_setting="cluster.workers", holds=holds)


def _replicas(
    run: RunConfig,
    settings: ClusterConfig,
    engine: Any,
    policies: Mapping[str, PolicyConfig],
    owners: Mapping[str, Sequence[Process]],
    gpus: bool,
) -> list[Process]:
    """The replicas of each base model. Those with `colocate` share the GPUs of its trainer's ranks, in turn.

    Args:
        owners: by policy: the ranks that train it.
    """
    width = engine.tensor_parallel
    trains_on_gpus = any(rank.gpus for ranks in owners.values() for rank in ranks)
    apart = settings.layout == "separate" and trains_on_gpus
    setting, fix = "policies", "train adapters of one model (policies.NAME.train=lora)"
    if engine.replicas > 1 or width > 1:
        setting = "engine.replicas" if engine.replicas > 1 else "engine.tensor_parallel"
        fix = f"lower {setting}"
    elif apart:
        setting, fix = "cluster.layout", ""
    if apart:
        fix = f"{fix}, set cluster.layout=colocate" if fix else "set cluster.layout=colocate"
    replicas = {
        f"{run.engine['type']} {base}/{number}": (base, served)
        for base, served in bases_of(policies).items()
        for number in range(engine.replicas)
    }
    made = [
        Process(
            name,
            settings.replica_cpus,
            setting=setting,
            fix=fix,
            cpu_setting="cluster.replica_cpus",
            holds=", ".join(served),
        )
        for name, (_, served) in replicas.items()
    ]
    if settings.layout == "separate" or not trains_on_gpus:
        return [replace(replica, gpus=width if gpus else 0) for replica in made]
    return _sharing(made, [owners[base] for base, _ in replicas.values()], width)


def _sharing(replicas: Sequence[Process], owners: Sequence[Sequence[Process]], width: int) -> list[Process]:
    """The replicas on the GPUs of `width` ranks each, those of one trainer in turn.

    Args:
        owners: of each replica: the ranks of its trainer.
    """
    ranks = len(owners[0])
    if width > ranks:
        raise ConfigError(
            f"a replica of {width} GPUs can't share those of {ranks} rank" + "s" * (ranks > 1),
            path="engine.tensor_parallel",
            why="with cluster.layout=colocate a replica uses the trainer's GPUs, and each rank has one",
            fix=f"set trainer.ranks={width}, lower engine.tensor_parallel, or set cluster.layout=separate",
        )
    shared, placed = Counter[str](), []
    for replica, members in zip(replicas, owners, strict=True):
        names = [rank.name for rank in members]
        groups = [tuple(names[n : n + width]) for n in range(0, ranks - width + 1, width)]
        placed.append(replace(replica, shares=groups[shared[names[0]] % len(groups)]))
        shared[names[0]] += 1
    return placed


def _with_dtype(policies: Mapping[str, PolicyConfig], gpus: bool) -> dict[str, PolicyConfig]:
    """The policies with `dtype: auto` resolved, which decides whether two have the same weights."""
    dtypes = {name: getattr(policy, "dtype", "auto") for name, policy in policies.items()}
    if set(dtypes.values()) == {"auto"}:
        return dict(policies)  # equal weights are equal whatever `auto` is
    left_open = {name: policy for name, policy in policies.items() if getattr(policy, "dtype", "") == "auto"}
    open_: Any = with_dtype(cast(dict[str, TensorFields], left_open), "cuda" if gpus else "cpu")
    return {**policies, **open_}


def _calls_servers(run: RunConfig, engine: PluginConfig | None) -> bool:
    """Whether the run calls models of a server, with limits and a budget that are one for all processes."""
    config_of = plugins().registry.config_of
    declared = [
        config_of("chat_model", model["type"], path=f"chat_models.{name}.type")
        for name, model in run.chat_models.items()
    ]
    return isinstance(engine, RemoteSettings) or any(
        isinstance(each, type) and issubclass(each, RemoteSettings) for each in declared
    )


def _check(run: RunConfig, settings: ClusterConfig, engine: Any, trainer: Any) -> None:
    """Refuse settings that a cluster, or its layout, can't follow.

    Raises:
        ConfigError: which ones.
    """
    apart = "set cluster.layout=separate"
    if _has_replicas(engine) and getattr(engine, "devices", None) is not None:
        what, why = "the GPUs of vLLM can't be named on a cluster", "the cluster gives each replica its own"
        raise ConfigError(what, path="engine.devices", why=why, fix="remove it")
    if _has_replicas(engine):
        check_engine(getattr(engine, "transfer", "auto"), settings.weights)
    if _has_replicas(engine) and settings.engine_gpus:
        what = f"the engine's process would hold {settings.engine_gpus} GPUs that nothing computes on"
        why = "replicas of a base model have GPUs of their own (engine.replicas, engine.tensor_parallel)"
        raise ConfigError(what, path="cluster.engine_gpus", why=why, fix="remove it")
    if settings.layout == "separate":
        return
    path, what = "cluster.layout", ""
    if not _has_replicas(engine):
        what = f"engine '{run.engine['type']}' has no replicas that could share the trainer's GPUs"
        raise ConfigError(f"nothing to colocate: {what}", path=path, fix=f"{apart}, or engine.type=vllm")
    if not hasattr(trainer, "device"):
        what = f"trainer '{run.trainer['type']}' has no GPUs to share"
        raise ConfigError(f"nothing to colocate: {what}", path=path, fix=apart)
    if not settings.rank_gpus:
        what = "the ranks take no GPU that a replica could share"
        raise ConfigError(what, path="cluster.rank_gpus", fix=f"remove it, or {apart}")
    why = "with cluster.layout=colocate vLLM sleeps during updates, whose memory the trainer needs"
    if getattr(engine, "sleep", "auto") is False:
        what, fix = "vLLM never sleeps", f"remove engine.sleep, or {apart}"
        raise ConfigError(what, path="engine.sleep", why=why, fix=fix)
    if run.schedule.max_staleness:
        what, fix = "vLLM plays steps ahead during updates", f"set schedule.max_staleness=0, or {apart}"
        raise ConfigError(what, path="schedule.max_staleness", why=why, fix=fix)

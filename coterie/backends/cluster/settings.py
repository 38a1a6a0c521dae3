"""The table `cluster`: where the processes of a distributed run are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coterie.core.plugins import MayChange, PluginConfig

SAME = MayChange(exact=True)


class ClusterConfig(PluginConfig):
    """The cluster that a run uses, and what it takes of it."""

    address: Annotated[str, SAME] = Field(
        "auto",
        description="`local`: a cluster of this machine, for the run alone; `HOST:PORT`: that one; `auto`: "
        "the one of RAY_ADDRESS or of this machine, else `local`.",
    )
    workers: Annotated[int, SAME] = Field(
        2, ge=1, le=10_000, strict=True, description="Rollout hosts: processes that play and score episodes."
    )
    layout: Annotated[Literal["colocate", "separate"], SAME] = Field(
        "separate",
        description="GPUs of vLLM's replicas: `separate` from the trainer's; `colocate`: the trainer's own, "
        "and vLLM sleeps during updates.",
    )
    updates: Annotated[Literal["in_turn", "at_once"], SAME] = Field(
        "in_turn",
        description="Of sets of weights: `in_turn`: one trainer, in the run's process, updates one after the "
        "other; `at_once`: each has a trainer of its own, of `trainer.ranks` processes.",
    )
    rank_cpus: Annotated[float, SAME] = Field(
        1,
        ge=0,
        description="CPUs that a rank of a trainer takes; rank 0 is the run's process, unless `updates` is "
        "`at_once`: then the run's process takes as many.",
    )
    rank_gpus: Annotated[Literal[0, 1], SAME] = Field(
        1,
        description="GPUs that a rank takes where the run's node has some; 0: it computes on one that is not "
        "counted, or that the engine's process has, too.",
    )
    replica_cpus: Annotated[float, SAME] = Field(
        1, ge=0, description="CPUs that a replica of a base model takes (engine `vllm`)."
    )
    worker_cpus: Annotated[float, SAME] = Field(1, ge=0, description="CPUs that a rollout host takes.")
    engine_cpus: Annotated[float, SAME] = Field(1, ge=0, description="CPUs that the engine's process takes.")
    engine_gpus: Annotated[int, SAME] = Field(
        0, ge=0, description="GPUs that the engine's process takes; replicas of `vllm` have their own."
    )
    max_live: Annotated[int, MayChange()] = Field(
        4096, ge=1, description="Most episodes that a rollout host plays and scores at the same time."
    )
    restarts: Annotated[int, SAME] = Field(
        20, ge=0, description="Rollout hosts and engine hosts that may be replaced in a run."
    )
    weights: Annotated[Literal["auto", "nccl", "ipc", "store", "disk"], SAME] = Field(
        "auto",
        description="How weights reach the engine: `store`: through Ray's object store; `disk`: by "
        "safetensors files in a folder that all nodes see; `nccl`, `ipc`: those of policies that are trained "
        "whole, from the trainer's GPU to vLLM's, to another one or the same; `auto`: nccl or ipc where they "
        "are possible, else store. The log and `coterie plan --nodes` say which, and why.",
    )
    weights_folder: Annotated[str | None, SAME] = Field(
        None, description="Where these files are, at the same path on all nodes. Default: the run's folder."
    )
    timeout: Annotated[float, SAME] = Field(
        60,
        gt=1,
        allow_inf_nan=False,
        description="Seconds without an answer after which a process counts as dead.",
    )
    variables: Annotated[list[Annotated[str, Field(strict=True, min_length=1)]], SAME] = Field(
        ["HF_TOKEN"],
        description="Environment variables of the run's process that its other processes get although they "
        "are secret: tokens of a model hub, or the key of a plugin that calls a server itself.",
    )

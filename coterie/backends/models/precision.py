"""The dtype of weights where a policy leaves it open.

On a CPU the rule is a measurement: bfloat16 halves what is read, and CPUs with instructions for its products
(AVX-512 BF16, AMX, Arm's BF16) compute them about twice as fast, the others no faster. What a run chose is
kept in its checkpoints (`kept_dtypes`), so that a resumed run never changes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from coterie.backends.models.policy import TensorFields
from coterie.core.config import PolicyConfig

log = logging.getLogger("coterie")
chosen = logging.getLogger("coterie.dtype")
"""For the sentences of `choices`, which the command line prints."""
Config = TypeVar("Config", bound=TensorFields)

SMALL = 10**8
"""Parameters of a model below which nobody minds float32, on a GPU or a CPU."""
CLEARLY = 1.3
"""How many times as fast as float32's the products in bfloat16 are where a CPU takes it. CPUs with the
instructions reach 2 and more, others at most 1, so that the choice doesn't flip from run to run."""
INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "amx_tile", "bf16", "sve_bf16")
"""Names of instructions for products in bfloat16, in `torch.cpu.get_capabilities()`."""

ROWS, OPERATIONS, TRIES = 64, 2**28, 4
"""Rows of a measured product, its most multiplications, and how often each is measured."""


class DtypeChoice(NamedTuple):
    """The dtype that `auto` stands for."""

    dtype: str
    why: str = ""
    """Empty where it follows from the type of device, or from a small model."""


class Rates(NamedTuple):
    """Speeds of a model's matrix products, in GFLOP per second of a core."""

    float32: float
    bfloat16: float


def auto_choice(config: TensorFields, device: str) -> DtypeChoice:
    """What `auto` stands for: bfloat16 on GPUs, the faster on CPUs, float32 elsewhere and for small models.

    Args:
        device: its type: `cpu`, `cuda`.
    """
    if device != "cpu":
        return DtypeChoice("bfloat16" if device == "cuda" else "float32")
    from coterie.backends.models.sizes import least_size

    size = least_size(config, ())
    if size is None or size.parameters < SMALL:
        return DtypeChoice("float32")
    if not has_instructions():
        return DtypeChoice("float32", "this CPU has no instructions for products in bfloat16")
    rates = measured(size.hidden, size.mlp)
    faster = rates.bfloat16 >= CLEARLY * rates.float32
    return DtypeChoice(
        "bfloat16" if faster else "float32",
        f"{'its' if faster else 'bfloat16'} products take {rates.float32 / rates.bfloat16:.2f} of "
        f"float32's time here ({rates.bfloat16:.0f} and {rates.float32:.0f} GFLOP/s a core)",
    )


def with_dtype(configs: Mapping[str, Config], device: str) -> dict[str, Config]:
    """The policies with `dtype: auto` resolved for a type of device: `cpu`, `cuda`."""
    return {
        name: config.model_copy(update={"dtype": auto_choice(config, device).dtype})
        if config.dtype == "auto"
        else config
        for name, config in configs.items()
    }


def choices(configs: Mapping[str, TensorFields], device: str) -> list[str]:
    """A sentence for each choice that depends on this machine, with the policies that it is for."""
    why: dict[DtypeChoice, list[str]] = {}
    for name, config in configs.items():
        if config.dtype == "auto" and (choice := auto_choice(config, device)).why:
            why.setdefault(choice, []).append(f"policies.{name}.dtype")
    return [f"{', '.join(keys)}: auto is {choice.dtype}: {choice.why}" for choice, keys in why.items()]


def chosen_dtypes(configs: Mapping[str, Config], device: str) -> dict[str, Config]:
    """`with_dtype`, for who reads the weights; logs what was measured."""
    for sentence in choices(configs, device):
        chosen.info("%s", sentence)
    return with_dtype(configs, device)


def left_open(policies: Mapping[str, PolicyConfig]) -> dict[str, Any]:
    """The policies whose dtype is `auto`."""
    return {
        name: policy
        for name, policy in policies.items()
        if isinstance(policy, TensorFields) and policy.dtype == "auto"
    }


def kept_dtypes(
    configs: Mapping[str, Config], open_: Collection[str], saved: Mapping[str, str | None]
) -> dict[str, Config]:
    """The policies with the dtypes with which a checkpoint's run began, where the configuration has none.

    Args:
        configs: with dtypes that were chosen here.
        open_: the policies whose `dtype` is `auto`.
        saved: by policy, the dtype in the checkpoint; None: it doesn't say.
    """
    kept = dict(configs)
    for name in open_:
        began = saved.get(name)
        if name in kept and began is not None and began != configs[name].dtype:
            log.warning(
                "policies.%s.dtype: stays %s, with which the run began; auto is %s on this machine",
                *(name, began, configs[name].dtype),
            )
            kept[name] = configs[name].model_copy(update={"dtype": began})
    return kept


def dtype_of(config: TensorFields, model: Any = None) -> str:
    """The dtype of a policy's weights in an engine.

    Args:
        model: the model whose weights the trainer hands over: it has chosen what `auto` is. None: the engine
            reads them itself, for a GPU where there is one.
    """
    if config.dtype != "auto":
        return config.dtype
    if model is not None:
        return str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")
    import torch

    return auto_choice(config, "cuda" if torch.cuda.is_available() else "cpu").dtype


def warn_of_float32(policy: str, dtype: str, device: str, parameters: int) -> None:
    """Warn of float32 weights on a GPU, which only a policy's own `dtype` brings there."""
    if device == "cuda" and dtype == "float32" and parameters >= SMALL:
        log.warning(
            "policies.%s.dtype is float32 on a GPU: weights, activations and caches take twice the memory of "
            "bfloat16, and matrix products are several times slower. `dtype: auto` is bfloat16 there, with "
            "fp32 masters of trained weights",
            policy,
        )


# -------------------------------------------------------------------------------------------- the measurement


def has_instructions() -> bool:
    """Whether this CPU has instructions for products in bfloat16."""
    import torch

    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name, False) for name in INSTRUCTIONS)


@cache
def measured(hidden: int, mlp: int) -> Rates:
    """The speeds of the products of a model's MLP in both dtypes, measured once per process (about 0.1 s).

    Wide layers are measured in part. Time is the process's CPU time, and the best of some tries in turns
    counts, so that other work on the machine doesn't decide. No random state changes.

    Args:
        hidden, mlp: the sizes of the layers.
    """
    import torch
    from torch.nn.functional import linear

    part = max(min(mlp, OPERATIONS // (ROWS * hidden)), 1)
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    with torch.no_grad():
        made = {}
        for dtype in best:
            state, inner = (torch.full((ROWS, width), 0.5, dtype=dtype) for width in (hidden, part))
            up, down = (torch.full(shape, 0.5, dtype=dtype) for shape in ((part, hidden), (hidden, part)))
            made[dtype] = ((state, up), (inner, down))
        for attempt in range(TRIES + 1):
            for dtype, products in made.items():
                began = time.process_time()
                for inputs, weight in products:
                    linear(inputs, weight)
                if attempt:  # the first one prepares kernels
                    best[dtype] = min(best[dtype], time.process_time() - began)
    operations = 2 * 2 * ROWS * hidden * part / 1e9
    return Rates(*(operations / max(best[dtype], 1e-9) for dtype in (torch.float32, torch.bfloat16)))

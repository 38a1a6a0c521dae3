"""Devices: which one a setting names, what makes computing on it repeatable, errors of too little memory."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from coterie.core.errors import ConfigError, UserError

log = logging.getLogger("coterie")

Wanted = Literal["auto"] | bool
"""The setting `deterministic`."""

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
"""Values with which equal calls of cuBLAS give equal products (its manual, "Results reproducibility")."""


def device_of(name: str, path: str) -> Any:
    """The device of a setting; `auto`: a GPU where there is one.

    Raises:
        ConfigError: there is no such device; `path` is the setting's.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        fix = f"set {path}=auto, which takes a GPU where there is one"
        raise ConfigError(f"there is no device '{name}'", path=path, why=str(error), fix=fix) from error
    return device


def gpu_memory(device: Any) -> int | None:
    """Bytes of a GPU; None for other devices. All of it, so that it is the same in a resumed run."""
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)


def is_deterministic(wanted: Wanted, device: Any) -> bool:
    """Whether results on a device must repeat."""
    return device.type != "cuda" if wanted == "auto" else wanted


def fix_cublas(*, wanted: Wanted) -> None:
    """Set cuBLAS's workspaces for `deterministic: true`, before CUDA starts, since it reads them then."""
    import torch

    if wanted is not True or not torch.cuda.is_available() or os.environ.get(CUBLAS) in WORKSPACES:
        return
    if CUBLAS in os.environ or torch.cuda.is_initialized():
        log.warning(
            "deterministic: true: products on the GPU may differ in their last bits between runs, since %s; "
            "set %s=%s in the shell that starts the run",
            f"{CUBLAS} is {os.environ[CUBLAS]!r}" if CUBLAS in os.environ else "CUDA has started already",
            CUBLAS, WORKSPACES[0],
        )  # fmt: skip
    os.environ.setdefault(CUBLAS, WORKSPACES[0])


@contextmanager
def repeatable(wanted: Wanted, device: Any) -> Iterator[None]:
    """Compute with deterministic kernels, where results on the device must repeat.

    The CPU's kernels that Coterie uses always are. On a GPU, PyTorch's deterministic mode is strict: with
    `warn_only` the backward passes of fused attention would stay as they are, in no fixed order of sums
    (PyTorch, aten/native/transformers/cuda/attention_backward.cu). Other modes are restored at the end.

    Raises:
        UserError: an operation has no deterministic kernel.
    """
    import torch

    if device.type != "cuda" or not is_deterministic(wanted, device):
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error).lower():
            raise
        raise UserError(
            "an operation on the GPU can't be repeated bit for bit",
            path="deterministic",
            why=str(error).strip().splitlines()[0],
            fix="set deterministic=auto: on a GPU, runs then repeat up to rounding",
        ) from error
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)


_TEXTS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")
"""CUDA's error; the CPU allocator's (c10/core/impl/alloc_cpu.cpp); cuBLAS without room for its workspace."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of a tensor or of an array."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    import torch

    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(part in text for part in _TEXTS)


def reason(error: BaseException) -> str:
    """The first line of an out-of-memory error, up to the bytes that are free: PyTorch goes on at length."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    head, free, _ = line.partition(" is free.")
    return head + free.rstrip(".") if free else line


def release() -> None:
    """Give unused memory back; call it outside of the `except` block, whose traceback keeps tensors alive."""
    import torch

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()

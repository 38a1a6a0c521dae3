"""Out-of-memory errors, of a GPU and of the CPU's allocator: to know one, and to free what it left."""

from __future__ import annotations

import gc

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

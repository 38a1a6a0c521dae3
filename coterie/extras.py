"""The optional packages of the built-in plugins; imports nothing."""

from __future__ import annotations

EXTRA_OF: dict[str, str] = {
    "torch": "torch",
    "transformers": "torch",
    "peft": "torch",
    "safetensors": "torch",
    "tokenizers": "torch",
    "matplotlib": "torch",
    "vllm": "vllm",
    "deepspeed": "deepspeed",
    "ray": "ray",
    "google": "coach",
    "math_verify": "math",
    "datasets": "data",
    "pyarrow": "data",
    "jinja2": "data",
    "mcp": "mcp",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Which extra brings an optional package."""

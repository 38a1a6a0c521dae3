"""The optional packages of the built-in plugins; imports nothing."""

from __future__ import annotations

EXTRA_OF: dict[str, str] = {
    "torch": "torch",
    "transformers": "torch",
    "peft": "torch",
    "safetensors": "torch",
    "tokenizers": "torch",
    "matplotlib": "report",
    "datasets": "data",
    "pyarrow": "data",
    "jinja2": "data",
    "mcp": "mcp",
    "openai": "openai",
    "aiolimiter": "openai",
    "math_verify": "math",
    "google": "coach",
    "pandas": "data-science",
    "sklearn": "data-science",
    "scipy": "data-science",
    "vllm": "vllm",
    "deepspeed": "deepspeed",
    "liger_kernel": "liger",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "sqlalchemy": "mlflow",
    "alembic": "mlflow",
    "weave": "weave",
    "opentelemetry": "otel",
}
"""Which extra brings an optional package."""

"""Vendors of chat models with OpenAI's protocol: their addresses, and the variables of their keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Json = Literal["schema", "object", "off"]
"""How an endpoint is asked for JSON: by a schema, as any JSON object, or in words alone."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """An endpoint with OpenAI's protocol."""

    base_url: str
    key: str = ""
    """Environment variable of its key; empty: it needs none."""
    json: Json = "schema"
    """What it is asked for first; an endpoint that refuses a form is asked for the next one."""
    omit: tuple[str, ...] = ()
    """Fields that it refuses."""


VENDORS: dict[str, Vendor] = {
    "anthropic": Vendor("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "off"),
    "cerebras": Vendor("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "dashscope": Vendor(
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", "object"
    ),
    "dashscope_cn": Vendor(
        "https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", "object"
    ),
    "deepinfra": Vendor("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "deepseek": Vendor("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "object"),
    "fireworks": Vendor("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "gemini": Vendor("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Vendor("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "huggingface": Vendor("https://router.huggingface.co/v1", "HF_TOKEN"),
    "hyperbolic": Vendor("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "llamacpp": Vendor("http://localhost:8080/v1"),
    "lmstudio": Vendor("http://localhost:1234/v1"),
    "mistral": Vendor("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "schema", ("seed",)),
    "moonshot": Vendor("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "object"),
    "nvidia": Vendor("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "ollama": Vendor("http://localhost:11434/v1"),
    "openai": Vendor("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Vendor("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Vendor("https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    "sambanova": Vendor("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "sglang": Vendor("http://localhost:30000/v1"),
    "together": Vendor("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "vllm": Vendor("http://localhost:8000/v1"),
    "xai": Vendor("https://api.x.ai/v1", "XAI_API_KEY"),
    "zhipu": Vendor("https://open.bigmodel.cn/api/paas/v4", "ZHIPUAI_API_KEY", "object"),
}
"""By name. A plugin adds a vendor as a chat model of its own: a class with the row in its `row`."""

AUTO = "auto"
"""In place of a vendor's name: the vendor that `vendor_of` knows for the model."""
MODEL_NAMES = {
    "anthropic": "claude-",
    "dashscope": "qwen|qwq-|qvq-",
    "deepseek": "deepseek-",
    "gemini": "gemini-",
    "mistral": "mistral-|ministral-|codestral-|devstral-|magistral-|pixtral-|open-mi[sx]tral-",
    "moonshot": "kimi-|moonshot-",
    "openai": r"(ft:)?(gpt-(?!oss)|chatgpt-|o\d)",
    "perplexity": "sonar",
    "xai": "grok-",
    "zhipu": "glm-",
}
"""By vendor: how the names of its own models begin."""


def vendor_of(model: str) -> str | None:
    """The vendor whose own models have such a name; None: no vendor is known.

    A name with a slash is that of an open model on the Hugging Face Hub, which many vendors serve.
    """
    if "/" in model:
        return None
    matches = (name for name, beginning in MODEL_NAMES.items() if re.match(beginning, model.lower()))
    return next(matches, None)

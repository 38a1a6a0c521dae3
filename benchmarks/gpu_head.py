"""The language-model head on one GPU: Coterie's blocks, Liger's kernel, checkpointed chunks, all logits.

    python benchmarks/gpu_head.py [--tokens 4096] [--widths 1024 2048] [--json FILE]

Each way gives log-probs and entropies of trained tokens over a vocabulary of 151,936 in bfloat16, and the
gradients of the hidden states and of the head's weight for a gradient per token, as a loss has one. Printed
are milliseconds (the median of some tries), the peak of memory above the inputs and the weight's gradient,
and the largest difference from a computation in float64 on some of the tokens. Liger's kernel
is used as the trainer uses it (`trainers/liger_head.py`). Results go to results/gpu_head.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from coterie.backends.models.devices import gpu_memory
from coterie.backends.models.memory import block_logits, most_logits
from coterie.backends.trainers.forward import _in_chunks
from coterie.backends.trainers.head import Term, head_scores
from coterie.backends.trainers.liger_head import liger_kernel, liger_scores

RESULTS = Path(__file__).resolve().parent / "results" / "gpu_head.json"
VOCABULARY = 151_936
COMPARED = 64
"""Tokens whose log-probs and gradients are computed in float64 too."""
HeadFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From hidden states, weight and targets to log-probs and entropies."""


def all_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


def chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    size = most_logits(gpu_memory(hidden.device)) // VOCABULARY
    slices = [slice(start, start + size) for start in range(0, len(hidden), size)]
    scores = _in_chunks(
        lambda rows: torch.nn.functional.linear(rows, weight), hidden, targets, None, False, slices
    )
    return scores.logprobs, scores.entropy


def blocks(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    most = block_logits(gpu_memory(hidden.device))
    return head_scores((Term(hidden, weight),), None, targets, None, entropy_grad=False, most=most)


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    kernel = liger_kernel(weight.detach())
    if kernel is None:
        raise RuntimeError("Liger's kernel can't be used here; the log says why")
    return liger_scores(kernel, hidden, weight, targets, None)


WAYS: dict[str, HeadFunction] = {
    "all logits": all_logits,
    "chunks of tokens, checkpointed": chunks,
    "blocks of the vocabulary (Coterie)": blocks,
    "Liger's kernel": liger,
}


def measure(
    way: HeadFunction, width: int, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Time, memory and differences of one way at one width."""
    torch.manual_seed(0)
    hidden = torch.randn(options.tokens, width, device=device, dtype=torch.bfloat16)
    weight = (torch.randn(VOCABULARY, width, device=device) * 0.05).to(torch.bfloat16)
    targets = torch.randint(VOCABULARY, (options.tokens,), device=device)
    given = torch.randn(options.tokens, device=device) / options.tokens
    hidden.requires_grad_(True)
    weight.requires_grad_(options.train)

    def step() -> tuple[Tensor, Tensor]:
        hidden.grad = weight.grad = None
        logprobs, entropy = way(hidden, weight, targets)
        logprobs.backward(given)
        return logprobs.detach(), entropy

    seconds = []
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - sum(
        tensor.grad.nbytes for tensor in (hidden, weight) if tensor.grad is not None
    )
    for _ in range(options.tries):
        began = time.perf_counter()
        logprobs, entropy = step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    assert hidden.grad is not None
    gradients = hidden.grad.nbytes + (weight.grad.nbytes if weight.grad is not None else 0)
    peak = torch.cuda.max_memory_allocated() - before - gradients
    exact, exact_entropy, exact_gradient = _exact(hidden, weight, targets, given)
    return {
        "milliseconds": round(1000 * statistics.median(seconds), 2),
        "peak_gb": round(peak / 1e9, 3),
        "logprob_difference": float((logprobs[:COMPARED].double() - exact).abs().max()),
        "entropy_difference": float((entropy[:COMPARED].double() - exact_entropy).abs().mean()),
        "gradient_difference": float(
            (hidden.grad[:COMPARED].double() - exact_gradient).abs().max() / exact_gradient.abs().max()
        ),
    }


def _exact(hidden: Tensor, weight: Tensor, targets: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    rows = hidden[:COMPARED].detach().double().requires_grad_(True)
    logprobs = (rows @ weight.detach().double().T).log_softmax(-1)
    chosen = logprobs.gather(-1, targets[:COMPARED, None])[:, 0]
    chosen.backward(given[:COMPARED].double())
    assert rows.grad is not None
    return chosen.detach(), -(logprobs.exp() * logprobs).sum(-1).detach(), rows.grad


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device("cuda")
    rows, console = [], Console(width=130)
    for width in options.widths:
        for options.train in (True, False):
            for name, way in WAYS.items():
                row = {"width": width, "head": "trained" if options.train else "frozen", "way": name}
                if "Liger" in name and importlib.util.find_spec("liger_kernel") is None:
                    continue
                try:
                    rows.append({**row, **measure(way, width, options, device)})
                except Exception as error:  # a kernel of another version: the table says so
                    rows.append({**row, "error": f"{type(error).__name__}: {error}"[:300]})
                torch.cuda.empty_cache()
    names = {"torch": "torch", "triton": "triton", "liger": "liger-kernel"}
    versions = {}
    for name, package in names.items():
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    result = {
        "gpu": torch.cuda.get_device_name(device),
        "versions": versions,
        "tokens": options.tokens,
        "vocabulary": VOCABULARY,
        "rows": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table(title=f"{result['gpu']}, {options.tokens} tokens of {VOCABULARY:,}, bfloat16")
    for heading in ("width", "head", "way", "ms", "peak GB", "log-prob off", "entropy off", "gradient off"):
        table.add_column(heading, justify="left" if heading in ("head", "way") else "right")
    for row in rows:
        cells = ("milliseconds", "peak_gb", "logprob_difference", "entropy_difference", "gradient_difference")
        numbers = [f"{row[cell]:.3g}" for cell in cells] if "error" not in row else [row["error"]]
        table.add_row(str(row["width"]), row["head"], row["way"], *numbers)
    console.print(table)


if __name__ == "__main__":
    main()

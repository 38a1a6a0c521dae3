"""The side of a weight transfer that runs in vLLM's workers: backends `coterie_memory` and `coterie_file`.

vLLM imports this module in each worker before it loads the model (`worker_extension_cls`), which registers
the backends and installs the fixes. The interface is vLLM's four calls: init_weight_transfer_engine,
start_weight_update, update_weights (once or more), finish_weight_update
(docs.vllm.ai/en/latest/training/weight_transfer).

Each fix of wrong numbers is one function that the rest calls by name, so that a test can take it out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

_installed: set[str] = set()


def install() -> None:
    """Patch this process's vLLM, once."""
    if _installed:
        return
    _installed.add("all")
    from vllm.platforms import current_platform

    _patch_sampler()
    if current_platform.is_cpu():
        _patch_base_slot()


def fix_tied_head(model: Any) -> None:
    """Give a tied head the new embedding after a sync; on a CPU it keeps a packed copy of the old one.

    On a GPU the head's weight is the embedding's tensor, and nothing is done.
    """
    from vllm.platforms import current_platform

    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if not current_platform.is_cpu() or head is None or embedding is None:
        return
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    head, embedding = getattr(head, "base_layer", head), getattr(embedding, "base_layer", embedding)
    head.weight = embedding.weight
    head.quant_method.process_weights_after_loading(head)


def mask_base_rows(shrunk: Tensor, slots: Tensor) -> None:
    """Zero the low-rank products of rows without an adapter, in place.

    vLLM's CPU operators give such rows slot -1, which Python reads as the last slot: requests of the base
    would be computed with that slot's adapter. (vllm-project/vllm #48421 and #49656.)

    Args:
        shrunk: x A^T; shape (rows or more, rank).
        slots: adapter slot of each row, -1 for the base; shape (rows,).
    """
    shrunk[: slots.shape[0]].masked_fill_((slots < 0)[:, None], 0)


def whole_logprobs(logits: Tensor) -> Tensor:
    """Log-probs of every token before top-k and top-p remove any; shape of the logits, (rows, V)."""
    return logits.log_softmax(dim=-1, dtype=torch.float32)


def forget_shared_layers() -> None:
    """Give the next engine of this process rotary embeddings of its own.

    vLLM shares them between models of one shape. A sync that fails half-way leaves them without values, and
    would end the process's other engines.
    """
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()


def _patch_base_slot() -> None:
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    original = lora_ops.bgmv_shrink

    def bgmv_shrink(x: Tensor, weights: Tensor, out: Tensor, slots: Tensor, scaling: float = 1.0) -> None:
        original(x, weights, out, slots, scaling)
        mask_base_rows(out, slots)

    for module in (lora_ops, torch_ops, punica_cpu):
        module.bgmv_shrink = bgmv_shrink


def _patch_sampler() -> None:
    """Report log-probs under the whole distribution also where top-k or top-p removes tokens.

    vLLM's "processed" log-probs are normalised over the tokens that are kept. Samples are trained on the
    whole distribution, so these would be off by the log of the kept share. vLLM's second GPU runner has
    another sampler, which this patch doesn't reach.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    def patched(original: Any) -> Any:
        def forward(self: Any, logits: Tensor, generators: Any, k: Tensor | None, p: Tensor | None) -> Any:
            filtered = (k is not None or p is not None) and self.logprobs_mode == "processed_logprobs"
            whole = whole_logprobs(logits) if filtered else None  # before the filter, which is in place
            tokens, logprobs = original(self, logits, generators, k, p)
            return tokens, logprobs if whole is None else whole

        return forward

    for name in ("forward_native", "forward_cpu"):
        setattr(TopKTopPSampler, name, patched(getattr(TopKTopPSampler, name)))


MEMORY, FILE = "coterie_memory", "coterie_file"


class Extension:
    """The class that `worker_extension_cls` names; vLLM's worker is enough, so it adds nothing."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing is needed to begin."""


@dataclass
class TensorsInfo(WeightTransferUpdateInfo):
    """Tensors of the worker's own process."""

    tensors: Iterable[tuple[str, torch.Tensor]] = field(default_factory=list)


@dataclass
class FileInfo(WeightTransferUpdateInfo):
    """A safetensors file that the worker can read."""

    path: str = ""


class LayerwiseReload(WeightTransferEngine[InitInfo, Any]):
    """Reloads the model layer by layer, as from a checkpoint. A failure leaves layers without weights."""

    init_info_cls = InitInfo
    _loaded: set[str]

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        install()

    def start_weight_update(self) -> None:
        self._loaded = set()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Any) -> None:
        with torch.no_grad():
            self._loaded |= self.model.load_weights(self.tensors(update_info)) or set()

    def finish_weight_update(self) -> None:
        missing = self._missing()
        if missing:
            raise RuntimeError(f"no tensor of the update has the weights of {', '.join(missing[:3])}")
        finalize_layerwise_reload(self.model, self.model_config)
        fix_tied_head(self.model)

    def shutdown(self) -> None:
        pass

    @abstractmethod
    def tensors(self, update_info: Any) -> Iterable[tuple[str, torch.Tensor]]:
        """The tensors of one `update_weights`, by their names in a checkpoint."""

    def _missing(self) -> list[str]:
        """Parameters that no tensor of this update was loaded into; vLLM only logs them."""
        tied = getattr(self.model.config, "tie_word_embeddings", False)
        names = (name for name, _ in self.model.named_parameters())
        plain = {name.replace(".base_layer.", ".") for name in names if "lora_" not in name}
        loaded = {name.replace(".base_layer.", ".") for name in self._loaded}
        return sorted(name for name in plain - loaded if not (tied and name == "lm_head.weight"))


class MemoryTransfer(LayerwiseReload):
    """Reads the trainer's tensors where trainer and vLLM share a process."""

    update_info_cls = TensorsInfo

    def tensors(self, update_info: TensorsInfo) -> Iterable[tuple[str, torch.Tensor]]:
        return update_info.tensors


class FileTransfer(LayerwiseReload):
    """Reads safetensors files, one for each `update_weights`."""

    update_info_cls = FileInfo

    def tensors(self, update_info: FileInfo) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        with safe_open(update_info.path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  # a safetensors handle, not a dict
                yield name, file.get_tensor(name)


for _name, _class in ((MEMORY, MemoryTransfer), (FILE, FileTransfer)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _class)
install()

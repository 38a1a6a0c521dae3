"""The side of a weight transfer that runs in vLLM's workers: backends `coterie_memory` and `coterie_file`.

vLLM imports this module in each worker before it loads the model (`worker_extension_cls`), which registers
the backends and installs the fixes. The interface is vLLM's four calls: init_weight_transfer_engine,
start_weight_update, update_weights (once or more), finish_weight_update
(docs.vllm.ai/en/latest/training/weight_transfer).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
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

from coterie.backends.engines.vllm import fixes

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


class _Reload(WeightTransferEngine[InitInfo, Any]):
    """Reloads the model layer by layer, as from a checkpoint. A failure leaves layers without weights."""

    init_info_cls = InitInfo
    _loaded: set[str]

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        fixes.install()

    def start_weight_update(self) -> None:
        self._loaded = set()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Any) -> None:
        with torch.no_grad():
            self._loaded |= self.model.load_weights(self._tensors(update_info)) or set()

    def finish_weight_update(self) -> None:
        missing = self._missing()
        if missing:
            raise RuntimeError(f"no tensor of the update has the weights of {', '.join(missing[:3])}")
        finalize_layerwise_reload(self.model, self.model_config)
        fixes.fix_tied_head(self.model)

    def shutdown(self) -> None:
        pass

    @abstractmethod
    def _tensors(self, update_info: Any) -> Iterable[tuple[str, torch.Tensor]]:
        """The tensors of one `update_weights`, by their names in a checkpoint."""

    def _missing(self) -> list[str]:
        """Parameters that no tensor of this update was loaded into; vLLM only logs them."""
        tied = getattr(self.model.config, "tie_word_embeddings", False)
        names = (name for name, _ in self.model.named_parameters())
        plain = {name.replace(".base_layer.", ".") for name in names if "lora_" not in name}
        loaded = {name.replace(".base_layer.", ".") for name in self._loaded}
        return sorted(name for name in plain - loaded if not (tied and name == "lm_head.weight"))


class MemoryTransfer(_Reload):
    """Reads the trainer's tensors where trainer and vLLM share a process."""

    update_info_cls = TensorsInfo

    def _tensors(self, update_info: TensorsInfo) -> Iterable[tuple[str, torch.Tensor]]:
        return update_info.tensors


class FileTransfer(_Reload):
    """Reads safetensors files, one for each `update_weights`."""

    update_info_cls = FileInfo

    def _tensors(self, update_info: FileInfo) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        with safe_open(update_info.path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  # a safetensors handle, not a dict
                yield name, file.get_tensor(name)


for _name, _class in ((MEMORY, MemoryTransfer), (FILE, FileTransfer)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _class)
fixes.install()

"""Versions of LoRA adapters: a folder and an id for each, kept while requests or steps need them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.backends.engines.vllm.server import Adapter
from coterie.backends.engines.vllm.settings import RANKS
from coterie.backends.engines.vllm.transfer import Folders, remove
from coterie.backends.models.versions import Versions
from coterie.core.errors import ConfigError


class AdapterVersions:
    """The adapters of one base: for each policy the newest version, and older ones that are needed.

    A step that is pinned to a version leases it; a request uses one from its start to its end. A version that
    has been replaced is handed to `discard` when its last lease and its last request end, and its folder is
    removed then.

    Args:
        discard: takes a version that nobody uses any more; called on the event loop.
    """

    def __init__(self, discard: Callable[[Adapter], None]) -> None:
        self._discard = discard
        self.versions: Versions[Adapter] = Versions(lambda policy, adapter: self._drop_unused(adapter))
        """By policy. Requests that name no version get the newest that was put there."""
        self._uses: Counter[int] = Counter()
        """By id: the requests that use it."""
        self._ids = itertools.count(1)
        self._folders = Folders()

    @property
    def held(self) -> list[Adapter]:
        """All that requests may name: the newest versions, and those with a lease."""
        return self.versions.values()

    def write(self, policy: str, version: int, settings: Any, tensors: Mapping[str, Any]) -> Adapter:
        """Write a version in PEFT's format, under a name, an id and a path that no other version has.

        Args:
            settings: PEFT's configuration of the adapter.
            tensors: by PEFT's names in a file.

        Raises:
            WriteError: neither shared memory nor the temporary folder has room.
        """
        from safetensors.torch import save_file

        number = next(self._ids)
        copies = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}

        def write(folder: Path) -> None:
            folder.mkdir()
            settings.save_pretrained(folder)
            save_file(copies, folder / "adapter_model.safetensors")

        size = sum(tensor.nbytes for tensor in copies.values()) + 2**16
        path = self._folders.write(f"{number}", size, write)
        return Adapter(f"{policy}@{version}.{number}", number, str(path))

    @contextmanager
    def use(self, policy: str, version: int | None = None) -> Iterator[tuple[Adapter, int]]:
        """A version's adapter (None: the newest's) and its version; it stays loaded meanwhile.

        Raises:
            SystemFault: the version is not held.
        """
        version = self.versions.version(policy) if version is None else version
        adapter = self.versions.at(policy, version)
        self._uses[adapter.id] += 1
        try:
            yield adapter, version
        finally:
            self._uses[adapter.id] -= 1
            self._drop_unused(adapter)

    def close(self) -> None:
        """Remove all folders."""
        self.versions.clear()
        self._folders.close()

    def _drop_unused(self, adapter: Adapter) -> None:
        """Drop a version, unless it is held or a request uses it."""
        if self._uses[adapter.id]:
            return
        del self._uses[adapter.id]
        if adapter not in self.held:
            self._drop(adapter)

    def _drop(self, adapter: Adapter) -> None:
        self._discard(adapter)
        # vLLM has read the files; it reads them again only for requests that name the adapter.
        remove(Path(adapter.path))


def adapter_tensors(weights: Any) -> dict[str, Any]:
    """The tensors of a handle's adapter by PEFT's names in a file (without the adapter's own name)."""
    if weights.tensors is not None:
        return {_file_name(name, weights.adapter): tensor for name, tensor in weights.tensors()}
    from peft import get_peft_model_state_dict

    state: dict[str, Any] = get_peft_model_state_dict(weights.module, adapter_name=weights.adapter)
    return state


def largest_rank(settings: Any) -> int:
    """The largest rank of any layer of an adapter."""
    return max([settings.r, *(settings.rank_pattern or {}).values()])


def rank_for(adapters: Mapping[str, Any], policy: str) -> int:
    """The rank that vLLM is started with for these adapters' configurations; 0 without any.

    Raises:
        ConfigError: vLLM has none that large; `policy` is named.
    """
    largest = max((largest_rank(settings) for settings in adapters.values()), default=0)
    rank = next((known for known in RANKS if known >= largest), None) if adapters else 0
    if rank is None:
        raise wrong_rank(policy, largest, f"vLLM has none larger than {RANKS[-1]}")
    return rank


def wrong_rank(policy: str, rank: int, why: str) -> ConfigError:
    return ConfigError(
        f"vLLM can't take an adapter of rank {rank}",
        path=f"policies.{policy}.lora.rank",
        why=why,
        fix="use a smaller rank, or engine.type: hf",
    )


def _file_name(name: str, adapter: str) -> str:
    plain = name.replace(f".{adapter}.", ".")
    return plain if plain.startswith("base_model.model.") else f"base_model.model.{plain}"

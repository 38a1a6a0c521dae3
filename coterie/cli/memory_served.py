"""What the engine `hf` makes of a run's models, measured on torch's meta device."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
    from torch import Tensor

    from coterie.api.counts import Counts
    from coterie.backends.engines.lean.weights import LeanWeights
    from coterie.backends.models.sizes import Blueprint
    from coterie.core.training.run import Run


async def served(
    run: Run, counts: Counts, models: Sequence[Blueprint], longest: int
) -> tuple[dict[str, int], dict[str, str], set[str]]:
    """Load the models into the engine `hf` on the meta device, and measure what it makes of them.

    The engine has the run's settings and takes the code paths of a real run, so that its copies and shared
    tensors need no second description. Tensors that policies share are counted for the first of them.

    Args:
        longest: tokens of the longest prompt and answer.

    Returns:
        by policy, the bytes that the engine makes; by policy, the policy in whose batches its requests are
        computed; and the policies whose siblings share one copy of their prompt's keys and values.
    """
    from coterie.backends.engines.hf import HFEngine
    from coterie.core.protocols import EngineContext
    from coterie.core.types import Weights

    chosen: Any = run.engine
    engine = HFEngine(chosen.config, chosen.build)
    await engine.open(
        EngineContext(
            policies=run.config.policies,
            chat=run.chat,
            active_rollouts=run.engine_client.active_rollouts,
            deterministic=True,
            vocabulary=run.vocabulary,
        )
    )
    made: dict[str, int] = {}
    lean: set[str] = set()
    with _Made() as new:
        for model in models:
            decoders = len(new.decoders())
            for name, (module, adapter) in model.modules.items():
                before = new.meta_bytes()
                await engine.load_weights(Weights(policy=name, version=0, module=module, adapter=adapter))
                new.write_positions(longest)
                made[name] = new.meta_bytes() - before
            before = new.meta_bytes()
            for wave in counts.waves:
                names = [name for name in model.modules if name in wave]
                engine.prepare({name: wave[name] * run.sampler.plan.branches for name in names})
            new.write_positions(longest)
            made[next(iter(model.modules))] += new.meta_bytes() - before
            if len(new.decoders()) > decoders:
                lean.update(model.modules)
    batch_policy = {name: engine.batch_of(name) for name in made}
    await engine.close()
    return made, batch_policy, lean


class _Made:
    """What is made on the meta device inside the block.

    Garbage collection is off meanwhile: tensors that it freed would be subtracted from the count. Older
    objects are frozen, since a search through all objects of a large process takes a second.
    """

    def __enter__(self) -> _Made:
        self._enabled = gc.isenabled()
        gc.disable()
        self._older = _meta_tensors()
        # Held as storages, so that no new one gets the identity of one that is given up.
        self._storages = {storage._cdata: storage for storage in _storages(self._older)}
        gc.freeze()
        return self

    def __exit__(self, *exception: object) -> None:
        gc.unfreeze()
        self._older.clear()
        self._storages.clear()
        if self._enabled:
            gc.enable()

    def meta_bytes(self) -> int:
        """Bytes of new storages on the meta device, less the older ones that tensors have left."""
        now = {storage._cdata: storage.nbytes() for storage in _storages([*self._older, *_meta_tensors()])}
        made = sum(size for key, size in now.items() if key not in self._storages)
        return made - sum(storage.nbytes() for key, storage in self._storages.items() if key not in now)

    def decoders(self) -> list[LeanWeights]:
        """The weights of lean decoders on the meta device."""
        from coterie.backends.engines.lean.weights import LeanWeights

        return [
            weights
            for weights in gc.get_objects()
            if type(weights) is LeanWeights and weights.device.type == "meta"
        ]

    def write_positions(self, longest: int) -> None:
        """Make the tables of positions that lean decoders make in their first batch."""
        for weights in self.decoders():
            weights.rotary(longest)


def _storages(tensors: Iterable[Tensor]) -> Iterator[Any]:
    return (tensor.untyped_storage() for tensor in tensors)


def _meta_tensors() -> list[Tensor]:
    """The tensors on the meta device, those made before a freeze left out."""
    import torch

    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and thing.is_meta]

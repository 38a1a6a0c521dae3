"""What the engine `hf` makes of a run's models, measured on torch's meta device."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
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
    with _no_collection():
        for model in models:
            decoders = len(_decoders())
            for name, (module, adapter) in model.modules.items():
                before = meta_bytes()
                await engine.load_weights(Weights(policy=name, version=0, module=module, adapter=adapter))
                _write_positions(longest)
                made[name] = meta_bytes() - before
            before = meta_bytes()
            for wave in counts.waves:
                names = [name for name in model.modules if name in wave]
                engine.prepare({name: wave[name] * run.sampler.plan.branches for name in names})
            _write_positions(longest)
            made[next(iter(model.modules))] += meta_bytes() - before
            if len(_decoders()) > decoders:
                lean.update(model.modules)
    batch_policy = {name: engine.batch_of(name) for name in made}
    await engine.close()
    return made, batch_policy, lean


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off: tensors that it freed would be subtracted from the count."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decoders() -> list[LeanWeights]:
    """The weights of lean decoders on the meta device."""
    from coterie.backends.engines.lean.weights import LeanWeights

    return [
        weights
        for weights in gc.get_objects()
        if type(weights) is LeanWeights and weights.device.type == "meta"
    ]


def _write_positions(longest: int) -> None:
    """Make the tables of positions that lean decoders make in their first batch."""
    for weights in _decoders():
        weights.rotary(longest)


def meta_bytes() -> int:
    """Bytes of all tensors on the meta device, each storage counted once."""
    import torch

    tensors = [
        tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor) and tensor.is_meta
    ]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())

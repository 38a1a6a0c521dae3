"""One engine of DeepSpeed's for each trained policy, behind the interface of an optimiser.

Up to stage 2 an engine gets its policy's parameters and nothing else: the model stays as it is, and policies
on one base don't touch each other. At stage 3 it gets the whole model, which it divides between the ranks.
The engines of the adapters on one base then have one root module, since their layers' hooks share the root's
registry of parameters that are being gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from coterie.backends.trainers.deepspeed.head import MASTERS, Head, held
from coterie.backends.trainers.deepspeed.settings import DeepSpeedConfig
from coterie.backends.trainers.optim import StepInfo, adamw, finite, learning_rate
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.ranks.group import RankPlace
from coterie.core.errors import RunFolderError

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Root(torch.nn.Module):
    """The module that an engine gets. Its forward calls a function, which computes whatever it likes.

    Args:
        parameters: parameters outside the model.
        model: the model, where the engine divides it.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], model: Any = None) -> None:
        super().__init__()
        for number, parameter in enumerate(parameters):  # its own: stage 3 gathers those of called modules
            self.register_parameter(f"parameter_{number}", parameter)
        if model is not None:
            self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


class Engines:
    """The engines of one rank.

    Args:
        deepspeed: the module.
        persistent: numbers of the largest tensor that every rank keeps whole at stage 3.
    """

    def __init__(
        self, deepspeed: Any, config: DeepSpeedConfig, place: RankPlace, device: torch.device, persistent: int
    ) -> None:
        self.deepspeed, self.config, self.place, self.device = deepspeed, config, place, device
        self.persistent = persistent
        self._optimizers: dict[str, DeepSpeedOptimizer] = {}
        self._roots: dict[int, Root] = {}

    def optimizer(self, policy: PolicyWeights) -> DeepSpeedOptimizer:
        """A new optimiser over the policy's present weights; its engine is made when it is first needed."""
        optimizer = DeepSpeedOptimizer(policy, self)
        self._optimizers[policy.name] = optimizer
        return optimizer

    @property
    def made(self) -> bool:
        """Whether there is an engine. From then on stage 3 has divided models."""
        return any(optimizer.engine is not None for optimizer in self._optimizers.values())

    def make(self) -> None:
        """Make the engines that are missing; every rank calls this."""
        missing = [optimizer for optimizer in self._optimizers.values() if optimizer.engine is None]
        if missing and self.config.stage == 3:
            self._number_alike()
        for optimizer in missing:
            optimizer.make()

    def _number_alike(self) -> None:
        """Continue the numbers of modules and parameters from the same ones on all ranks.

        DeepSpeed counts them in each process and compares them between ranks. Rank 0's process may have
        trained before, while the other ranks are new.
        """
        from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
        from deepspeed.runtime.zero.partition_parameters import Init

        count = DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0]
        count[0] = max(self.place.gather(count[0]))
        Init.param_id = max(self.place.gather(Init.param_id))

    def root(self, policy: PolicyWeights) -> Root:
        """The module of a policy's engine."""
        if self.config.stage < 3:
            return Root(policy.weights().values())
        key = id(policy.model)
        if key not in self._roots:
            members = [
                other.policy for other in self._optimizers.values() if other.policy.model is policy.model
            ]
            heads = [member.value_head for member in members if member.value_head is not None]
            self._roots[key] = Root(heads, policy.model)
            self._divided(policy, self._roots[key])
        return self._roots[key]

    def _divided(self, policy: PolicyWeights, root: Root) -> None:
        """Make all users of a model gather its weights, and go through its root."""
        policy.scorer.divide(root)
        if policy.adapter is not None:
            policy.initial.gather = self.gather
        else:
            policy.gather = self.gather

    def gather(self, parameters: Iterable[Tensor], write: bool) -> AbstractContextManager[Any]:
        """The context in which divided parameters are whole; with `write`, rank 0's values are kept."""
        divided = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
        if not divided:
            return nullcontext()
        context: AbstractContextManager[Any] = self.deepspeed.zero.GatheredParameters(
            divided, modifier_rank=0 if write else None
        )
        return context

    def close(self) -> None:
        """Remove the engines."""
        for optimizer in self._optimizers.values():
            if optimizer.engine is not None:
                optimizer.engine.destroy()
        self._optimizers, self._roots = {}, {}


class DeepSpeedOptimizer:
    """The optimiser of one policy: an engine of DeepSpeed's around AdamW.

    Schedule, groups of weight decay, clipping and skipped steps are those of `PolicyOptimizer`. The engine
    adds the gradients of all ranks, each rank steps its part of the weights, and all get the result.
    """

    def __init__(self, policy: PolicyWeights, engines: Engines) -> None:
        self.policy, self._all = policy, engines
        self.settings, self.count, self.spent = policy.config.optimizer, 0, 0.0
        self.stage = engines.config.stage
        self.low = policy.config.dtype == "bfloat16" and (self.stage == 3 or policy.adapter is None)
        """Whether the engine trains in bf16. Adapters beside a bf16 base are fp32 up to stage 2."""
        if self.low:  # an engine has one dtype for all of its parameters
            for weight in policy.weights().values():
                weight.data = weight.data.bfloat16()
        self.engine: Any = None
        # Before another adapter's engine divides these weights: decay goes by their shapes.
        self._adam = adamw(policy.weights(), self.settings, policy.rates)
        self.head = Head(self._adam, policy.value_head)
        self._restored: tuple[dict[str, Tensor], float] | None = None
        """A state, and AdamW's count of steps, that the engine gets when it is made."""

    # -------------------------------------------------------------------------------------------- the engine

    def make(self) -> None:
        """Make the engine; every rank calls this."""
        self._activate()
        weights, root = self.policy.weights(), self._all.root(self.policy)
        self.engine, *_ = self._all.deepspeed.initialize(
            model=root,
            model_parameters=list(weights.values()),
            optimizer=self._adam,
            config=self._config(),
            dist_init_required=False,
        )
        if self._restored is not None:
            state, steps = self._restored
            self._restored = None
            self._fill(state, steps)

    def _config(self) -> dict[str, Any]:
        offload = self._all.config.offload
        pinned = self._all.device.type == "cuda"
        zero: dict[str, Any] = {"stage": self.stage}
        if self.stage == 3:
            zero["stage3_param_persistence_threshold"] = self._all.persistent
        if offload.optimizer != "none":
            zero["offload_optimizer"] = {"device": offload.optimizer, "pin_memory": pinned}
        if offload.parameters != "none":
            zero["offload_param"] = {"device": offload.parameters, "pin_memory": pinned}
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # the boundary is set by hand
            "zero_optimization": zero,
            # torch's AdamW: DeepSpeed's has to be compiled.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": self.settings.clip if self.stage else 0.0,
        }
        if self.low:
            config["bf16"] = {"enabled": True, "check_grad_overflow": True}
            # Both in fp32: what micro-batches add up to, and what ranks do.
            config["data_types"] = {"grad_accum_dtype": "fp32"}
            config["communication_data_type"] = "fp32"
        return config

    def _activate(self) -> None:
        """Make the policy's adapter the active one: others require no gradients, so they have no state."""
        if self.policy.adapter is not None:
            self.policy.initial.peft.set_adapter(self.policy.adapter)
        if self.engine is not None and self.stage == 3:
            for weight in self.policy.weights().values():
                # The newest engine on a base takes all of its parameters.
                weight._z3_optimizer = self.engine.optimizer  # type: ignore[attr-defined]

    # ----------------------------------------------------------------------------------------------- updates

    def accumulate(self, loss: Callable[[], Tensor], *, last: bool) -> Tensor:
        """Compute the loss of a micro-batch and add its gradients; returns the detached loss."""
        head = self.policy.value_head

        def compute() -> Tensor:
            # All ranks add the same tensors' gradients: a micro-batch without targets has none for the head.
            return loss() if head is None else loss() + 0.0 * head.sum()

        self.engine.set_gradient_accumulation_boundary(last)
        value: Tensor = self.engine(compute)
        # DeepSpeed averages over the ranks. The coefficients of a loss are those of the whole minibatch.
        self.engine.backward(value * self._all.place.world, scale_wrt_gas=False)
        return value.detach()

    @property
    def clear_gradients(self) -> Callable[[], None] | None:
        """What drops the gradients of all micro-batches since the last step; None: nothing does.

        At stage 0 they are in the weights. Other stages have added them to buffers of DeepSpeed's, and with
        several ranks a micro-batch that one rank repeats leaves the others waiting.
        """
        if self.stage or self._all.place.world > 1:
            return None
        return self._clear

    def _clear(self) -> None:
        for weight in self.policy.weights().values():
            weight.grad = None

    def step(self) -> StepInfo:
        """Clip the summed gradients to the global norm and step; skip the step if they are not finite."""
        rate = learning_rate(self.settings, self.count, self.spent)
        for group in self._adam.param_groups:
            group["lr"] = rate * group["scale"]
        if self.stage == 0:
            norm, skipped = self._clip()
            if skipped:
                self.engine.zero_grad()
            else:
                self.engine.step()
        else:
            self.engine.step()
            norm, skipped = float(self.engine.get_global_grad_norm()), bool(self.engine.optimizer.overflow)
        # DeepSpeed writes through other tensors, and engines know by the count that weights have changed.
        increment_version(list(self.policy.weights().values()))
        self.count += not skipped
        self.head.steps += self.head.trained and not skipped
        return StepInfo(norm, rate, skipped)

    def _clip(self) -> tuple[float, bool]:
        """The norm, and whether it isn't finite; at stage 0 each rank has all gradients."""
        weights = self.policy.weights().values()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm) and norm > self.settings.clip:
            torch._foreach_mul_(gradients, self.settings.clip / norm)
        return norm, not math.isfinite(norm)

    def finite(self) -> bool:
        """Whether all weights are finite numbers, on all ranks."""
        parts = [getattr(weight, "ds_tensor", weight) for weight in self.policy.weights().values()]
        return all(self._all.place.gather(finite(parts)))

    def masters(self) -> dict[str, Tensor]:
        """Nothing: the engine adds the gradients of all ranks by itself."""
        return {}

    def held(self) -> Iterator[Tensor]:
        """This rank's part of masters, moments and sums of gradients."""
        return held(self._adam, None if self.engine is None else self.engine.optimizer)

    # ------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Tensor]:
        """Moments and masters, whole, by `<parameter>/<part>`. With an engine every rank calls this."""
        weights = self.policy.weights()
        if self.engine is None:
            if self._restored is not None:
                return dict(self._restored[0])
            return {
                f"{n}/master": w.detach().float() for n, w in weights.items() if w.dtype == torch.bfloat16
            }
        self._activate()
        if self.count:
            self._link()
        tensors: dict[str, Tensor] = {}
        for name, weight in weights.items():
            if self.low:
                tensors[f"{name}/master"] = self._get(weight, None)
            steps = self.head.steps if weight is self.policy.value_head else self.count
            if steps:
                for part in _MOMENTS:
                    tensors[f"{name}/{part}"] = self._get(weight, part)
                tensors[f"{name}/step"] = torch.tensor(float(steps))
        return tensors

    def _get(self, weight: torch.nn.Parameter, part: str | None) -> Tensor:
        """A whole moment, or the fp32 weight, on the CPU; rank 0 alone keeps it."""
        from deepspeed import utils

        if self.stage == 0:
            assert part is not None
            whole = self._adam.state[weight][part]
        elif part is None:
            whole = utils.safe_get_full_fp32_param(weight)
        else:
            whole = utils.safe_get_full_optimizer_state(weight, part)
        if self._all.place.number > 0:
            return torch.empty(0)
        return whole.detach().to("cpu", copy=True).view(getattr(weight, "ds_shape", weight.shape))

    def restore(self, state: Mapping[str, Tensor], count: int, source: str) -> None:
        """Restore a state, bit for bit, when the engine is made.

        Raises:
            RunFolderError: the state belongs to other parameters.
        """
        assert self.engine is None, "a state is restored into new weights"
        remaining = dict(state)
        kept: dict[str, Tensor] = {}
        steps = 0.0
        for name, weight in self.policy.weights().items():
            stepped = any(f"{name}/{part}" in remaining for part in _MOMENTS)
            low = weight.dtype == torch.bfloat16
            for part in (*(("master",) if low else ()), *(_MOMENTS if stepped else ())):
                tensor = remaining.pop(f"{name}/{part}", None)
                if tensor is None or tensor.shape != weight.shape:
                    raise RunFolderError(f"{source}: {name}/{part} is missing or has another shape")
                kept[f"{name}/{part}"] = tensor.to("cpu", copy=True)
            step = remaining.pop(f"{name}/step", None)
            if step is not None:
                kept[f"{name}/step"] = step.to("cpu", copy=True)
                steps = max(steps, float(step))
                if weight is self.policy.value_head:
                    self.head.steps = int(step)
        if remaining:
            raise RunFolderError(f"{source}: state of unknown parameters: {', '.join(sorted(remaining)[:3])}")
        self.count, self._restored = count, (kept, steps)

    def _fill(self, state: Mapping[str, Tensor], steps: float) -> None:
        """Give a state to the new engine."""
        from deepspeed import utils

        if steps:
            self._begin_moments(steps)
        self._activate()
        for name, weight in self.policy.weights().items():
            for part in ("master", *_MOMENTS):
                if f"{name}/{part}" not in state:
                    continue
                value = state[f"{name}/{part}"].to(self._all.device)
                if self.stage == 0:
                    self._adam.state[weight][part].copy_(value)
                elif part == "master":
                    utils.safe_set_full_fp32_param(weight, value)
                else:
                    utils.safe_set_full_optimizer_state(weight, value, part)

    def _begin_moments(self, steps: float) -> None:
        """Moments of zeros after so many steps, where the engine looks for them."""
        optimizer = self.engine.optimizer
        flat = next((getattr(optimizer, name) for name in MASTERS if hasattr(optimizer, name)), None)
        groups = getattr(optimizer, "sub_group_to_group_id", {})  # stage 3 divides groups
        for number, tensor in enumerate(flat if flat is not None else self.policy.weights().values()):
            head = tensor is self.policy.value_head
            if flat is not None:
                head = bool(self._adam.param_groups[groups.get(number, number)].get("head"))
            count = float(self.head.steps) if head else steps
            moments = {part: torch.zeros_like(tensor) for part in _MOMENTS}
            self._adam.state[tensor] = {"step": torch.tensor(count, device=tensor.device), **moments}
        self._link()

    def _link(self) -> None:
        """Let ZeRO 1 and 2 find moments by parameter.

        DeepSpeed does it once, after the first group's first step, when other groups have no moments yet.
        """
        optimizer = self.engine.optimizer
        if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

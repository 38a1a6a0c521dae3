"""Exports of models that ranks divide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coterie.backends.trainers.export import export
from coterie.backends.trainers.parameters import adapter_parameters, fill, plain_parameters
from coterie.backends.trainers.policies import PolicyWeights


def export_whole(policy: PolicyWeights, folder: Path | None, *, merge: bool) -> None:
    """Export a policy through a whole copy of its model in rank 0's memory; every rank calls this.

    Args:
        folder: None: take part in the collective calls alone.
    """
    model = policy.model
    copy = None if folder is None else type(model)(model.config).to(model.dtype)
    peft = None
    if copy is not None and policy.adapter is not None:
        from peft import get_peft_model

        settings = policy.initial.peft.peft_config[policy.adapter]
        peft = get_peft_model(copy, settings, adapter_name=policy.adapter)
    parts = [(plain_parameters(model), None if copy is None else plain_parameters(copy))]
    if policy.adapter is not None:
        theirs = None if copy is None else adapter_parameters(copy, policy.adapter)
        parts.append((adapter_parameters(model, policy.adapter), theirs))
    for ours, theirs in parts:
        for name, parameter in ours.items():
            with policy.gathered([parameter]):
                if theirs is not None:
                    fill({name: theirs[name]}, {name: parameter})
    if folder is not None:
        initial = replace(policy.initial, frozen=copy, peft=peft)
        export(replace(policy, initial=initial, model=copy), folder, merge=merge)

"""From a resolved configuration to the objects of a run. No training step comes here."""

from __future__ import annotations

from coterie.compose.packages import check_hosts as check_hosts, check_packages as check_packages
from coterie.compose.rollout_side import (
    RolloutParts as RolloutParts,
    make_rollout_parts as make_rollout_parts,
    make_rollout_side as make_rollout_side,
)
from coterie.compose.run import (
    compose as compose,
    prepare as prepare,
    trained_splits as trained_splits,
)

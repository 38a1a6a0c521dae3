"""The values of a training step: keys, messages, trees, scores, credit, samples."""

from __future__ import annotations

from coterie.core.types.keys import TEAM as TEAM, Key as Key
from coterie.core.types.messages import (
    Message as Message,
    Prompt as Prompt,
    Request as Request,
    Sampling as Sampling,
)
from coterie.core.types.samples import (
    Annotations as Annotations,
    Credit as Credit,
    Metrics as Metrics,
    Sample as Sample,
    Span as Span,
    Weights as Weights,
)
from coterie.core.types.scores import (
    ComponentKind as ComponentKind,
    RewardWeights as RewardWeights,
    Score as Score,
    Scores as Scores,
)
from coterie.core.types.tree import (
    MAX_STAGES as MAX_STAGES,
    Action as Action,
    Call as Call,
    Decision as Decision,
    Fault as Fault,
    Finding as Finding,
    HistoryEntry as HistoryEntry,
    JointAction as JointAction,
    Node as Node,
    RoleInput as RoleInput,
    Step as Step,
    Task as Task,
    Tree as Tree,
    all_passed as all_passed,
    as_tuple as as_tuple,
    committed as committed,
)

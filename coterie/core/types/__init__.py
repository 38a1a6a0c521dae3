"""Values that travel: keys, trees, scores, credit, samples, messages."""

from __future__ import annotations

from coterie.core.types.keys import TEAM as TEAM, Key as Key
from coterie.core.types.messages import (
    Message as Message,
    Prompt as Prompt,
    Request as Request,
    Sampling as Sampling,
)
from coterie.core.types.samples import (
    Credit as Credit,
    Metrics as Metrics,
    Notes as Notes,
    Sample as Sample,
    Span as Span,
    Weights as Weights,
)
from coterie.core.types.scores import (
    ComponentKind as ComponentKind,
    Mix as Mix,
    Score as Score,
    Scores as Scores,
)
from coterie.core.types.tree import (
    Action as Action,
    Briefing as Briefing,
    Call as Call,
    Decision as Decision,
    Fault as Fault,
    Joint as Joint,
    Node as Node,
    Past as Past,
    Step as Step,
    Task as Task,
    Tree as Tree,
    as_tuple as as_tuple,
    committed as committed,
)

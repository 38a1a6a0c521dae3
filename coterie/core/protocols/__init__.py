"""One protocol for each kind of plugin, with the values that its methods receive and return.

A plugin class may have a nested `Config` (a `coterie.PluginConfig`). Its constructor is called as
`cls(config, build)`: `build` (`coterie.Build`) names the instance and makes other components. The base class
`coterie.Plugin` stores both. Constructors are cheap: weights, processes and connections are opened in
`open` and released in `close`, where a kind has these methods.
"""

from __future__ import annotations

from coterie.core.protocols.chat_format import ChatFormat as ChatFormat, Codec as Codec
from coterie.core.protocols.chat_model import (
    ChatAnswer as ChatAnswer,
    ChatModel as ChatModel,
    ChatRequest as ChatRequest,
)
from coterie.core.protocols.engine import (
    Engine as Engine,
    EngineClient as EngineClient,
    EngineContext as EngineContext,
)
from coterie.core.protocols.environment import (
    DataSource as DataSource,
    Environment as Environment,
    StepContext as StepContext,
    TaskSource as TaskSource,
)
from coterie.core.protocols.estimator import AdvantageEstimator as AdvantageEstimator, Batch as Batch
from coterie.core.protocols.executor import (
    Executor as Executor,
    ExecutorContext as ExecutorContext,
    Rollout as Rollout,
    RolloutJob as RolloutJob,
    RolloutSide as RolloutSide,
    ScoredRollout as ScoredRollout,
)
from coterie.core.protocols.loss import (
    Length as Length,
    Loss as Loss,
    Surrogate as Surrogate,
    TokenBatch as TokenBatch,
)
from coterie.core.protocols.reward import (
    ActionView as ActionView,
    EpisodeView as EpisodeView,
    JointView as JointView,
    NamedRewardSource as NamedRewardSource,
    PlayedAction as PlayedAction,
    RewardSource as RewardSource,
    SiblingsView as SiblingsView,
    View as View,
)
from coterie.core.protocols.role import Role as Role
from coterie.core.protocols.sampler import (
    Plan as Plan,
    PromptRequest as PromptRequest,
    RolloutContext as RolloutContext,
    Sampler as Sampler,
)
from coterie.core.protocols.sandbox import (
    Judged as Judged,
    Limits as Limits,
    Program as Program,
    Ran as Ran,
    Sandbox as Sandbox,
    Status as Status,
    TestFailure as TestFailure,
    Verdict as Verdict,
)
from coterie.core.protocols.team import Member as Member, Team as Team
from coterie.core.protocols.tool import Tool as Tool
from coterie.core.protocols.tracker import Tracker as Tracker
from coterie.core.protocols.trainer import (
    Demonstration as Demonstration,
    Trainer as Trainer,
    TrainerContext as TrainerContext,
)
from coterie.core.protocols.transition import TransitionMode as TransitionMode

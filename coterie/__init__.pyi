# Made by docs/generate.py from public.py: change it there.

import pluggy

from coterie.analysis.comparison.comparing import compare as compare
from coterie.analysis.comparison.report import (
    ComparisonReport as ComparisonReport,
    PairedResult as PairedResult,
    SideSummary as SideSummary,
)
from coterie.analysis.credit.report import CreditReport as CreditReport, credit as credit
from coterie.analysis.diagnosis.evidence import Sickness as Sickness
from coterie.analysis.diagnosis.machine import MachineDiagnosis as MachineDiagnosis, doctor as doctor
from coterie.analysis.diagnosis.machine_hardware import HealthCheck as HealthCheck
from coterie.analysis.diagnosis.run import RunDiagnosis as RunDiagnosis
from coterie.analysis.explanation import Explanation as Explanation, explain as explain
from coterie.analysis.replay.differences import Mismatch as Mismatch
from coterie.analysis.replay.replay import Replay as Replay, replay as replay
from coterie.answers import keep_answer as keep_answer, known_answer as known_answer
from coterie.api.compare import Comparison as Comparison, TeamEvaluation as TeamEvaluation
from coterie.api.evaluate import evaluate as evaluate
from coterie.api.export import export as export
from coterie.api.rollouts import read_rollouts as read_rollouts
from coterie.api.rows import read_metrics as read_metrics
from coterie.api.train import TrainResult as TrainResult, train as train, vocabulary as vocabulary
from coterie.backends.chat_models.openai import OpenAIChat as OpenAIChat
from coterie.backends.engines.request_batching import RequestBatcher as RequestBatcher
from coterie.backends.models.minibatches import (
    minibatches as minibatches,
    span_ids as span_ids,
    token_coefficients as token_coefficients,
)
from coterie.backends.models.policy import (
    LoraSettings as LoraSettings,
    ModelInit as ModelInit,
    OptimizerSettings as OptimizerSettings,
    TensorPolicy as TensorPolicy,
    TorchPolicy as TorchPolicy,
    WarmStart as WarmStart,
)
from coterie.backends.models.table import uniforms as uniforms
from coterie.backends.remote.vendors import Vendor as Vendor
from coterie.compose.policies import RunConfig as RunConfig
from coterie.core.concurrency.active_rollouts import ActiveRollouts as ActiveRollouts
from coterie.core.config import PolicyConfig as PolicyConfig, Resolved as Resolved, to_yaml as to_yaml
from coterie.core.errors import (
    ConfigError as ConfigError,
    CoterieError as CoterieError,
    DataError as DataError,
    MissingExtra as MissingExtra,
    PluginError as PluginError,
    PolicyFault as PolicyFault,
    RunFolderError as RunFolderError,
    SystemFault as SystemFault,
    TooManyMissing as TooManyMissing,
    UserError as UserError,
    WriteError as WriteError,
    did_you_mean as did_you_mean,
)
from coterie.core.plugins import (
    Composed as Composed,
    MayChange as MayChange,
    Plugin as Plugin,
    PluginConfig as PluginConfig,
)
from coterie.core.plugins.origin import plugin_call as plugin_call
from coterie.core.protocols import (
    ActionView as ActionView,
    AdvantageEstimator as AdvantageEstimator,
    Batch as Batch,
    ChatAnswer as ChatAnswer,
    ChatFormat as ChatFormat,
    ChatModel as ChatModel,
    ChatRequest as ChatRequest,
    Codec as Codec,
    DataSource as DataSource,
    Demonstration as Demonstration,
    Engine as Engine,
    EngineClient as EngineClient,
    EngineContext as EngineContext,
    Environment as Environment,
    EpisodeView as EpisodeView,
    Executor as Executor,
    ExecutorContext as ExecutorContext,
    JointView as JointView,
    Judged as Judged,
    Length as Length,
    Limits as Limits,
    Loss as Loss,
    Member as Member,
    NamedRewardSource as NamedRewardSource,
    Plan as Plan,
    PlayedAction as PlayedAction,
    Program as Program,
    PromptRequest as PromptRequest,
    Ran as Ran,
    RewardSource as RewardSource,
    Role as Role,
    Rollout as Rollout,
    RolloutContext as RolloutContext,
    RolloutJob as RolloutJob,
    RolloutSide as RolloutSide,
    Sampler as Sampler,
    Sandbox as Sandbox,
    ScoredRollout as ScoredRollout,
    SiblingsView as SiblingsView,
    Status as Status,
    StepContext as StepContext,
    Surrogate as Surrogate,
    TaskSource as TaskSource,
    Team as Team,
    TestFailure as TestFailure,
    TokenBatch as TokenBatch,
    Tool as Tool,
    Tracker as Tracker,
    Trainer as Trainer,
    TrainerContext as TrainerContext,
    TransitionMode as TransitionMode,
    Verdict as Verdict,
    View as View,
)
from coterie.core.protocols.chat_format import DescribesTools as DescribesTools
from coterie.core.protocols.chat_model import UsesEngine as UsesEngine
from coterie.core.protocols.engine import LeasesVersions as LeasesVersions
from coterie.core.protocols.environment import DigestsStates as DigestsStates
from coterie.core.protocols.reward import ShowsFeedback as ShowsFeedback
from coterie.core.protocols.role import Remembers as Remembers
from coterie.core.protocols.tool import (
    Closes as Closes,
    CountsMetrics as CountsMetrics,
    HasSchemas as HasSchemas,
    Opens as Opens,
)
from coterie.core.protocols.tracker import TracksEpisodes as TracksEpisodes, TracksSpans as TracksSpans
from coterie.core.protocols.trainer import FollowsBudget as FollowsBudget, KeepsVersions as KeepsVersions
from coterie.core.protocols.transition import RepeatsTask as RepeatsTask
from coterie.core.rollout.rewards import branch_rewards as branch_rewards, joint_reward as joint_reward
from coterie.core.rollout.turns import (
    History as History,
    Stage as Stage,
    first_stage as first_stage,
    next_stage as next_stage,
)
from coterie.core.storage.atomic import locked as locked, write_atomic as write_atomic
from coterie.core.storage.jsonl import to_json as to_json
from coterie.core.types import (
    TEAM as TEAM,
    Action as Action,
    Annotations as Annotations,
    Call as Call,
    ComponentKind as ComponentKind,
    Credit as Credit,
    Decision as Decision,
    Fault as Fault,
    Finding as Finding,
    HistoryEntry as HistoryEntry,
    JointAction as JointAction,
    Key as Key,
    Message as Message,
    Metrics as Metrics,
    Node as Node,
    Prompt as Prompt,
    Request as Request,
    RewardWeights as RewardWeights,
    RoleInput as RoleInput,
    Sample as Sample,
    Sampling as Sampling,
    Score as Score,
    Scores as Scores,
    Span as Span,
    Step as Step,
    Task as Task,
    Tree as Tree,
    Weights as Weights,
    all_passed as all_passed,
)
from coterie.core.types.digest import digest as digest
from coterie.core.types.seeding import generator as generator, seed64 as seed64
from coterie.core.types.splits import Split as Split, split_of as split_of
from coterie.discovery.api_version import API_VERSION as API_VERSION
from coterie.discovery.files import load_plugin_file as load_plugin_file
from coterie.discovery.hookspecs import Register as Register
from coterie.discovery.members import (
    BoundsCalls as BoundsCalls,
    Brief as Brief,
    Build as Build,
    ChecksComponents as ChecksComponents,
    ChecksHost as ChecksHost,
    CountsCalls as CountsCalls,
    CountsOptimizerSteps as CountsOptimizerSteps,
    CountsTokens as CountsTokens,
    Demonstrates as Demonstrates,
    Diagnoses as Diagnoses,
    DrawsTasks as DrawsTasks,
    FingerprintsTasks as FingerprintsTasks,
    GivesFinalAnswers as GivesFinalAnswers,
    GivesFindings as GivesFindings,
    HasFields as HasFields,
    HasLengthConstant as HasLengthConstant,
    HasNotSummable as HasNotSummable,
    HasTokenIds as HasTokenIds,
    HasVocabulary as HasVocabulary,
    KeepsFiles as KeepsFiles,
    KeptFiles as KeptFiles,
    LeavesOut as LeavesOut,
    LocatesTasks as LocatesTasks,
    MakesCodecs as MakesCodecs,
    MayLackFeedback as MayLackFeedback,
    NeedsFreshSamples as NeedsFreshSamples,
    OmitsTask as OmitsTask,
    RecordsTasks as RecordsTasks,
    ReportsProtections as ReportsProtections,
    RunsInBackground as RunsInBackground,
    ScoresRoles as ScoresRoles,
    SharesSlots as SharesSlots,
    ShowsWork as ShowsWork,
    StepsConcurrently as StepsConcurrently,
    StopsEpisodes as StopsEpisodes,
    SumsOverTurns as SumsOverTurns,
    TakesWeights as TakesWeights,
    TrainsApart as TrainsApart,
    UsesRunFolder as UsesRunFolder,
    WarmStarts as WarmStarts,
    Work as Work,
)
from coterie.discovery.validation import validate as validate
from coterie.estimate.plan import RunEstimate as RunEstimate, plan as plan
from coterie.plugins.algos.blocks.estimator import (
    GroupConfig as GroupConfig,
    GroupEstimator as GroupEstimator,
    Pieces as Pieces,
    RowConfig as RowConfig,
    SumConfig as SumConfig,
    check_pieces as check_pieces,
)
from coterie.plugins.algos.blocks.groups import (
    BASELINES as BASELINES,
    GROUPINGS as GROUPINGS,
    Group as Group,
    Normalised as Normalised,
    Normaliser as Normaliser,
    by_decision as by_decision,
    by_task as by_task,
    credit_groups as credit_groups,
    grouped as grouped,
    normalise_batch as normalise_batch,
    turn_weights as turn_weights,
)
from coterie.plugins.algos.blocks.returns import (
    RETURNS as RETURNS,
    Horizon as Horizon,
    Row as Row,
    episode_return as episode_return,
    gain as gain,
    lost_chains as lost_chains,
    token_counts as token_counts,
)
from coterie.plugins.algos.blocks.rows import (
    Advantage as Advantage,
    RowEstimator as RowEstimator,
    Rows as Rows,
    ScoredRow as ScoredRow,
)
from coterie.plugins.losses.blocks.common import (
    Correction as Correction,
    LossConfig as LossConfig,
    TokenLoss as TokenLoss,
    clipped_term as clipped_term,
    detached as detached,
    k2 as k2,
    k3 as k3,
    log_ratio as log_ratio,
    sequence_means as sequence_means,
    sequence_sums as sequence_sums,
)
from coterie.plugins.outputs import judge_outputs as judge_outputs
from coterie.plugins.samplers.expansion import (
    NodeExpansion as NodeExpansion,
    NodePosition as NodePosition,
    SteppedJoint as SteppedJoint,
)
from coterie.plugins.samplers.tree import SamplingSettings as SamplingSettings, TreeSampler as TreeSampler
from coterie.recipes import (
    TableFrom as TableFrom,
    find_plugin as find_plugin,
    load as load,
    read_yaml as read_yaml,
    registered as registered,
)
from coterie.spans import TraceSpan as TraceSpan
from coterie.stats import (
    Difference as Difference,
    Interval as Interval,
    clustered_bootstrap as clustered_bootstrap,
    paired_difference as paired_difference,
)
from coterie.studies import (
    Analysis as Analysis,
    Claim as Claim,
    ClaimResult as ClaimResult,
    Column as Column,
    Method as Method,
    Study as Study,
    above as above,
    at_most_half as at_most_half,
    order as order,
)
from coterie.viewing.report import report as report

__version__: str
hookimpl: pluggy.HookimplMarker
__all__: list[str]

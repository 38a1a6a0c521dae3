"""The public names of the package `coterie`, by the module that each is defined in."""

from __future__ import annotations

PUBLIC = {
    "coterie.analysis.explanation": "Explanation explain",
    "coterie.api.train": "TrainResult train vocabulary",
    "coterie.analysis.credit.report": "CreditReport credit",
    "coterie.api.evaluate": "evaluate",
    "coterie.api.compare": "Comparison TeamEvaluation",
    "coterie.analysis.comparison.comparing": "compare",
    "coterie.analysis.comparison.report": "ComparisonReport PairedResult SideSummary",
    "coterie.api.export": "export",
    "coterie.estimate.plan": "RunEstimate plan",
    "coterie.api.rollouts": "read_rollouts",
    "coterie.api.rows": "read_metrics",
    "coterie.analysis.diagnosis.machine_hardware": "HealthCheck",
    "coterie.analysis.diagnosis.machine": "MachineDiagnosis doctor",
    "coterie.analysis.diagnosis.run": "RunDiagnosis",
    "coterie.analysis.diagnosis.evidence": "Sickness",
    "coterie.analysis.replay.differences": "Mismatch",
    "coterie.analysis.replay.replay": "Replay replay",
    "coterie.viewing.report": "report",
    "coterie.recipes": "TableFrom find_plugin load read_yaml registered",
    "coterie.core.plugins": "Composed MayChange Plugin PluginConfig",
    "coterie.discovery.api_version": "API_VERSION",
    "coterie.discovery.files": "load_plugin_file",
    "coterie.discovery.hookspecs": "Register",
    "coterie.core.plugins.origin": "plugin_call",
    "coterie.core.config": "PolicyConfig Resolved to_yaml",
    "coterie.discovery.validation": "validate",
    "coterie.compose.policies": "RunConfig",
    "coterie.core.errors": """
        ConfigError CoterieError DataError MissingExtra PluginError PolicyFault RunFolderError
        SystemFault TooManyMissing UserError WriteError did_you_mean
    """,
    "coterie.answers": "keep_answer known_answer",
    "coterie.spans": "TraceSpan",
    "coterie.core.storage.atomic": "locked write_atomic",
    "coterie.core.storage.jsonl": "to_json",
    "coterie.core.types": """
        TEAM Action Annotations Call ComponentKind Credit Decision Fault Finding HistoryEntry JointAction Key
        Message Metrics Node Prompt Request RewardWeights RoleInput Sample Sampling Score Scores Span Step
        Task Tree Weights all_passed
    """,
    "coterie.core.types.digest": "digest",
    "coterie.core.types.seeding": "generator seed64",
    "coterie.core.types.splits": "Split split_of",
    "coterie.core.protocols": """
        ActionView AdvantageEstimator Batch ChatAnswer ChatFormat ChatModel ChatRequest Codec DataSource
        Demonstration Engine EngineClient EngineContext Environment EpisodeView Executor ExecutorContext
        JointView Judged Length Limits Loss Member NamedRewardSource Plan PlayedAction Program PromptRequest
        Ran RewardSource Role Rollout RolloutContext RolloutJob RolloutSide Sampler Sandbox ScoredRollout
        SiblingsView Status StepContext Surrogate TaskSource Team TestFailure TokenBatch Tool Tracker
        Trainer TrainerContext TransitionMode Verdict View
    """,
    "coterie.core.protocols.chat_format": "DescribesTools",
    "coterie.core.protocols.chat_model": "UsesEngine",
    "coterie.core.protocols.engine": "LeasesVersions",
    "coterie.core.protocols.environment": "DigestsStates",
    "coterie.core.protocols.reward": "ShowsFeedback",
    "coterie.core.protocols.role": "Remembers",
    "coterie.core.protocols.tool": "Closes CountsMetrics HasSchemas Opens",
    "coterie.core.protocols.trainer": "FollowsBudget KeepsVersions",
    "coterie.core.protocols.tracker": "TracksEpisodes TracksSpans",
    "coterie.core.protocols.transition": "RepeatsTask",
    "coterie.core.rollout.rewards": "branch_rewards joint_reward",
    "coterie.core.rollout.turns": "History Stage first_stage next_stage",
    "coterie.core.concurrency.active_rollouts": "ActiveRollouts",
    "coterie.plugins.samplers.tree": "SamplingSettings TreeSampler",
    "coterie.plugins.samplers.expansion": "NodeExpansion NodePosition SteppedJoint",
    "coterie.plugins.algos.blocks.estimator": """
        GroupConfig GroupEstimator Pieces RowConfig SumConfig check_pieces
    """,
    "coterie.plugins.algos.blocks.groups": """
        BASELINES GROUPINGS Group Normalised Normaliser by_decision by_task credit_groups grouped
        normalise_batch turn_weights
    """,
    "coterie.plugins.algos.blocks.returns": """
        RETURNS Horizon Row episode_return gain lost_chains token_counts
    """,
    "coterie.plugins.algos.blocks.rows": "Advantage RowEstimator Rows ScoredRow",
    "coterie.plugins.losses.blocks.common": """
        Correction LossConfig TokenLoss clipped_term detached k2 k3 log_ratio sequence_means sequence_sums
    """,
    "coterie.backends.chat_models.openai": "OpenAIChat",
    "coterie.backends.engines.request_batching": "RequestBatcher",
    "coterie.backends.models.minibatches": "minibatches span_ids token_coefficients",
    "coterie.backends.models.policy": """
        LoraSettings ModelInit OptimizerSettings TensorPolicy TorchPolicy WarmStart
    """,
    "coterie.backends.models.table": "uniforms",
    "coterie.backends.remote.vendors": "Vendor",
    "coterie.plugins.outputs": "judge_outputs",
    "coterie.discovery.members": """
        BoundsCalls Brief Build ChecksComponents ChecksHost CountsCalls CountsOptimizerSteps CountsTokens
        Demonstrates Diagnoses DrawsTasks FingerprintsTasks GivesFinalAnswers GivesFindings HasFields
        HasLengthConstant HasNotSummable HasTokenIds HasVocabulary KeepsFiles KeptFiles LeavesOut
        LocatesTasks MakesCodecs MayLackFeedback NeedsFreshSamples OmitsTask RecordsTasks ReportsProtections
        RunsInBackground ScoresRoles SharesSlots ShowsWork StepsConcurrently StopsEpisodes SumsOverTurns
        TakesWeights TrainsApart UsesRunFolder WarmStarts Work
    """,
    "coterie.stats": "Difference Interval clustered_bootstrap paired_difference",
    "coterie.studies": "Analysis Claim ClaimResult Column Method Study above at_most_half order",
}
"""Module -> its public names. After a change: `python docs/generate.py`."""
MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names.split()}

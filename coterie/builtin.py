"""The built-in plugins, registered through the same entry-point group as third-party ones.

Targets are strings: a plugin is imported when a run chooses it. Where its module imports torch, `config` and
`policy` name its schemas in modules that don't, so that a configuration is checked without torch.
"""

from __future__ import annotations

from pathlib import Path

from coterie import hookimpl
from coterie.discovery.hookspecs import Register, RegisterExample


@hookimpl
def register_environments(register: Register) -> None:
    register("code_collab", "coterie.plugins.envs.code.collab:CodeCollab")
    register("code_game", "coterie.plugins.envs.code.game:CodeGame")
    register("code_tests", "coterie.plugins.envs.code.code_tests:CodeTests")
    register("data_science", "coterie.plugins.envs.data_science.env:DataScience")
    register("math", "coterie.plugins.envs.math.env:Math")
    register("plan_path", "coterie.plugins.envs.plan_path:PlanPath")
    register("sokoban", "coterie.plugins.envs.sokoban:Sokoban")
    register("sudoku", "coterie.plugins.envs.sudoku:Sudoku")
    register("team_task", "coterie.plugins.envs.team_task.env:TeamTask")
    register("writing", "coterie.plugins.envs.writing.env:Writing")


@hookimpl
def register_roles(register: Register) -> None:
    register("code_aux", "coterie.plugins.agents.code:CodeAux")
    register("code_game_aux", "coterie.plugins.agents.code:CodeGameAux")
    register("code_game_main", "coterie.plugins.agents.code:CodeGameMain")
    register("code_game_solver", "coterie.plugins.agents.code:CodeGameSolver")
    register("code_main", "coterie.plugins.agents.code:CodeMain")
    register("code_solver", "coterie.plugins.agents.code:CodeSolver")
    register("code_tests_coder", "coterie.plugins.agents.code:CodeTestsCoder")
    register("code_tests_solver", "coterie.plugins.agents.code:CodeTestsSolver")
    register("code_tests_tester", "coterie.plugins.agents.code:CodeTestsTester")
    register("data_science_analyst", "coterie.plugins.agents.data_science:Analyst")
    register("data_science_data_engineer", "coterie.plugins.agents.data_science:DataEngineer")
    register("data_science_modeler", "coterie.plugins.agents.data_science:Modeler")
    register("math_code_executor", "coterie.plugins.agents.math:MathCodeExecutor")
    register("math_problem_solver", "coterie.plugins.agents.math:MathProblemSolver")
    register("math_reasoner", "coterie.plugins.agents.math:MathReasoner")
    register("math_solver", "coterie.plugins.agents.math:MathSolver")
    register("math_tool", "coterie.plugins.agents.math:MathTool")
    register("math_verifier", "coterie.plugins.agents.math:MathVerifier")
    register("plan_path_planner", "coterie.plugins.agents.games:PlanPathPlanner")
    register("plan_path_executor", "coterie.plugins.agents.games:PlanPathExecutor")
    register("plan_path_solver", "coterie.plugins.agents.games:PlanPathSolver")
    register("plan_path_tool", "coterie.plugins.agents.games:PlanPathTool")
    register("plan_path_plan", "coterie.plugins.agents.games:PlanPathPlan")
    register("sokoban_executor", "coterie.plugins.agents.games:SokobanExecutor")
    register("sokoban_plan", "coterie.plugins.agents.games:SokobanPlan")
    register("sokoban_planner", "coterie.plugins.agents.games:SokobanPlanner")
    register("sokoban_solver", "coterie.plugins.agents.games:SokobanSolver")
    register("sokoban_tool", "coterie.plugins.agents.games:SokobanTool")
    register("sudoku_executor", "coterie.plugins.agents.games:SudokuExecutor")
    register("sudoku_plan", "coterie.plugins.agents.games:SudokuPlan")
    register("sudoku_planner", "coterie.plugins.agents.games:SudokuPlanner")
    register("sudoku_solver", "coterie.plugins.agents.games:SudokuSolver")
    register("sudoku_tool", "coterie.plugins.agents.games:SudokuTool")
    register("template", "coterie.plugins.agents.template:TemplateRole")
    register("writing_first", "coterie.plugins.agents.writing:WritingFirst")
    register("writing_second", "coterie.plugins.agents.writing:WritingSecond")
    register("writing_solver", "coterie.plugins.agents.writing:WritingSolver")


@hookimpl
def register_rewards(register: Register) -> None:
    register("coach", "coterie.plugins.rewards.coach.source:Coach")
    register("code_structure", "coterie.plugins.rewards.reports:CodeStructure")
    register("environment", "coterie.plugins.rewards.environment:EnvironmentReward")
    register("function", "coterie.plugins.rewards.function:FunctionReward")
    register("golden_tests", "coterie.plugins.rewards.reports:GoldenTests")
    register("test_quality", "coterie.plugins.rewards.reports:TestQuality")
    register("unit_tests", "coterie.plugins.rewards.reports:UnitTests")
    register("writing", "coterie.plugins.rewards.reports:WritingReward")


@hookimpl
def register_estimators(register: Register) -> None:
    register("at_grpo", "coterie.plugins.algos.at_grpo:ATGRPO")
    register("compose", "coterie.plugins.algos.compose:Compose")
    register("dr_grpo", "coterie.plugins.algos.grpo:DrGRPO")
    register("gae", "coterie.plugins.algos.gae:GAE")
    register("grpo", "coterie.plugins.algos.grpo:GRPO")
    register("magrpo", "coterie.plugins.algos.magrpo:MAGRPO")
    register("mareinforce", "coterie.plugins.algos.magrpo:MAREINFORCE")
    register("maremax", "coterie.plugins.algos.magrpo:MAReMax")
    register("marloo", "coterie.plugins.algos.magrpo:MARLOO")
    register("rae", "coterie.plugins.algos.rae:RAE")
    register("reinforce", "coterie.plugins.algos.reinforce:Reinforce")
    register("reinforce_pp", "coterie.plugins.algos.reinforce_pp:ReinforcePP")
    register("reinforce_pp_baseline", "coterie.plugins.algos.reinforce_pp:ReinforcePPBaseline")
    register("rloo", "coterie.plugins.algos.reinforce:RLOO")


@hookimpl
def register_losses(register: Register) -> None:
    register("cispo", "coterie.plugins.losses.cispo:CISPO")
    register("gspo", "coterie.plugins.losses.gspo:GSPO")
    register("ppo_clip", "coterie.plugins.losses.ppo_clip:PPOClip")
    register("reinforce", "coterie.plugins.losses.reinforce:ReinforceLoss")


@hookimpl
def register_transitions(register: Register) -> None:
    register("diagnosis", "coterie.plugins.transitions.levels:Diagnosis")
    register("expert_edits", "coterie.plugins.transitions.expert_edits:ExpertEdits")
    register("level_feedback", "coterie.plugins.transitions.levels:LevelFeedback")
    register("level_passed", "coterie.plugins.transitions.levels:LevelPassed")
    register("none", "coterie.plugins.transitions.none:NoTransitionFeedback")
    register("passed", "coterie.plugins.transitions.levels:Passed")
    register("plain", "coterie.plugins.transitions.revision:Plain")


@hookimpl
def register_samplers(register: Register) -> None:
    register("tree", "coterie.plugins.samplers.tree:TreeSampler")


@hookimpl
def register_engines(register: Register) -> None:
    register("hf", "coterie.backends.engines.hf:HFEngine")
    register("mixed", "coterie.backends.engines.mixed:MixedEngine")
    register(
        "openai",
        "coterie.backends.engines.openai.engine:OpenAIEngine",
        config="coterie.backends.engines.openai.settings:OpenAIConfig",
        policy="coterie.backends.engines.openai.settings:RemotePolicy",
    )
    register("scripted", "coterie.backends.engines.scripted:ScriptedEngine")
    register("tabular", "coterie.backends.engines.tabular:TabularEngine")
    register(
        "vllm",
        "coterie.backends.engines.vllm.engine:VLLMEngine",
        config="coterie.backends.engines.vllm.settings:VLLMConfig",
        policy="coterie.backends.engines.vllm.settings:VLLMPolicy",
    )


@hookimpl
def register_trainers(register: Register) -> None:
    register(
        "torch",
        "coterie.backends.trainers.torch_trainer:TorchTrainer",
        config="coterie.backends.trainers.settings:TorchConfig",
        policy="coterie.backends.models.policy:TorchPolicy",
    )
    register(
        "deepspeed",
        "coterie.backends.trainers.deepspeed.trainer:DeepSpeedTrainer",
        config="coterie.backends.trainers.deepspeed.settings:DeepSpeedConfig",
        policy="coterie.backends.trainers.deepspeed.settings:DeepSpeedPolicy",
    )
    register("tabular", "coterie.backends.trainers.tabular:TabularTrainer")
    register("none", "coterie.backends.trainers.none:NoTrainer")


@hookimpl
def register_executors(register: Register) -> None:
    register("local", "coterie.backends.executors.local:LocalExecutor")
    register("ray", "coterie.backends.executors.ray.executor:RayExecutor")


@hookimpl
def register_sandboxes(register: Register) -> None:
    register("local", "coterie.backends.sandboxes.local:LocalSandbox")
    register("sandbox_fusion", "coterie.backends.sandboxes.fusion:SandboxFusion")


@hookimpl
def register_tools(register: Register) -> None:
    register("mcp", "coterie.backends.tools.mcp:McpTool")
    register("python", "coterie.backends.tools.python:PythonTool")
    register("search", "coterie.backends.tools.search:SearchTool")


@hookimpl
def register_chat_formats(register: Register) -> None:
    register("auto", "coterie.backends.chat_formats.formats:AutoChat")
    register("template", "coterie.backends.chat_formats.formats:TemplateChat")
    register("plain", "coterie.backends.chat_formats.formats:PlainChat")


@hookimpl
def register_chat_models(register: Register) -> None:
    register("gemini", "coterie.backends.chat_models.gemini:GeminiModel")
    register("heuristic", "coterie.backends.chat_models.heuristic:Heuristic")
    register("openai", "coterie.backends.chat_models.openai:OpenAIChat")
    register("policy", "coterie.backends.chat_models.policy:PolicyModel")


@hookimpl
def register_data_sources(register: Register) -> None:
    sets = "coterie.backends.data.sets.source"
    register("apps", f"{sets}:APPS")
    register("arxiv", f"{sets}:ArXiv")
    register("code_contests", f"{sets}:CodeContests")
    register("cooperative", "coterie.backends.data.shipped:Cooperative")
    register("coop_humaneval", f"{sets}:CoopHumanEval")
    register("ds_pack", "coterie.backends.data.ds_pack:DsPack")
    register("humaneval", f"{sets}:HumanEval")
    register("live_code_bench", f"{sets}:LiveCodeBench")
    register("mbpp", f"{sets}:MBPP")
    register("posts", "coterie.backends.data.shipped:Posts")
    register("sums", "coterie.backends.data.shipped:Sums")
    register("tldr", f"{sets}:TLDR")
    register("jsonl", "coterie.backends.data.jsonl:JsonlData")
    register("parquet", "coterie.backends.data.parquet:ParquetData")
    register("hub", "coterie.backends.data.hub:HubData")


@hookimpl
def register_trackers(register: Register) -> None:
    register("jsonl", "coterie.backends.trackers.jsonl:JsonlTracker")
    register("mlflow", "coterie.backends.trackers.mlflow:MlflowTracker")
    register("tensorboard", "coterie.backends.trackers.tensorboard:TensorBoardTracker")
    register("wandb", "coterie.backends.trackers.wandb:WandbTracker")
    register("weave", "coterie.backends.trackers.weave:WeaveTracker")
    register("otel", "coterie.backends.trackers.otel:OtelTracker")


@hookimpl
def register_recipes(register: Register) -> None:
    for path in sorted((Path(__file__).parent / "recipes").glob("*.yaml")):
        register(path.stem, str(path))


@hookimpl
def register_overlays(register: Register) -> None:
    folder = Path(__file__).parent / "recipes" / "overlays"
    for path in sorted(folder.glob("*.yaml")):
        register(path.stem, str(path))
    register("gpu_24gb", str(folder / "one_gpu.yaml"))  # one overlay, with two names


@hookimpl
def register_columns(register: Register) -> None:
    for path in sorted((Path(__file__).parent / "recipes" / "columns").glob("*.yaml")):
        register(path.stem, str(path))


@hookimpl
def register_studies(register: Register) -> None:
    register("at-grpo-table1", "coterie.studies.library.at_grpo:TABLE1")
    register("at-grpo-table2", "coterie.studies.library.at_grpo:TABLE2")
    register("at-grpo-table3", "coterie.studies.library.at_grpo:TABLE3")
    register("magrpo", "coterie.studies.library.magrpo:MAGRPO")
    register("sampling", "coterie.studies.library.at_grpo:SAMPLING")
    register("teammates", "coterie.studies.library.at_grpo:TEAMMATES")
    register("cooperation", "coterie.studies.library.cooperation:COOPERATION")


@hookimpl
def register_examples(register: RegisterExample) -> None:
    """What `coterie check coterie` can't derive; `coterie.testing.builtin_examples` says why."""
    names = {
        "environment": "data_science math team_task writing",
        "role": "math_reasoner math_tool template",
        "reward": "coach environment function unit_tests writing",
        "transition": "expert_edits level_passed none passed",
        "loss": "cispo",
        "engine": "mixed openai scripted tabular vllm",
        "trainer": "deepspeed none tabular torch",
        "executor": "ray",
        "sandbox": "sandbox_fusion",
        "tool": "mcp python search",
        "chat_model": "gemini openai policy",
        "data_source": "apps arxiv code_contests coop_humaneval ds_pack hub humaneval jsonl live_code_bench "
        "mbpp parquet tldr",
        "tracker": "otel wandb weave",
    }
    for kind, of_kind in names.items():
        for name in of_kind.split():
            register(kind, name, f"coterie.testing.builtin_examples:{kind}_{name}")


@hookimpl
def register_commands(register: Register) -> None:
    """Coterie's own. `cli.main` finds them without; here a plugin's command of that name is told."""
    names = (
        "check coach compare config credit data doctor episodes eval explain export new plan plot "
        "plugins quickstart recipes replay report reproduce run runs sandbox schema watch"
    )
    for name in names.split():
        register(name, f"coterie.cli.commands.{name}:command")

"""A sampler: how the tree of a task grows, which is what an episode's siblings are.

Recovery: every decision draws some branches, and the episode goes on from the *worst* of them, so that the
team trains on states which a good team never reaches. An evaluation has one branch, and is played as usual.
"""

from pydantic import Field

from coterie import (
    Key,
    Node,
    NodeExpansion,
    NodePosition,
    Plan,
    Plugin,
    PluginConfig,
    Register,
    RolloutContext,
    Sampling,
    SamplingSettings,
    Task,
    Tree,
    first_stage,
    hookimpl,
)


class ExampleNameSampler(Plugin):
    """Draws `branches` actions a decision, and goes on from the joint action with the least reward."""

    class Config(PluginConfig):
        branches: int = Field(4, ge=1, description="Actions drawn for each decision.")
        sampling: SamplingSettings = SamplingSettings()

    config: Config

    @property
    def plan(self) -> Plan:
        """For `AdvantageEstimator.check`. `sampled`: one joint action goes on, and it isn't the best."""
        return Plan(chains=1, branches=self.config.branches, expand="sampled", pairing="aligned")

    def sampling(self, role: str) -> Sampling:
        return self.config.sampling.over(Sampling())

    def for_evaluation(self, greedy: bool) -> "ExampleNameSampler":
        settings = self.config.sampling
        if greedy:
            settings = settings.model_copy(update={"temperature": 0.0})
        return ExampleNameSampler(self.Config(branches=1, sampling=settings), self.build)

    # Every draw is keyed by (run seed, place): `ctx.seed(key, purpose)`, never a generator of your own.
    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        stage = first_stage(ctx.environment, ctx.team.order, state)
        if stage is None:
            raise ValueError(f"task {task.id} is over before any role acts")
        root = await self.grow(NodePosition(task, Key(task.id, epoch, chain), state, stage, {}), ctx)
        return Tree(task=task, chain=chain, epoch=epoch, root=root)

    async def grow(self, position: NodePosition, ctx: RolloutContext) -> Node:
        """The node at a position, with all that comes after it."""
        expansion = await self.expanded(position, ctx)
        values = [(value, at) for at, value in enumerate(expansion.values()) if value is not None]
        chosen = [min(values)[1]] if values else expansion.sound[:1]  # all missing, or lost to a fault
        following = [(at, expansion.child(at)) for at in chosen]
        children = {at: await self.grow(child, ctx) for at, child in following if child is not None}
        return expansion.node(children, chosen, "worst")

    async def expanded(self, position: NodePosition, ctx: RolloutContext) -> NodeExpansion:
        """The node's branches: drawn, stepped and scored."""
        branches, requests, decisions = range(self.config.branches), [], {}
        for role in position.stage.roles:
            history = position.history.get(role, ())
            request = await ctx.ask(
                role, position.state, position.stage.turn, history, self.sampling(role)
            )  # the prompt
            keys = [position.key.of_branch(role, branch) for branch in branches]
            actions = await ctx.gather([ctx.act(key, request) for key in keys])
            requests.append(request)
            trainable = ctx.team.members[role].trainable and not ctx.evaluation
            decisions[role] = request.decision(tuple(actions), trainable)
        expansion = NodeExpansion(position, requests, decisions, ctx, ctx.digest(position.state))
        for branch in branches:  # aligned: the i-th branches of all roles make the i-th joint action
            expansion.stepped.append(await expansion.step(branch, dict.fromkeys(decisions, branch)))
        await expansion.score(later=lambda source: False)
        return expansion


@hookimpl
def register_samplers(register: Register) -> None:
    register("example_name", ExampleNameSampler)

"""The same step with CoMLRL's MAGRPOTrainer.

The trainer generates for one prompt and learns from one sequence at a time. Its batch is therefore `siblings`
sequences in generation and 1 in the update, whatever the number of prompts. `--rollout-buffer` defaults to
all prompts of the step: one optimiser step, as the other peers take, and its fastest setting. A step is an
epoch over the prompts, timed from epoch to epoch.
"""

from __future__ import annotations

import random
from typing import Any

import common


def main() -> None:
    arguments = common.parser(__doc__)
    arguments.add_argument("--agents", type=int, default=1, help="the tokens of all agents are counted")
    arguments.add_argument("--rollout-buffer", type=int, default=None, help="prompts per optimiser step")
    args = arguments.parse_args()
    case = common.start(args)
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
    from datasets import Dataset

    draw, watch = random.Random(common.SEED), common.Stopwatch()

    def reward(*completions: list[str]) -> list[float]:
        return common.random_rewards(1, draw)

    class Trainer(MAGRPOTrainer):
        """Records the start time of each epoch and the losses; changes nothing else."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.losses: list[float] = []

        def get_train_dataloader(self) -> Any:
            if watch.steps:
                watch.end()
            watch.begin()
            return super().get_train_dataloader()

        def _generate_completions(self, *args: Any, **kwargs: Any) -> Any:
            # In the thread of an agent; with several agents they would be counted together.
            return watch.timed("generation", super()._generate_completions)(*args, **kwargs)

        def _update_from_samples(self, *args: Any, **kwargs: Any) -> Any:
            return watch.timed("update", super()._update_from_samples)(*args, **kwargs)

        def _compute_loss_with_gradients(self, agent: Any, completions_data: Any, returns: Any) -> Any:
            common.check_lengths([len(row) for row in completions_data["completion_input_ids"][0]], case)
            loss = super()._compute_loss_with_gradients(agent, completions_data, returns)
            self.losses.append(loss.item())
            return loss

    # One agent corresponds to the other peers' single policy; each agent has its own model.
    agents, tokenizers = zip(*(common.load(case) for _ in range(args.agents)), strict=True)
    rows = [{"prompt": text} for text in common.prompt_texts(case, tokenizers[0])]
    buffer = args.rollout_buffer or case.prompts
    config = MAGRPOConfig(
        num_train_epochs=case.total_steps,
        num_agents=args.agents,
        agent_devices="cpu",
        agent_learning_rate=common.LEARNING_RATE,
        num_generations=case.siblings,
        max_new_tokens=case.new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        num_turns=1,
        joint_mode="aligned",
        rollout_buffer_size=buffer,
        train_batch_size=buffer,
        eval_interval=0,
    )
    trainer = Trainer(
        agents=list(agents),
        num_agents=args.agents,
        tokenizer=list(tokenizers),
        reward_func=reward,
        train_dataset=Dataset.from_list(rows),
        args=config,
    )
    trainer.verbose = False
    # `train` passes unknown keywords on to generate().
    trainer.train(suppress_tokens=common.suppressed(tokenizers[0]))
    watch.end()
    per_step = args.agents * case.prompts
    common.report(
        "CoMLRL",
        case,
        watch.seconds,
        loss=[
            sum(trainer.losses[start : start + per_step]) / per_step
            for start in range(0, len(trainer.losses), per_step)
        ],
        parameters=sum(p.numel() for p in agents[0].parameters()),
        batch=1,
        generation_batch=case.siblings,
        agents=args.agents,
        watch=watch if args.agents == 1 else None,
        notes=f"one optimiser step per {buffer} prompts",
    )


if __name__ == "__main__":
    main()

"""The same step with TRL's GRPOTrainer and transformers' generate, one optimiser step per generated batch.

Settings that only cost time on a model this small (gradient checkpointing and bf16, TRL's defaults) are off.
The clock runs from the trainer's `on_step_begin` to its `on_step_end`, without data loading and logging.
"""

from __future__ import annotations

import random
import tempfile
from typing import Any

import common


def main() -> None:
    case = common.start(common.parser(__doc__).parse_args())
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = common.load(case)
    rows = [{"prompt": text} for text in common.prompt_texts(case, tokenizer)]
    draw = random.Random(common.SEED)

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        common.check_lengths([len(row) for row in completion_ids], case)
        return common.random_rewards(len(completion_ids), draw)

    watch = common.Stopwatch()

    class Clock(TrainerCallback):
        """Records the seconds of each step."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.end("update")
            watch.end()

    class Trainer(GRPOTrainer):
        """Records the loss of each step, which is otherwise only logged, and where the update begins."""

        losses: list[float] = []

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            self.losses.append(loss.item())
            return loss

        def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
            # Generation, rewards and advantages; the rest of the step is the update.
            inputs = watch.timed("generation", super()._prepare_inputs)(*args, **kwargs)
            watch.begin("update")
            return inputs

    adapter = None
    if case.train == "lora":
        from peft import LoraConfig

        adapter = LoraConfig(task_type="CAUSAL_LM", **common.LORA)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=case.total_steps,
            # Batch: all completions of the step in one generation and in one update.
            per_device_train_batch_size=case.sequences,
            gradient_accumulation_steps=1,
            num_generations=case.siblings,
            num_iterations=1,
            max_completion_length=case.new_tokens,
            # Sampling: the whole distribution at temperature 1.
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            generation_kwargs={"suppress_tokens": common.suppressed(tokenizer)},
            # Objective: GRPO without a reference model.
            beta=0.0,
            loss_type="grpo",
            scale_rewards="group",
            learning_rate=common.LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=common.MAX_GRAD_NORM,
            # No work besides the step.
            use_cpu=True,
            bf16=case.dtype != "float32",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=common.SEED,
        )
        trainer = Trainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            callbacks=[Clock()],
            peft_config=adapter,
        )
        trainer.train()

    common.report(
        "TRL",
        case,
        watch.seconds,
        loss=trainer.losses,
        parameters=sum(p.numel() for p in model.parameters()),
        watch=watch,
    )


if __name__ == "__main__":
    main()

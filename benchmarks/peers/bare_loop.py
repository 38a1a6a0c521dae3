"""A training step with no framework: one batched `generate`, one forward and backward pass, one AdamW step.

A hand-written loop on Hugging Face's model, with care for speed: it computes logits of completion tokens
only, the log-softmax is one call, and the optimiser is the fused one.
"""

from __future__ import annotations

import random
from typing import Any

import common


def main() -> None:
    arguments = common.parser(__doc__)
    arguments.add_argument("--generate-only", action="store_true", help="no update: `generate` alone")
    args = arguments.parse_args()
    case = common.start(args)
    import torch

    if case.dtype == "bfloat16" or case.train != "full":
        raise SystemExit(
            "the bare loop has its weights in float32 or (`weights`) in bfloat16, and trains all"
        )
    model, tokenizer = common.load(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=common.LEARNING_RATE, weight_decay=0.0, fused=True)
    # All prompts have the same length, so there is no padding and the mask is all ones.
    prompts_BP = torch.tensor(common.prompt_ids(case)).repeat_interleave(case.siblings, dim=0)
    draw = random.Random(common.SEED)

    watch, losses = common.Stopwatch(), []
    for _ in range(case.total_steps):
        watch.begin()
        watch.begin("generation")
        tokens_BT = generate(model, prompts_BP, case.new_tokens, common.suppressed(tokenizer))
        watch.end("generation")
        if not args.generate_only:
            advantages_B = group_advantages(common.random_rewards(case.sequences, draw), case.siblings)
            watch.begin("update")
            losses.append(update(model, optimizer, tokens_BT, advantages_B, case.new_tokens))
            watch.end("update")
        watch.end()
        common.check_lengths([tokens_BT.shape[1] - case.prompt_tokens], case)

    common.report(
        "transformers generate" if args.generate_only else "bare loop",
        case,
        watch.seconds,
        loss=losses,
        parameters=sum(p.numel() for p in model.parameters()),
        watch=watch,
    )


def generate(model: Any, prompts_BP: Any, new_tokens: int, suppressed: list[int]) -> Any:
    """Sample at temperature 1 from the whole distribution: (B, P) -> (B, P + new_tokens)."""
    import torch

    model.eval()
    with torch.inference_mode():
        tokens_BT = model.generate(
            input_ids=prompts_BP,
            attention_mask=torch.ones_like(prompts_BP),
            max_new_tokens=new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            suppress_tokens=suppressed,
        )
    # A backward pass can't save tensors of inference mode; it can save a copy that is made outside it.
    return tokens_BT.clone()


def group_advantages(rewards: list[float], siblings: int) -> Any:
    """GRPO: (r - mean) / std within the siblings of a prompt, (B,)."""
    import torch

    rewards_GK = torch.tensor(rewards).view(-1, siblings)
    spread_G1 = rewards_GK.std(dim=1, keepdim=True)
    return ((rewards_GK - rewards_GK.mean(dim=1, keepdim=True)) / (spread_G1 + 1e-4)).view(-1)


def update(model: Any, optimizer: Any, tokens_BT: Any, advantages_B: Any, new_tokens: int) -> float:
    """One strictly on-policy policy-gradient step, mean over tokens; returns the loss."""
    import torch

    model.train()
    output = model(
        input_ids=tokens_BT,
        attention_mask=torch.ones_like(tokens_BT),
        logits_to_keep=new_tokens + 1,
        use_cache=False,
    )
    logits_BNV, taken_BN = output.logits[:, :-1], tokens_BT[:, -new_tokens:]
    logprobs_BN = torch.log_softmax(logits_BNV, dim=-1).gather(-1, taken_BN.unsqueeze(-1)).squeeze(-1)
    # On policy the ratio is 1 and clipping has no effect; its gradient is that of the log-probability.
    ratio_BN = torch.exp(logprobs_BN - logprobs_BN.detach())
    loss = -(ratio_BN * advantages_B.unsqueeze(1)).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), common.MAX_GRAD_NORM)
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()

"""Records what CoMLRL's MAGRPO family makes of fixed trees: `record_comlrl.py > comlrl.json`.

The trainers run whole, from `_train_step_returns`, which plays a task's tree, to the optimiser's step. Only
the agents are scripted: each says its next completions in turn, with log-probs that are its parameters in
float64, so that autograd gives the gradient with respect to them. Advantages are local to the library's loss;
they are read off the gradient of a node's loss, which is -A / K for every token that is trained on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import recording
import torch
from comlrl.trainers import reinforce
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

PAD, FILL, FIRST, VOCABULARY = 0, 1, 2, 128
"""Token ids. A completion starts with FIRST plus its number, by which agents and rewards know it."""


@dataclass
class Node:
    """What was played: the joints' rewards, and the node after each of them."""

    rewards: list[float] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return {"rewards": self.rewards, "children": [child.record() for child in self.children]}


class Agent(torch.nn.Module):
    """Says K completions a node, in the order in which nodes are played."""

    def __init__(self, lengths: list[list[int]], draw: random.Random) -> None:
        """
        Args:
            lengths: of completions, by node and branch; generation pads a node's to its longest.
        """
        super().__init__()
        self.lengths = lengths
        self.completions = [
            [FILL] * length + [PAD] * (max(node) - length) for node in lengths for length in node
        ]
        for row, tokens in enumerate(self.completions):
            tokens[0] = FIRST + row
        longest = max(len(tokens) for tokens in self.completions)
        table = [[recording.logprob(draw) for _ in range(longest)] for _ in self.completions]
        self.logprobs = torch.nn.Parameter(torch.tensor(table, dtype=torch.float64))
        self.asked = 0

    def generate(self, input_ids: torch.Tensor, num_return_sequences: int, **_: Any) -> Any:
        rows = self.completions[self.asked : self.asked + num_return_sequences]
        self.asked += num_return_sequences
        return SimpleNamespace(sequences=torch.tensor([input_ids[0].tolist() + row for row in rows]))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """Logits that give the next token its log-prob, and every other token the same share of the rest."""
        ids = input_ids[0].tolist()
        start = next(place for place, token in enumerate(ids) if token >= FIRST)
        row = ids[start] - FIRST
        logits = [torch.zeros(VOCABULARY, dtype=torch.float64)] * (start - 1)
        for token, logprob in zip(self.completions[row], self.logprobs[row], strict=False):
            rest = torch.log(-torch.expm1(logprob)) - math.log(VOCABULARY - 1)
            logits.append(torch.where(torch.arange(VOCABULARY) == token, logprob, rest))
        return SimpleNamespace(logits=torch.stack(logits)[None])

    def by_node(self, table: torch.Tensor) -> list[list[list[float]]]:
        """Numbers of tokens, padding included, by node and branch."""
        rows = (
            row[: len(completion)] for row, completion in zip(table.tolist(), self.completions, strict=True)
        )
        return [list(itertools.islice(rows, len(node))) for node in self.lengths]

    def record(self, kept: dict[int, dict[str, Any]], steps: Steps) -> dict[str, Any]:
        """By node, of those that were played; the gradient is that of the step which the node was part of."""
        count = len(kept)
        return {
            "lengths": self.lengths[:count],
            "logprobs": self.by_node(self.logprobs)[:count],
            **{kind: [kept[node][kind] for node in range(count)] for kind in kept[0]},
            "steps": steps.count,
            "gradient": self.by_node(steps.gradient)[:count],
        }


class Steps:
    """In the place of an agent's optimiser: adds up what its steps would descend, and moves nothing.

    Every node is part of one step only, so that the sum holds each step's gradient.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent, self.count = agent, 0
        self.gradient = torch.zeros_like(agent.logprobs)

    def zero_grad(self) -> None:
        self.agent.zero_grad()

    def step(self) -> None:
        self.count += 1
        self.gradient += self.agent.logprobs.grad


def keeping(trainer: type) -> type:
    """The trainer; it keeps what its loss makes of every node, by agent and node."""

    class Keeping(trainer):  # type: ignore[misc, valid-type]
        def _compute_loss_with_gradients(self, agent: Agent, completions: Any, returns: list[float]) -> Any:
            loss = super()._compute_loss_with_gradients(agent, completions, returns)
            (grad,) = torch.autograd.grad(loss, agent.logprobs, retain_graph=True)
            completion = completions["completion_input_ids"][0]
            first = int(completion[0][0]) - FIRST
            advantages = -len(completion) * grad[first : first + len(completion), 0]
            self.kept.setdefault(agent, {})[first // len(completion)] = {
                "returns": returns,
                "advantages": advantages.tolist(),
                "loss": loss.item(),
            }
            return loss

    return Keeping


def words() -> PreTrainedTokenizerFast:
    table = {"<pad>": PAD, "fill": FILL, **{f"w{row}": FIRST + row for row in range(VOCABULARY - FIRST)}}
    tokenizer = Tokenizer(WordLevel(table, unk_token="fill"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>")


class Game:
    """Pays for joint actions, and remembers the tree."""

    def __init__(self, agents: int, branches: int, pay: Callable[[int], float]) -> None:
        self.agents, self.branches, self.pay = agents, branches, pay
        self.nodes = [Node()]

    def place(self, text: str) -> int:
        """Number of the node that an agent's completion was sampled at."""
        return int(text.split()[0].removeprefix("w")) // self.branches

    def reward(self, *completions: list[str]) -> list[float]:
        number = self.place(completions[0][0])
        self.nodes[number].rewards.append(self.pay(number))
        return self.nodes[number].rewards[-1:]

    def go_on(self, agent_completions: list[str], **_: Any) -> list[str]:
        """The prompts of the node after a joint action."""
        self.nodes.append(Node())
        self.nodes[self.place(agent_completions[0])].children.append(self.nodes[-1])
        return ["fill fill"] * self.agents


def played(
    name: str,
    *,
    trainer: str = "MAGRPO",
    agents: int = 2,
    branches: int = 2,
    turns: int = 1,
    seed: int = 0,
    pay: Callable[[int], float] | None = None,
    ragged: bool = False,
    brief: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """One task's tree, and each agent's update on it.

    Args:
        pay: what the joints of a node pay; nodes are numbered as they are played. Default: drawn.
        ragged: the completions of a node differ in length.
        brief: keep returns and advantages only.
    """
    draw = random.Random(seed)
    joints = branches if settings.get("joint_mode", "aligned") == "aligned" else branches**agents
    count = sum(joints**turn for turn in range(turns))
    lengths = [
        [2 + branch if ragged else 3 + node % 2 for branch in range(branches)] for node in range(count)
    ]
    models = [Agent(lengths, draw) for _ in range(agents)]
    game = Game(agents, branches, pay or (lambda node: recording.reward(draw)))
    arguments = {"num_agents": agents, "num_generations": branches, "num_turns": turns, **settings}
    trainer_: Any = keeping(getattr(reinforce, f"{trainer}Trainer"))(
        agents=models,
        num_agents=agents,
        tokenizer=words(),
        reward_func=game.reward,
        external_transition=game.go_on,
        args=getattr(reinforce, f"{trainer}Config")(
            agent_devices="cpu",
            rollout_buffer_size=count,  # a whole tree is one update
            **arguments,
        ),
    )
    trainer_.kept, trainer_.optimizers = {}, [Steps(model) for model in models]
    trainer_._train_step_returns({"prompt": "fill"})
    trainer_._drain_ready_buffers(list(range(agents)))  # of a tree that ended early
    records = [
        model.record(trainer_.kept[model], steps)
        for model, steps in zip(models, trainer_.optimizers, strict=True)
    ]
    kept = ("returns", "advantages") if brief else tuple(records[0])
    return {
        "name": name,
        "trainer": trainer,
        "settings": arguments,
        "tree": game.nodes[0].record(),
        "agents": [{record_: record[record_] for record_ in kept} for record in records],
    }


def records() -> list[dict[str, Any]]:
    plain: dict[str, Any] = {"advantage_normalization": False, "early_termination_threshold": None}
    whiten: dict[str, Any] = {"early_termination_threshold": None}
    crossed: dict[str, Any] = {**plain, "joint_mode": "cross"}
    others = ("MARLOO", "MAREINFORCE", "MAReMax")
    potentials = {0: 0.5, 1: 1.0}  # the root; solved after its first joint; unsolved ever after its second
    return [
        played("one agent", agents=1, branches=4, seed=1, **plain),
        played("aligned, 1 turn", branches=4, seed=2, **plain),
        played("aligned, 2 turns", branches=3, turns=2, seed=3, **plain),
        played("aligned, 3 turns", turns=3, seed=4, **plain),
        played("cross, 1 turn", branches=3, seed=5, **crossed),
        played("cross, 2 turns", turns=2, seed=6, **crossed),
        played("cross, 3 turns", turns=3, seed=7, brief=True, **crossed),
        played("cross, 3 agents", agents=3, seed=8, **crossed),
        *(played(name, trainer=name, branches=3, turns=2, seed=3, brief=True, **plain) for name in others),
        *(
            played(f"{name}, normalised", trainer=name, branches=3, turns=2, seed=3, brief=True, **whiten)
            for name in ("MAGRPO", *others)
        ),
        played("cross, normalised", turns=2, seed=6, joint_mode="cross", brief=True, **whiten),
        played("equal rewards, normalised", branches=3, pay=lambda node: 0.1, brief=True, **whiten),
        played("discount .5", branches=3, turns=2, seed=3, discount=0.5, brief=True, **plain),
        played("as it comes", branches=3, turns=2, seed=3, brief=True),
        played("crossed", branches=3, seed=5, brief=True, **{**plain, "joint_mode": "crossed"}),
        played(
            "solved early", turns=3, pay=lambda node: potentials.get(node, 0.75), brief=True,
            **{**plain, "early_termination_threshold": 0.9},
        ),
        played("padded", branches=3, seed=11, ragged=True, **plain),
    ]  # fmt: skip


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        recorded = records()
    recording.write("comlrl", {"trees": recorded})


if __name__ == "__main__":
    main()

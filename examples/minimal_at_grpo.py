"""AT-GRPO (agent- and turn-wise GRPO, arXiv 2510.11062, Algorithm 1) from rollout to weight update, in numpy.

    python examples/minimal_at_grpo.py [SEED]

It trains for a few seconds on one core, and prints the team's success before and after: the share of episodes
in which the team reaches the goal while each role samples a single action a turn.

The game: a walker stands on a grid. The planner sees the walker and the goal and proposes moves. The executor
sees the proposal and whether its buttons are mirrored, but no grid, and presses buttons.

Beside the framework, this file leaves out or simplifies:

1) The language model. A policy is a table of logits by prompt: a token does not condition on those before it,
   and nothing generalises to a new prompt, so training and evaluation draw from the same tasks.
2) Text. An action is always T tokens: no end token, no padding, no mask, no output that cannot be parsed.
3) Mini-batches and Adam. It is SGD, group by group, on the mean over a group's tokens (the paper's 1/K).
4) The dual clip of the paper's code. As in the paper, there is no KL term and no entropy bonus.
5) The paper's progress divides by the first distance. Here a turn divides by its own, so the goal pays most.
"""

import sys
from itertools import product
from typing import NamedTuple

import numpy as np

ROLES = ("planner", "executor")  # agents i = 1..N, in the order in which they act in a turn
POLICY_OF = {"planner": "planner", "executor": "executor"}  # sigma(i): give both one name to share a policy
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right: `token ^ 1` is the opposite move
SIZE, TURNS = 4, 2  # the furthest goal is six moves away: two turns of three tokens
K, T, V = 4, 3, len(MOVES)  # branches of a decision, tokens of an action, tokens of the vocabulary
ALPHA, TEMPERATURE, CLIP = 1.0, 1.0, 0.2  # alpha weighs the team's reward
STEPS, ENVIRONMENTS, LEARNING_RATE = 200, 32, 4.0  # a large rate: few tokens of a batch move a table's row


# ------------------------------------------------------------------------------------------------- the game
class State(NamedTuple):  # immutable, so no branch can change the state of its siblings
    cell: tuple[int, int]
    goal: tuple[int, int]
    mirrored: bool
    proposal: tuple[int, ...] = ()


def reset(rng):
    cell, goal = rng.choice(SIZE * SIZE, size=2, replace=False)
    return State(divmod(int(cell), SIZE), divmod(int(goal), SIZE), bool(rng.integers(2)))


def observe(state, role):
    """The prompt o_{t,i}. Each role knows what the other does not, so neither can do without the other."""
    known = {"planner": (state.cell, state.goal), "executor": (state.proposal, state.mirrored)}
    return role, *known[role]


def distance(cell, goal):
    return abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])


def transition(state, role, tokens_T):
    """Micro-transition: (state after the action, team reward, local reward), both rewards in [0, 1]."""
    cell, bumps = state.cell, 0
    for token in tokens_T:
        if cell == state.goal:
            break
        down, right = MOVES[token ^ 1 if role == "executor" and state.mirrored else token]
        after = (cell[0] + down, cell[1] + right)
        inside = min(after) >= 0 and max(after) < SIZE
        cell, bumps = (after, bumps) if inside else (cell, bumps + 1)
    team = max(0.0, 1 - distance(cell, state.goal) / distance(state.cell, state.goal))
    local = 1 - bumps / T
    if role == "planner":  # a proposal moves nothing; its team reward is what it would earn if it were played
        return state._replace(proposal=tuple(tokens_T.tolist())), team, local
    return state._replace(cell=cell, proposal=()), team, local


# -------------------------------------------------------------------------------------------------- rollout
class Group(NamedTuple):  # the K branches of one decision: the group (e, i, t) of the paper
    turn: int
    role: str
    prompt: tuple
    tokens_K_T: np.ndarray
    logprobs_K_T: np.ndarray  # under the policy that sampled them, at the sampling temperature
    rewards_K: np.ndarray
    advantages_K: np.ndarray


def token_logprobs(policy, prompt):
    logits_T_V = policy.setdefault(prompt, np.zeros((T, V))) / TEMPERATURE
    return logits_T_V - np.logaddexp.reduce(logits_T_V, axis=1, keepdims=True)


def advantages(rewards_K):
    """A = (r - mean) / std over the siblings: they answer one prompt, so their mean is a fair baseline."""
    if np.ptp(rewards_K) < 1e-12:  # equal but for rounding, which the division would amplify
        return np.zeros_like(rewards_K)
    return (rewards_K - rewards_K.mean()) / (rewards_K.std(ddof=1) + 1e-6)


def rollout(policies, state, rng, branches=K):
    """The groups of one environment, and the state in which the episode ends."""
    groups = []
    for turn, role in product(range(TURNS), ROLES):
        prompt = observe(state, role)
        logprobs_T_V = token_logprobs(policies[POLICY_OF[role]], prompt)
        # The argmax of log-probs plus Gumbel noise is an exact sample.
        tokens_K_T = (logprobs_T_V + rng.gumbel(size=(branches, T, V))).argmax(axis=2)
        logprobs_K_T = logprobs_T_V[np.arange(T), tokens_K_T]
        outcomes = [transition(state, role, tokens_T) for tokens_T in tokens_K_T]
        rewards_K = np.array([ALPHA * team + local for _, team, local in outcomes])
        groups.append(Group(turn, role, prompt, tokens_K_T, logprobs_K_T, rewards_K, advantages(rewards_K)))
        # Only the best branch goes on. It is committed after all siblings are scored (or some would be scored
        # in a state that they did not act in) and before the next role is prompted.
        state = outcomes[rewards_K.argmax()][0]
        if state.cell == state.goal:
            break
    return groups, state


# --------------------------------------------------------------------------------------------------- update
def update(policy, groups):
    """Ascend PPO's clipped objective. The ratio is 1 until a batch comes to the same prompt again."""
    for group in groups:
        logprobs_T_V = token_logprobs(policy, group.prompt)
        ratio_K_T = np.exp(logprobs_T_V[np.arange(T), group.tokens_K_T] - group.logprobs_K_T)
        advantages_K_1 = group.advantages_K[:, None]
        unclipped_K_T = np.where(advantages_K_1 > 0, ratio_K_T < 1 + CLIP, ratio_K_T > 1 - CLIP)
        # The chain rule: d objective / d log-prob, then d log-prob / d logits.
        grad_K_T = advantages_K_1 * ratio_K_T * unclipped_K_T / ratio_K_T.size
        score_K_T_V = (np.eye(V)[group.tokens_K_T] - np.exp(logprobs_T_V)) / TEMPERATURE
        policy[group.prompt] += LEARNING_RATE * (grad_K_T[:, :, None] * score_K_T_V).sum(axis=0)


def success(policies, rng, episodes=1000):
    ends = [rollout(policies, reset(rng), rng, branches=1)[1] for _ in range(episodes)]
    return float(np.mean([state.cell == state.goal for state in ends]))


def train(policies, rng):
    for _step in range(STEPS):
        groups = [group for _ in range(ENVIRONMENTS) for group in rollout(policies, reset(rng), rng)[0]]
        for name, policy in policies.items():  # each on the union of the data of the roles that it plays
            update(policy, [group for group in groups if POLICY_OF[group.role] == name])


if __name__ == "__main__":
    rng = np.random.default_rng(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    policies = {name: {} for name in POLICY_OF.values()}
    before = success(policies, rng)
    train(policies, rng)
    print(f"success {before:.3f} -> {success(policies, rng):.3f}")

"""Episodes as text, for people."""

from __future__ import annotations

from coterie.core.types import Tree


def episode_text(tree: Tree) -> str:
    """One episode as text: every prompt and its answer."""
    lines = [f"task {tree.task.id}"]
    for path in tree.chains():
        for node, index in path:
            joint = node.joints[index]
            for role, branch in joint.branches.items():
                decision = node.decisions[role]
                prompt = "\n".join(message["content"] for message in decision.messages)
                lines.append(f"  turn {node.turn + 1}  {role} ({decision.policy or 'silent'})")
                lines += [f"    | {line}" for line in prompt.splitlines()]
                answer = decision.branches[branch].text.splitlines() or ["(nothing)"]
                lines += [f"    > {line}" for line in answer]
            if joint.fault is not None:
                lines.append(f"    ! {joint.fault.reason}")
        leaf = path[-1][0].joints[path[-1][1]]
        if leaf.outcome is not None:
            outcome = ", ".join(f"{name} {value:g}" for name, value in leaf.outcome.items())
            lines.append(f"  end: {outcome}")
        break
    return "\n".join(lines)

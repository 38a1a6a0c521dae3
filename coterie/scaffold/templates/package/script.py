"""What stands for a model in the smoke recipe: a function, so that a tool is called."""

from coterie import Request

CALLS = ("example_calls",)
"""What calls each tool."""


def play(request: Request, prompt: str) -> str:
    """A reply: first a call, of one tool or another by branch; then, with its result, an answer."""
    if not request.continues:
        return CALLS[request.key.branch % len(CALLS)]
    return request.key.role

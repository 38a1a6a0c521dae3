"""Tools: what a role may use inside one action."""

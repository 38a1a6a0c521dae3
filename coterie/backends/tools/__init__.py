"""Tools that a role may use inside one action."""

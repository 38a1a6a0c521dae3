"""The transition mode `plain`: the earlier answer, and nothing on it."""

from __future__ import annotations

from coterie.plugins.transitions.revision import Revision


class Plain(Revision):
    """Tells each role its earlier answer and to revise it; no tests are run."""

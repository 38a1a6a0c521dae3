"""How `coterie check` tries what has settings that nobody can guess."""

from coterie.testing import Example

PANEL = Example({"model": {"type": "debate_follower"}})

"""Examples, with which `coterie check` tries the components. No run imports them."""

from coterie.testing import Example

TOOL = Example(calls=["<add>2 3.5</add>", "Let me see: <add>1 x</add>"])
"""Replies that call the tool."""

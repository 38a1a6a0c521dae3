"""Examples, with which `coterie check` tries the components. No run imports them."""

from coterie.testing import Example

SANDBOX = Example({"inside": {"type": "local"}, "pause": 0.0})
"""The sandbox that it needs inside, and no pause."""

"""Examples, with which `coterie check` tries the components. No run imports them."""

from coterie.testing import Example

ROLE = Example(observations=["5", "1"], good=["4", "two words"], feedback=["You wrote: 7"])
"""What a prompt shows, and answers that can be read."""

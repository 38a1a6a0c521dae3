"""The watchdog: names a plugin's method that doesn't return.

No call of a plugin costs anything for it: a thread looks at stacks now and then. `watch_loop` is for the
event loop of a run, `watched` for code that runs in no loop. `stacks.py` has what is looked at and which
plugin's call that is, and `watchdog.py` when it is named.
"""

from coterie.watchdog.stacks import StuckCall
from coterie.watchdog.watchdog import Watchdog, watch_loop, watched, watching

__all__ = ["StuckCall", "Watchdog", "watch_loop", "watched", "watching"]

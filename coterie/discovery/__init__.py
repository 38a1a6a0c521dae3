"""Discovery of plugins: the hooks, the manager that finds and loads them, the registry of what they register.

No training step comes here: `compose` makes a run's components, and gives the run a function that calls
observers.
"""

from __future__ import annotations

from coterie.discovery.api_version import API_VERSION as API_VERSION
from coterie.discovery.manager import (
    GROUP as GROUP,
    KIND_OF as KIND_OF,
    Plugins as Plugins,
    Report as Report,
    plugins as plugins,
)
from coterie.discovery.registry import Entry as Entry, Registry as Registry, import_object as import_object

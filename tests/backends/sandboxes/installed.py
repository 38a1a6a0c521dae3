"""A folder with installed distributions, as pip leaves them, whose modules show what programs see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

ALPHA = "import beta, os\nPID = os.getpid()\nseen = []\ntry: import gamma\nexcept ImportError: gamma = None\n"


def install(
    site: Path,
    name: str,
    files: Mapping[str, str],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    editable: bool = False,
    listed: bool = True,
) -> None:
    """Add a distribution to the folder `site`.

    Args:
        files: contents by path.
        requires: its requirements.
        listed: whether its metadata lists its files.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    written = {**files, f"{info}/METADATA": "\n".join(lines) + "\n"}
    if editable:
        written[f"{info}/direct_url.json"] = json.dumps({"url": "file:///x", "dir_info": {"editable": True}})
    if listed:
        written[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*written, "../../bin/tool"])
    for path, text in written.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")


def environment(site: Path) -> Path:
    """alpha, which requires beta; gamma, which nobody requires; two parts of a package; and unusable ones."""
    install(site, "alpha", {"alpha/__init__.py": ALPHA}, requires=["beta>=1", "gamma; extra == 'more'"])
    install(site, "beta", {"beta.py": "VALUE = 7\n"})
    install(site, "gamma", {"gamma/__init__.py": "SECRET = 'not for programs'\n"})
    install(site, "gamma-extras", {"gamma_tools/__init__.py": ""})
    install(site, "shared-one", {"shared/one/__init__.py": "WHO = 1\n"})
    install(site, "shared-two", {"shared/two/__init__.py": "WHO = 2\n"})
    install(site, "needy", {"needy.py": ""}, requires=["absent-thing"])
    install(site, "inner", {"inner.py": ""}, requires=["coterie"])
    install(site, "edited", {"__editable__.py": ""}, editable=True)
    install(site, "unlisted", {"unlisted.py": ""}, listed=False)
    install(site, "raises", {"raises.py": "raise RuntimeError('no such engine')\n"})
    install(site, "threads", {"threads.py": "import threading, time\n" + _THREAD})
    install(site, "descriptors", {"descriptors.py": "import os\nheld = os.open('/', os.O_RDONLY)\n"})
    install(site, "temporary", {"temporary.py": "import tempfile\nPLACE = tempfile.gettempdir()\n"})
    install(site, "children", {"children.py": "import subprocess\nsubprocess.Popen(['/bin/sleep', '60'])\n"})
    install(site, "forks", {"forks.py": "import os\nos.fork()\n"})
    install(site, "sharing", {"sharing.py": "import mmap\nheld = mmap.mmap(-1, 4096)\n"})
    return site


_THREAD = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"

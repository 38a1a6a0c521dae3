"""The environment of a process in which vLLM finds `fake_transfer` as a plugin."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def with_fake_transfer(folder: Path) -> dict[str, str]:
    """The environment.

    Args:
        folder: empty; it gets the plugin, as if it were installed there.
    """
    shutil.copy(ROOT / "tests/scale/fake_transfer.py", folder / "fake_transfer.py")
    info = folder / "fake_transfer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-transfer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfake = fake_transfer:register\n")
    present = os.environ.get("PYTHONPATH", "")  # `make test-long` has the installed Coterie in it
    path = os.pathsep.join([str(ROOT), str(folder), *filter(None, [present])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

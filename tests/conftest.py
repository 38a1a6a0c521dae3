"""Environment variables of all tests.

One thread a process, set before any import of torch: idle OpenMP threads make two test processes on two cores
ten times slower.
"""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

"""What the machine gives a run: GPUs, cores, memory, disks, shared memory, open files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.machine import machine_memory

GB = 1e9
LEAST_DISK, LITTLE_DISK = 1.0, 10.0
"""GB. A checkpoint of a small model with its optimiser takes about 10."""
LEAST_SHARED, LITTLE_SHARED = 0.1, 1.0
"""GB. Docker gives 64 MB unless it is told otherwise."""
LITTLE_FILES = 4096
LITTLE_MEMORY = 4.0
BUSY = 0.5
"""Share of a GPU's memory that other processes hold."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What was checked of a machine, and what came out."""

    name: str
    status: Literal["ok", "warning", "fault"]
    """`fault`: a run would meet it; `warning`: some run could."""
    says: str
    fix: str = ""
    """The fix; empty where it is ok."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was measured, for JSON."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def ok(name: str, says: str, **facts: Any) -> HealthCheck:
    """A line on what is well."""
    return HealthCheck(name, "ok", says, "", facts)


def warning(name: str, says: str, fix: str, **facts: Any) -> HealthCheck:
    """A line on what some run could meet."""
    return HealthCheck(name, "warning", says, fix, facts)


def fault(name: str, says: str, fix: str, **facts: Any) -> HealthCheck:
    """A line on what a run would meet."""
    return HealthCheck(name, "fault", says, fix, facts)


PROBE = """
import importlib.util, json
def look():
    if importlib.util.find_spec("torch") is None:
        return {"missing": True}
    import torch
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of = {"name": "", "free": 0, "memory": 0, "error": ""}
        devices.append(of)
        try:
            of["name"] = torch.cuda.get_device_name(index)
            of["free"], of["memory"] = torch.cuda.mem_get_info(index)
            a = torch.ones(64, 64, device=f"cuda:{index}", requires_grad=True)
            (a @ a).sum().backward()
            torch.cuda.synchronize(index)
        except Exception as error:
            of["error"] = " ".join(str(error).split())[:300] or type(error).__name__
    return {"version": torch.__version__, "cuda": torch.version.cuda or "", "devices": devices}
print(json.dumps(look()))
"""
"""What torch says of itself, in a process of its own: with a broken driver it may crash, or never return."""
PATIENCE = 20.0
"""Seconds for it."""


def gpus() -> Iterator[HealthCheck]:
    """Driver, torch's CUDA build against it, and free memory. No GPU is no error."""
    name, seen, torch = "gpu", gpus_of_driver(), torch_facts()
    again = 'pip install --force-reinstall "coterie[torch]"'
    if "missing" in torch:
        what = "torch is not installed" + (f", and there is {seen[0][0]}" if seen else "")
        yield ok(name, f"{what}; recipes of tables run without it")
    elif "slow" in torch:
        why = "the machine is busy, its disk is slow, or a driver hangs"
        yield warning(name, f"what torch sees is unknown: {torch['slow']}; {why}", "coterie doctor once more")
    elif "error" in torch:
        yield fault(name, f"torch does not import: {torch['error']}", again)
    elif not torch["devices"]:
        yield _without_cuda(name, seen, torch["cuda"], torch["version"])
    else:
        for index, device in enumerate(torch["devices"]):
            yield _device(index, device, torch["cuda"], seen[0][1] if seen else "unknown")


def torch_facts() -> dict[str, Any]:
    """What `PROBE` prints; `error` where it ends otherwise."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"slow": f"no answer within {PATIENCE:g} seconds"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1][:300] if lines else f"its process ended with code {done.returncode}"}
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def _without_cuda(name: str, seen: list[tuple[str, str]], build: str, version: str) -> HealthCheck:
    if not seen:
        return ok(name, f"none that torch {version} could use: runs compute on the CPU", torch=version)
    device, driver = seen[0]
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ok(name, f"{device} is there, and CUDA_VISIBLE_DEVICES hides it", driver=driver)
    if not build:
        fix = "a build of torch for CUDA: https://pytorch.org/get-started has the command"
        return warning(
            name, f"{device} is there, and torch {version} is a build for CPUs", fix, driver=driver
        )
    what = f"{device} is there, and torch {version} (CUDA {build}) can't use it with driver {driver}"
    fix = f"a driver for CUDA {build}, or a build of torch for an older CUDA; CUDA_VISIBLE_DEVICES names GPUs"
    return fault(name, what, fix, driver=driver, cuda=build)


def _device(index: int, device: Mapping[str, Any], build: str, driver: str) -> HealthCheck:
    name = f"gpu {index}"
    if device["error"]:
        what = f"it does not compute: {device['error']}"
        return fault(name, what, "nvidia-smi shows what holds it; a restart of the driver", driver=driver)
    free, whole = device["free"], device["memory"]
    sizes = f"{free / GB:.0f} of {whole / GB:.0f} GB free"
    says = f"{device['name']}, {sizes}, driver {driver}, torch for CUDA {build}"
    facts = {"free": free, "memory": whole, "driver": driver, "cuda": build}
    if free < (1 - BUSY) * whole:
        fix = "nvidia-smi lists the processes that hold it; CUDA_VISIBLE_DEVICES chooses another GPU"
        return warning(name, says, fix, **facts)
    return ok(name, says, **facts)


def gpus_of_driver() -> list[tuple[str, str]]:
    """(name, driver) of each GPU that the driver knows; empty: there is no driver, or it doesn't answer."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        if done.returncode == 0:
            rows = [line.split(",") for line in done.stdout.splitlines() if "," in line]
            return [(row[0].strip(), row[1].strip()) for row in rows]
    return []


def threads() -> Iterator[HealthCheck]:
    """Threads that an OpenMP pool makes, beside the cores that this process may use."""
    cores, text = usable_cores(), os.environ.get("OMP_NUM_THREADS", "")
    wanted = text.split(",")[0].strip()
    facts = {"cores": cores, "omp_num_threads": text or None}
    if wanted and not wanted.isdigit():
        what = f"OMP_NUM_THREADS={text!r} is no number"
        yield warning("threads", what, "export OMP_NUM_THREADS=1", **facts)
        return
    if wanted:
        count = int(wanted)
        if count > cores:
            what = f"OMP_NUM_THREADS={count}, and this process may use {cores} cores: threads wait in turn"
            yield warning("threads", what, f"export OMP_NUM_THREADS={cores}", **facts)
        else:
            yield ok("threads", f"{cores} cores, OMP_NUM_THREADS={count}", **facts)
        return
    counted = os.cpu_count() or cores
    what = f"{cores} cores, and OMP_NUM_THREADS is not set, so that each process takes "
    if counted > cores:  # a quota of a container, which OpenMP doesn't see
        yield warning("threads", f"{what}{counted} threads", f"export OMP_NUM_THREADS={cores}", **facts)
        return
    half = max(cores // 2, 1)
    more = f"two at a time on this machine share them: export OMP_NUM_THREADS={half} for each"
    yield ok("threads", f"{what}all of them ({more})", **facts)


def usable_cores() -> int:
    """Cores that this process may use, by its affinity and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def memory() -> Iterator[HealthCheck]:
    """Memory of the machine or the container."""
    whole = machine_memory()
    if whole is None:
        yield ok("memory", "unknown")
    elif whole < LITTLE_MEMORY * GB:
        fix = "coterie plan RECIPE says what a run takes; recipes have smaller scales (--scale laptop)"
        yield warning("memory", f"{whole / GB:.1f} GB", fix, memory=whole)
    else:
        yield ok("memory", f"{whole / GB:.0f} GB", memory=whole)


def disks() -> Iterator[HealthCheck]:
    """Free space where runs, temporary files and downloaded models go."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    places = {"runs": Path("runs"), "temporary": Path(tempfile.gettempdir()), "models": Path(home)}
    moved = {
        "runs": "coterie run -o DIR on another disk",
        "temporary": "export TMPDIR=DIR on another disk",
        "models": "export HF_HOME=DIR on another disk",
    }
    for what, path in places.items():
        name, whole = f"disk of {what}", path.absolute()
        there = next(part for part in (whole, *whole.parents) if part.exists())
        free = shutil.disk_usage(there).free
        says = f"{free / GB:.1f} GB free at {whole}"
        if not os.access(there, os.W_OK):
            yield fault(name, f"{there.absolute()} can't be written", moved[what])
        elif free < LEAST_DISK * GB:
            yield fault(name, says, f"free some, or {moved[what]}", free=free)
        elif free < LITTLE_DISK * GB:
            fix = f"free some, or {moved[what]}; coterie plan RECIPE says what a run writes"
            yield warning(name, says, fix, free=free)
        else:
            yield ok(name, says, free=free)


def shared_memory() -> Iterator[HealthCheck]:
    """Room for what processes share: ranks, Ray, vLLM."""
    place = Path("/dev/shm")
    if not place.is_dir():
        yield ok("shared memory", "this system has no /dev/shm")
        return
    usage = shutil.disk_usage(place)
    says = f"{usage.free / GB:.2f} of {usage.total / GB:.2f} GB free in /dev/shm"
    fix = "docker run --shm-size=8g (Kubernetes: an emptyDir with medium Memory at /dev/shm)"
    facts = {"free": usage.free, "size": usage.total}
    if not os.access(place, os.W_OK):
        yield fault("shared memory", "/dev/shm can't be written", f"mount it writable: {fix}")
    elif usage.free < LITTLE_SHARED * GB:
        why = "too little for ranks, Ray and vLLM" if usage.free < LEAST_SHARED * GB else "little for vLLM"
        yield warning("shared memory", f"{says}: {why}", fix, **facts)
    else:
        yield ok("shared memory", says, **facts)


def open_files() -> Iterator[HealthCheck]:
    """The limit of open files: many episodes hold many connections and pipes."""
    try:
        import resource
    except ImportError:  # not on Windows
        yield ok("open files", "this system has no such limit")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LITTLE_FILES:
        most = "65536" if hard == resource.RLIM_INFINITY else str(min(hard, 65536))
        fix = f"ulimit -n {most}" if hard == resource.RLIM_INFINITY or hard > soft else "raise the hard limit"
        what = f"{soft}: many episodes with sandboxes or remote models need more"
        yield warning("open files", what, f"{fix} (in the shell that starts the run)", soft=soft, hard=hard)
    else:
        yield ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft}", soft=soft)

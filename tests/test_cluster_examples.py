"""The files of `examples/cluster`: their commands resolve, and their nodes have room for the runs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import coterie
from coterie.backends.cluster.placement import ClusterNode, place
from coterie.backends.cluster.processes import processes_of
from coterie.backends.cluster.settings import ClusterConfig
from coterie.cli.commands.run import command as run_command
from coterie.cli.options import source_and_overrides
from coterie.discovery.validation import validate

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "cluster"
LAUNCHER, RAYJOB, SLURM = (
    FOLDER / name for name in ("ray_cluster.yaml", "kuberay_rayjob.yaml", "slurm.sbatch")
)
FILES = pytest.mark.parametrize("file", [LAUNCHER, RAYJOB, SLURM], ids=lambda file: file.name)
INSTANCES = {"g6e.2xlarge": {"CPU": 8, "GPU": 1}, "m7i.xlarge": {"CPU": 4}}
"""What AWS says that these instance types have."""
ADDRESS = "10.0.0.7"


def documents(file: Path) -> list[Any]:
    return list(YAML(typ="safe").load_all(file.read_text(encoding="utf-8")))


def comments(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.strip().removeprefix("#") for line in lines if line.strip().startswith("#"))


def pinned_ray() -> str:
    (version,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return version


# --------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True)
class Command:
    """What a `coterie run` says, as the command line parses it."""

    source: str | None
    overrides: tuple[str, ...]
    overlays: tuple[str, ...]
    out: Path | None
    resume: Path | None

    @classmethod
    def parsed(cls, words: list[str]) -> Command:
        assert words[:2] == ["coterie", "run"], words
        with run_command.make_context("run", words[2:]) as context:
            options = context.params
        source, overrides = source_and_overrides(options["arguments"])
        return cls(source, overrides, options["overlays"], options["out"], options["resume"])

    @property
    def cluster(self) -> ClusterConfig:
        resolved = coterie.load(self.source, overrides=self.overrides, overlays=self.overlays)
        return validate(ClusterConfig, resolved.config.cluster, "cluster")


@cache
def commands(file: Path) -> tuple[Command, Command]:
    """The commands of a file that start a run and resume it."""
    if file == SLURM:  # as the script calls them
        words = [called for place in ("new", "killed") for called in script_calls(place) if "run" in called]
    else:
        words = [shlex.split(text) for text in re.findall(r"coterie run [^'`\n]+", comments(file))]
    if file == RAYJOB:
        words.append(shlex.split(rayjob()["spec"]["entrypoint"]))
    parsed = [Command.parsed(each) for each in words]
    (start,) = [each for each in parsed if each.resume is None]
    (resume,) = [each for each in parsed if each.resume is not None]
    return start, resume


@FILES
def test_the_settings_of_the_command_resolve_to_a_cluster(file):
    start, _ = commands(file)
    resolved = coterie.load(start.source, overrides=start.overrides, overlays=start.overlays)
    assert resolved.config.executor["type"] == "ray"
    given = dict(override.split("=") for override in start.overrides)
    for key, value in given.items():
        assert key.startswith("cluster.") and str(resolved.config.cluster[key[8:]]) == value
    assert start.cluster.address == "auto" and start.cluster.workers > 2 and start.cluster.engine_gpus > 0


@FILES
def test_the_run_resumes_in_the_folder_that_it_has_started_in(file):
    start, resume = commands(file)
    assert start.out is not None and start.out.is_absolute()
    assert resume == Command(None, (), (), None, start.out)


@FILES
def test_the_head_of_the_file_says_how_to_start_and_resume_and_that_nobody_ran_it(file):
    head = comments(file)
    assert re.search(r"^ Start\b", head, re.MULTILINE) and re.search(r"^ Resume\b", head, re.MULTILINE)
    assert re.search(r"^ Checked with .+\. Not run\.$", head, re.MULTILINE)
    values = re.sub(r"^\s*#.*$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"YOUR_\w+", head)) == set(re.findall(r"YOUR_\w+", values))


@FILES
def test_every_version_of_ray_is_the_pinned_one(file):
    text = file.read_text(encoding="utf-8")
    named = re.findall(r"rayproject/ray:([\d.]+)|ray\[default\]==([\d.]+)|rayVersion: \"([\d.]+)\"", text)
    assert {version for found in named for version in found if version} <= {pinned_ray()}
    assert named or file == SLURM


def check_room(start: Command, head: dict[str, float], workers: list[dict[str, float]]) -> None:
    """Check that every process of the run finds a place."""
    nodes = [
        ClusterNode(f"node {number}", node["CPU"], int(node.get("GPU", 0)))
        for number, node in enumerate((head, *workers))
    ]
    resolved = coterie.load(start.source, overrides=start.overrides, overlays=start.overlays)
    placed = place(nodes, processes_of(resolved.config, start.cluster, nodes))
    assert [each.node for each in placed if each.process.name == "run"] == ["node 0"]


# ------------------------------------------------------------------------------------------- ray_cluster.yaml


@cache
def launcher() -> dict[str, Any]:
    (config,) = documents(LAUNCHER)
    return config


def test_the_launcher_has_what_ray_up_needs():
    config, types = launcher(), launcher()["available_node_types"]
    assert {"cluster_name", "provider", "auth", "docker", "available_node_types"} <= set(config)
    assert config["provider"]["type"] == "aws" and config["provider"]["region"]
    assert config["head_node_type"] in types
    assert sum(each.get("min_workers", 0) for each in types.values()) <= config["max_workers"]
    for name, node in types.items():
        has = INSTANCES[node["node_config"]["InstanceType"]]
        for resource, count in node["resources"].items():
            assert isinstance(count, int) and 0 <= count <= has.get(resource, 0), (name, resource)


def test_the_nodes_of_the_launcher_have_room_for_the_run():
    types = dict(launcher()["available_node_types"])
    head = types.pop(launcher()["head_node_type"])
    for node in types.values():  # Coterie counts the CPUs when it starts: no node may come later
        assert node["min_workers"] == node["max_workers"] > 0
    workers = [node["resources"] for node in types.values() for _ in range(node["min_workers"])]
    check_room(commands(LAUNCHER)[0], head["resources"], workers)


def test_the_run_folder_of_the_launcher_is_on_the_mounted_disk():
    (mount,) = [each for each in launcher()["initialization_commands"] if " mount " in each]
    place = shlex.split(mount)[-1]
    volumes = [each.removeprefix("--volume=") for each in launcher()["docker"]["run_options"]]
    assert f"{place}:{place}" in volumes
    assert commands(LAUNCHER)[0].out.is_relative_to(place)


@pytest.mark.ray
def test_the_launcher_is_one_by_the_schema_of_ray():
    ray = pytest.importorskip("ray", reason="Ray's schema of cluster files is in the package ray")
    import jsonschema
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = yaml.safe_load(LAUNCHER.read_text(encoding="utf-8"))  # as Ray reads it
    assert config == launcher()
    jsonschema.Draft7Validator(schema).validate(config)
    validate_config(prepare_config(config))


# ---------------------------------------------------------------------------------------- kuberay_rayjob.yaml


@cache
def rayjob() -> dict[str, Any]:
    (job,) = [each for each in documents(RAYJOB) if each["kind"] == "RayJob"]
    return job


def pods() -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """The pod of the head, and those of the groups of workers with their number."""
    spec = rayjob()["spec"]["rayClusterSpec"]
    groups = [(group["replicas"], group["template"]["spec"]) for group in spec["workerGroupSpecs"]]
    return spec["headGroupSpec"]["template"]["spec"], groups


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only


def test_the_rayjob_is_one_of_the_pinned_ray_and_removes_its_cluster():
    job = rayjob()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned_ray()
    # With resources of its own the entrypoint could run on a worker.
    assert not [key for key in job["spec"] if key.startswith("entrypointNum")]


def test_all_pods_of_the_rayjob_have_the_same_image():
    head, groups = pods()
    assert len({container(pod)["image"] for pod in (head, *(pod for _, pod in groups))}) == 1


def test_the_head_of_the_rayjob_mounts_the_claimed_volume_of_the_run_folder():
    (claim,) = [each for each in documents(RAYJOB) if each["kind"] == "PersistentVolumeClaim"]
    head, _ = pods()
    claimed = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in head["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert set(claimed.values()) == {claim["metadata"]["name"]}
    places = [each["mountPath"] for each in container(head)["volumeMounts"] if each["name"] in claimed]
    for command in commands(RAYJOB):
        assert any((command.out or command.resume).is_relative_to(place) for place in places)


def test_the_pods_of_the_rayjob_have_room_for_the_run():
    head, groups = pods()
    spec, limits = rayjob()["spec"]["rayClusterSpec"], container(head)["resources"]["limits"]
    gives = int(spec["headGroupSpec"]["rayStartParams"]["num-cpus"])
    assert gives < int(limits["cpu"]), "the learner has no CPU"
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    workers = [
        {"CPU": int(container(pod)["resources"]["limits"]["cpu"])}
        for count, pod in groups
        for _ in range(count)
    ]
    cluster = commands(RAYJOB)[0].cluster
    assert cluster.engine_gpus <= int(limits["nvidia.com/gpu"])
    check_room(commands(RAYJOB)[0], {"CPU": gives, "GPU": int(limits["nvidia.com/gpu"])}, workers)


# ----------------------------------------------------------------------------------------------- slurm.sbatch


def options_of_sbatch() -> argparse.ArgumentParser:
    """The long options of sbatch that jobs like this one take."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    for name in ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("job-name", "output", "error", "partition", "account", "constraint", "mem", "signal"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--time", type=re.compile(r"(\d+-)?\d{1,2}:\d\d:\d\d").fullmatch)
    parser.add_argument("--open-mode", choices=["append", "truncate"])
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--requeue", action="store_true")
    return parser


def asked() -> argparse.Namespace:
    """What the script's `#SBATCH` lines ask for."""
    lines = re.findall(r"^#SBATCH (.+)$", SLURM.read_text(), re.MULTILINE)
    return options_of_sbatch().parse_args([word for line in lines for word in shlex.split(line)])


@dataclass
class Script:
    """The script, started in a folder with stand-ins for the commands of Slurm, Ray and Coterie."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def calls(self) -> list[list[str]]:
        return [shlex.split(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for(self, *words: str) -> None:
        """Wait until a call begins with these words."""
        end = time.monotonic() + 60
        while list(words) not in [call[: len(words)] for call in self.calls]:
            assert time.monotonic() < end, (words, self.calls)
            time.sleep(0.02)


SAYS = 'printf "%s %s\\n" "${0##*/}" "$*" >> "$LOG"\n'
STAND_INS = {
    "ray": SAYS,
    "coterie": SAYS + 'eval "$COTERIE_DOES"\n',
    "srun": SAYS + 'trap \'echo "srun ended" >> "$LOG"; kill $!; exit\' TERM\nsleep 30 &\nwait\n',
    "python": f'exec {shlex.quote(sys.executable)} "$@"\n',
}
RAY_MODULE = f"""
import os, types
util = types.SimpleNamespace(get_node_ip_address=lambda: {ADDRESS!r})
polls = []
def init(address):
    assert address == "auto" and os.environ["RAY_ADDRESS"] == "{ADDRESS}:6379"
def nodes():
    polls.append(0)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"nodes {{len(polls)}}\\n")
    return [dict(Alive=True), dict(Alive=len(polls) > 1)]
"""


def started(folder: Path, *, coterie_does: str = ":", run: Path | None = None) -> Script:
    """Start the script; in `run` instead of its own run folder, if that is given."""
    stand_ins = folder / "stand_ins"
    stand_ins.mkdir()
    for name, text in STAND_INS.items():
        (stand_ins / name).write_text(f"#!/bin/bash\n{text}")
        (stand_ins / name).chmod(0o755)
    (stand_ins / "ray.py").write_text(RAY_MODULE)
    text = SLURM.read_text(encoding="utf-8")
    if run is not None:
        text, times = re.subn(r"(?m)^run=.+$", f"run={shlex.quote(str(run))}", text)
        assert times == 1
    (folder / "script").write_text(text)
    environment = {
        "PATH": os.pathsep.join([str(stand_ins), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(stand_ins),
        "LOG": str(folder / "log"),
        "COTERIE_DOES": coterie_does,
        "SLURM_JOB_NUM_NODES": str(asked().nodes),
        "SLURM_CPUS_PER_TASK": str(asked().cpus_per_task),
    }
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        ["bash", str(folder / "script")],
        cwd=folder,
        env=environment,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
    return Script(process, folder / "log")


@cache
def script_calls(place: str) -> list[list[str]]:
    """The calls of the script where the run's folder is `new`, or that of a `killed` run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        own = Path(re.findall(r"(?m)^run=(.+)$", SLURM.read_text())[0])
        run = folder / own.relative_to("/")
        if place == "killed":
            run.mkdir(parents=True)
            (run / "config.yaml").touch()
        script = started(folder, run=run)
        assert script.process.wait(60) == 0
        script.wait_for("srun", "ended")
        calls = script.calls
    return [[word.removeprefix(str(folder)) for word in call] for call in calls]


def options(words: list[str]) -> dict[str, str]:
    return dict(
        word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word
    )


def test_bash_parses_the_script():
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_sbatch_knows_the_options_of_the_script_and_reads_all_of_them():
    lines = SLURM.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(n for n, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")], (
        "sbatch reads none after a command"
    )
    job = asked()
    assert job.requeue and job.open_mode == "append" and job.time and job.ntasks_per_node == 1
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        options_of_sbatch().parse_args(["--cpu-per-task=4"])


@pytest.mark.parametrize("place", ["new", "killed"])
def test_the_script_waits_for_all_nodes_then_runs_then_stops_ray(place):
    calls = script_calls(place)
    steps = [" ".join(call[:2]) for call in calls]
    steps.remove("srun --relative=1")  # in the background: at some time after the head
    assert steps == ["ray start", "nodes 1", "nodes 2", "coterie run", "ray stop", "srun ended"]
    assert "--head" in calls[0]
    (run,) = [call for call in calls if call[0] == "coterie"]
    assert ("--resume" in run) == (place == "killed")


def test_the_other_nodes_of_the_script_join_the_head():
    head, (srun,) = (
        script_calls("new")[0],
        [c for c in script_calls("new") if c[:2] == ["srun", "--relative=1"]],
    )
    assert options(head)["node-ip-address"] == ADDRESS and options(head)["port"] == "6379"
    start = srun[srun.index("ray") :]
    assert start[:2] == ["ray", "start"] and "--block" in start and "--head" not in start
    assert options(start)["address"] == f"{ADDRESS}:6379"
    before = options(srun[: srun.index("ray")])
    assert before["nodes"] == before["ntasks"] == str(asked().nodes - 1)


def test_the_nodes_of_the_script_have_room_for_the_run():
    job, calls = asked(), script_calls("new")
    head = options(calls[0])
    (srun,) = [call for call in calls if call[:2] == ["srun", "--relative=1"]]
    given = int(options(srun[srun.index("ray") :])["num-cpus"])
    assert given == int(options(srun[: srun.index("ray")])["cpus-per-task"]) == job.cpus_per_task
    workers = [{"CPU": given, "GPU": job.gpus_per_node} for _ in range(job.nodes - 1)]
    cluster = commands(SLURM)[0].cluster
    check_room(commands(SLURM)[0], {"CPU": int(head["num-cpus"]), "GPU": int(head["num-gpus"])}, workers)
    assert job.nodes * job.cpus_per_task >= cluster.workers * cluster.worker_cpus + cluster.engine_cpus
    assert job.gpus_per_node > int(head["num-gpus"]), "the learner has no GPU"


def test_the_script_ends_with_the_exit_code_of_the_run_and_stops_ray(tmp_path):
    script = started(tmp_path, coterie_does="exit 3", run=tmp_path / "run")
    assert script.process.wait(60) == 3
    assert ["ray", "stop"] in script.calls
    script.wait_for("srun", "ended")


def test_the_script_stops_ray_when_slurm_ends_it(tmp_path):
    script = started(tmp_path, coterie_does="exec sleep 30", run=tmp_path / "run")
    try:
        script.wait_for("coterie", "run")
        script.process.send_signal(signal.SIGTERM)
        script.wait_for("ray", "stop")
        script.wait_for("srun", "ended")
        assert script.process.wait(60) != 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(script.process.pid, signal.SIGKILL)

"""Checks that Slurm is ready for a job, before anything is submitted."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import environment, queue
from cluster.findings import Finding
from cluster.processes import user_name
from cluster.queue import Unreachable
from cluster.resources import Resources, own_components, seconds_of
from cluster.scheduler import SubmissionRefused

_TOOLS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
_FREE_NODE_S = 90  # how long the probe waits for a node
_PROBE_S = 300  # longer than the wait and the probe's time limit, so that Slurm itself ends the probe
_BUSY = "Requested nodes are busy"  # the message of srun --immediate without a free node
# The keys that sbatch takes from the environment (SBATCH_PARTITION, …), unless a component sets the key.
_WITH_VARIABLE = ("partition", "account", "qos", "constraint")
# Where a hetjob's component has no value for these keys and flags, Slurm takes the value of an earlier component. All components
# have the same time-min (`by_component`).
_INHERITED_KEYS = ("account", "qos", "mem")
_INHERITED_FLAGS = ("exclude", "nice", "hint", "reboot", "container", "delay-boot", "deadline")
_FLAGS_OF_PROBE = ("reservation", "licenses", "nodelist", "exclude", "wckey")
_ON_NODE = re.compile(r"srun: error: .*\btasks? \d")  # the message of a task that failed on its node


@dataclass(frozen=True)
class Partition:
    """A line of sinfo's output."""

    name: str
    nodes: int
    time: str
    gres: str
    """The resources of a node, such as gpu:h100:8. A partition with several kinds of nodes has several lines."""
    up: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.nodes} nodes, {self.gres or 'no GPUs'}, time limit {self.time})"


def partitions() -> list[Partition]:
    """The partitions in sinfo's answer, hidden partitions included. Raises Unreachable."""
    answer = queue.run_tool("sinfo", "-a", "-h", "-o", "%R|%D|%l|%G|%a")
    if answer.returncode:
        raise Unreachable(
            (answer.stderr.strip().splitlines() or [f"sinfo ended with {answer.returncode}"])[-1]
        )
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 4]
    return [
        # a GRES may name its sockets, as in gpu:a100:4(S:0-1)
        Partition(name, int(nodes), limit, re.sub(r"\([^)]*\)", "", gres), state == "up")
        for name, nodes, limit, gres, state in rows
    ]


def unavailable() -> str:
    """The reason why no job can be submitted to Slurm from here; "" when Slurm's commands exist and its controller answers."""
    if shutil.which("sbatch") is None:
        return "sbatch is not on the machine's PATH"
    try:
        return "" if partitions() else "sinfo lists no partition"
    except Unreachable as problem:
        return f"its controller does not answer ({problem})"


def check_slurm(resources, shared: Path, probe: bool) -> list[Finding]:
    """Check Slurm, the request in `resources` and, with a small probe job, a compute node."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return [
            Finding(
                "Slurm's commands", False, f"not on the PATH: {', '.join(missing)}; is this a login node?"
            )
        ]
    try:
        there = partitions()
    except Unreachable as problem:
        return [Finding("controller", False, f"{problem}; is slurmctld up, and does SLURM_CONF lead to it?")]
    findings = [Finding("controller", True, f"cluster {queue.cluster_name()}")]
    findings += [Finding("partition", part.up, str(part), needed=False) for part in there]
    findings.append(_accounting())
    components = _as_submitted(own_components(resources))
    try:
        refuse_inherited(components)
    except SubmissionRefused as refused:
        findings.append(Finding("resources", False, str(refused)))
    for name, share in components.items() if resources else ():
        refused = list(complaints(share, there))
        findings += [
            Finding(f"resources {name}", False, text, needed=text in refused)
            for text in complaints(replace(share, qos=""), there)
        ] or [Finding(f"resources {name}", True, f"{share.nodes} nodes, {share.gpus} GPUs")]
    if probe:
        shares = list(components.values())
        for share in [candidate for i, candidate in enumerate(shares) if candidate not in shares[:i]]:
            findings += _probe(shared.absolute(), share)
    return findings


def _as_submitted(components: Mapping[str, Resources]) -> dict[str, Resources]:
    """The resources with the values that sbatch takes from the environment for a key that no component sets.

    A key that any component sets has no variable: see `sbatch.overriding_variables`.
    """
    unset = [key for key in _WITH_VARIABLE if not any(getattr(share, key) for share in components.values())]
    values = {key: os.environ.get(f"SBATCH_{key.upper()}", "") for key in unset}
    return {name: replace(share, **values) for name, share in components.items()}


def complaints(share: Resources, there: list[Partition]) -> Iterator[str]:
    """The parts of the request that these partitions cannot provide. The check is an estimate: Slurm itself decides.

    With a QOS, which can lift a partition's time limit, the time is not checked.
    """
    names = sorted({part.name for part in there})
    fitting = [part for part in there if not share.partition or part.name in share.partition.split(",")]
    if not fitting:
        yield f"partition {share.partition!r} does not exist; there are {', '.join(names)}"
        return
    with_gpus = [part for part in fitting if _gpus(part.gres, share.gpu_type) >= share.gpus_per_node]
    if not with_gpus:
        offers = ", ".join(sorted({part.gres or "none" for part in fitting}))
        yield f"{share.gres} on a node is more than any node offers ({offers})"
        return
    nodes: Counter[str] = Counter()  # a partition with several kinds of nodes has several lines
    for part in with_gpus:
        nodes[part.name] += part.nodes
    time = str(share.sbatch.get("time-min", share.time))  # Slurm may lower the time to time-min
    limits = {part.name: part.time for part in with_gpus if nodes[part.name] >= share.nodes}
    if not limits:
        yield f"{share.nodes} such nodes are more than any partition has ({max(nodes.values())})"
    elif not share.qos and seconds_of(time) > max(map(seconds_of, limits.values())):
        allowed = ", ".join(f"{name}: {limit}" for name, limit in limits.items())
        yield f"a time of {time} is more than any such partition allows ({allowed}): set a shorter time"


def _gpus(gres: str, kind: str) -> int:
    """The GPUs per node in a GRES string: 'gpu:h100:8,nvme:1' → 8."""
    counts = [part.split(":") for part in gres.split(",") if part.split(":")[0] == "gpu"]
    return sum(int(words[-1]) for words in counts if words[-1].isdigit() and (not kind or kind in words))


def _accounting() -> Finding:
    with suppress(Unreachable):
        if queue.run_tool("sacct", "-n", "-X", "-S", "now-1minutes").returncode == 0:
            return Finding("accounting", True, "sacct answers")
    text = "none: states come from squeue, which forgets a job some minutes after its end (the run folder does not)"
    return Finding("accounting", False, text, needed=False)


def _probe(shared: Path, share: Resources) -> Iterator[Finding]:
    """Run a job of one task, with the settings of the component's jobs.

    The job tests whether its node can write to the folder and import the project.
    """
    token = shared / f".aligner-check-{uuid.uuid4().hex[:8]}"
    try:
        shared.mkdir(parents=True, exist_ok=True)
        token.write_text("")
        token.unlink()
    except OSError as error:
        yield Finding("shared folder", False, f"{shared} is not writable here: {error.strerror}")
        return
    python = share.python or sys.executable
    line = f"echo $SLURMD_NODENAME > {shlex.quote(str(token))} && {shlex.quote(python)} -c 'import cluster.launch'"
    try:
        done = _srun(line, share)
    except subprocess.TimeoutExpired:
        text = f"the probe did not end within {_PROBE_S} s; try again later"
        yield Finding("compute node", False, text, needed=False)
        return
    if _BUSY in done.stderr:
        text = f"no node was free within {_FREE_NODE_S} s; try again later"
        yield Finding("compute node", False, text, needed=False)
        return
    node = token.read_text().strip() if token.exists() else ""
    token.unlink(missing_ok=True)
    errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    last_error = errors[-1]
    if not node and done.returncode and not any(map(_ON_NODE.match, errors)):
        words = [re.sub("srun: (error: )?", "", line) for line in errors if line.startswith("srun:")]
        yield Finding("compute node", False, f"Slurm refused the probe: {'; '.join(words) or last_error}")
        return
    if not node:
        text = f"{shared} cannot be written from a node ({last_error}); choose a folder that all nodes mount"
        yield Finding("shared folder", False, text)
        return
    yield Finding("shared folder", True, f"{shared} is writable from {node}")
    cure = (
        f"{python} does not run this project on {node} ({last_error}); put the environment on a "
        "shared file system, or name the node's own Python with python: in the resources"
    )
    yield Finding("Python there", done.returncode == 0, python if done.returncode == 0 else cure)


def _srun(line: str, share: Resources) -> subprocess.CompletedProcess:
    """Run a line of bash on one of the component's nodes, in its container.

    Without a free node, srun ends with the message _BUSY and leaves no job in the queue. Raises TimeoutExpired.
    """
    from cluster.sbatch import container_words

    options = [f"--{key}={getattr(share, key)}" for key in _WITH_VARIABLE if getattr(share, key)]
    options += [f"--{key}={share.sbatch[key]}" for key in _FLAGS_OF_PROBE if key in share.sbatch]
    if share.gpus_per_node:  # a single GPU, because a whole node may not be free
        options.append("--gres=" + ":".join(filter(None, ["gpu", share.gpu_type, "1"])))
    words = ["srun", f"--immediate={_FREE_NODE_S}", "--nodes=1", "--ntasks=1", "--time=2"]
    words += ["--job-name=aligner-check", "--quiet"]
    srun = shlex.join([*words, *options, *container_words(share), "bash", "-c", line])
    return subprocess.run(
        ["bash", "-c", "\n".join([*share.setup, f"exec {srun}"])],
        env=environment.job_environment(),
        cwd="/",  # keeps Python on the node from finding a module by accident
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
    )


def refuse_inherited(components: Mapping[str, Resources]) -> None:
    """Raises SubmissionRefused for a component without a value that Slurm would take from an earlier component of the hetjob."""
    owners: dict[str, str] = {}
    for name, share in components.items():
        own = [key for key in _INHERITED_KEYS if getattr(share, key)]
        own += [f"sbatch.{flag}" for flag in _INHERITED_FLAGS if flag in share.sbatch]
        if missing := [key for key in owners if key not in own]:
            raise SubmissionRefused(
                f"resources {name}: without {missing[0]}, Slurm would take the value of {owners[missing[0]]}: set "
                f"{missing[0]} in each component, or in none"
            )
        owners |= dict.fromkeys(own, name)


def refuse_impossible(components: Mapping[str, Resources]) -> None:
    """Raises SubmissionRefused for a request that no node can fulfil.

    Slurm itself would accept some impossible requests and leave the job pending forever.
    """
    try:
        there = partitions()
    except Unreachable as problem:
        raise SubmissionRefused(f"Slurm does not answer: {problem}") from None
    if problems := _problems(_as_submitted(components), there):
        raise SubmissionRefused(f"the cluster cannot run the job: {'; '.join(problems)}")


def _problems(components: Mapping[str, Resources], there: list[Partition]) -> list[str]:
    return [f"{name}: {text}" for name, share in components.items() for text in complaints(share, there)]


def explain_refusal(message: str, components: Mapping[str, Resources]) -> str:
    """Slurm's reason for a refusal, and the cluster's resources for comparison with the request."""
    message = message.replace("sbatch: error: ", "").replace("Batch job submission failed: ", "").strip()
    try:
        there = partitions()
    except Unreachable:
        return f"Slurm refused the job: {message}"
    components = _as_submitted(components)
    problems = _problems(components, there)
    if "account" in message.lower():
        problems.append(
            f"account {next(iter(components.values())).account!r}; yours are {', '.join(_accounts()) or 'none'}"
        )
    problems = problems or [f"there are {'; '.join(map(str, there))}"]
    return f"Slurm refused the job: {message} ({'; '.join(problems)})"


def _accounts() -> list[str]:
    words = ("sacctmgr", "-n", "-P", "show", "assoc", "format=account", "where", "user=" + user_name())
    with suppress(Unreachable):
        return sorted(set(queue.run_tool(*words).stdout.split()))
    return []
